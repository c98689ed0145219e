"""Why a value is there or not: one byte beside every recorded value."""

from enum import IntEnum

import numpy as np


class State(IntEnum):
    """NaN in a series only says "no finite value"; the state says why."""

    MEASURED = 0
    NOT_SAMPLED = 1
    NO_GRADIENT = 2
    SKIPPED_STEP = 3
    UNSUPPORTED = 4
    SAMPLED = 5  # measured on a fixed sample of the coordinates
    PARTIAL = 6  # not all shards of this step were there
    CLIPPED = 7  # measured after a clipping that cannot be undone
    DAMAGED = 8  # was recorded, but the file no longer holds it

    @property
    def has_value(self) -> bool:
        """Whether a number stands beside this state."""
        return bool(HAS_VALUE[self])


HAS_VALUE = np.zeros(256, bool)
"""`State.has_value` of every byte, for whole arrays of states: `HAS_VALUE[states]`."""
HAS_VALUE[[State.MEASURED, State.SAMPLED, State.PARTIAL, State.CLIPPED]] = True
HAS_VALUE.setflags(write=False)
