"""The map: every field of the original, its mark, and our function or the reason for none.

`python -m gradwatch.analysis.map FILE` writes the page made from it.
"""

from gradwatch.analysis.map.flow import SYSTEMS as _FLOW
from gradwatch.analysis.map.gradients import SYSTEMS as _GRADIENTS
from gradwatch.analysis.map.levels import LEVELS, Levels
from gradwatch.analysis.map.rest import SYSTEMS as _REST
from gradwatch.analysis.map.rows import Mark, Row, System
from gradwatch.analysis.map.weights import SYSTEMS as _WEIGHTS

SYSTEMS: tuple[System, ...] = (*_WEIGHTS, *_GRADIENTS, *_FLOW, *_REST)

__all__ = ["LEVELS", "SYSTEMS", "Levels", "Mark", "Row", "System"]
