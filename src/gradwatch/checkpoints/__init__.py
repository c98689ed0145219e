"""The checkpoint doctor: reads trained weights without trusting the file."""

from gradwatch.checkpoints.scanning import scan

__all__ = ["scan"]
