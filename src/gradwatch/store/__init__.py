"""The run folder: written by one thread per process, read while it grows, whatever happened to it."""
