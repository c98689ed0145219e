"""From a run to what is wrong with it: one root, its consequences, and what could not be seen."""

from gradwatch.diagnosis.diagnose import diagnose
from gradwatch.diagnosis.diagnosis import Diagnosis, Onset
from gradwatch.diagnosis.monitor import Monitor

__all__ = ["Diagnosis", "Monitor", "Onset", "diagnose"]
