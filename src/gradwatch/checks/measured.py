"""What the zoo measured of each check on its reported half.

Written by `gradwatch zoo score --figures`.
"""

HEALTHY_RUNS = 0
"""Healthy trainings behind the false-alarm figures."""

CHECK_FIGURES: dict[str, tuple[int, int, int]] = {}
"""For each check: healthy runs with a warning, sick runs found, sick runs that have the fault."""
