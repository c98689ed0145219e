"""The checkpoint doctor: reads trained weights without trusting the file."""

from gradwatch.checkpoints.compare import Drift, drift
from gradwatch.checkpoints.parallel import ScanOptions
from gradwatch.checkpoints.scanning import scan

__all__ = ["Drift", "ScanOptions", "drift", "scan"]
