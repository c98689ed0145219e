"""The checkpoint doctor: reads trained weights without trusting the file."""

from gradwatch.checkpoints.examining import Examination, examine
from gradwatch.checkpoints.movement import Drift, drift
from gradwatch.checkpoints.scanning import Means, scan

__all__ = ["Drift", "Examination", "Means", "drift", "examine", "scan"]
