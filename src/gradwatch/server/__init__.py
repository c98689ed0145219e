"""The live page's server: read-only, on loopback, behind a link that only the terminal shows."""
