"""The analyses: plain functions from a `Run` (or arrays) to frozen results that know their JSON."""

from enum import StrEnum


class Rules(StrEnum):
    """`gradwatch`: ours, the default. `original`: what the original program itself would say."""

    GRADWATCH = "gradwatch"
    ORIGINAL = "original"
