"""The live page over HTTP: loopback, token, read-only."""
