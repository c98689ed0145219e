"""The command line: each command a file, parsed here, done elsewhere."""
