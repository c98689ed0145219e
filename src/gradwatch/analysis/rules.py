"""The two rule books of every analysis."""

from enum import StrEnum


class Rules(StrEnum):
    """`gradwatch`: ours, the default. `original`: what the original program itself would say."""

    GRADWATCH = "gradwatch"
    ORIGINAL = "original"
