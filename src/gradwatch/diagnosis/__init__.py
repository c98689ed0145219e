"""From a run to what is wrong with it: one root, its consequences, and what could not be seen."""

from gradwatch.checks.limits import Trouble
from gradwatch.diagnosis.diagnose import Diagnosis, Onset, counted, diagnose
from gradwatch.diagnosis.live import LiveDiagnosis
from gradwatch.diagnosis.verdict import Verdict, Verdicts, verdicts

__all__ = [
    "Diagnosis",
    "LiveDiagnosis",
    "Onset",
    "Trouble",
    "Verdict",
    "Verdicts",
    "counted",
    "diagnose",
    "verdicts",
]
