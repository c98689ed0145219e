"""What users may ask to keep: sizes, ages, all; everything else is refused in one sentence."""

from typing import Any

import numpy as np
import pytest

from gradwatch.errors import Exit, GradwatchError
from gradwatch.store import Retention, retention


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("all", None),
        ("1MB", Retention(bytes=10**6)),
        ("500MB", Retention(bytes=500 * 10**6)),
        ("1GB", Retention(bytes=10**9)),
        ("1.5 gb", Retention(bytes=15 * 10**8)),
        ("2TB", Retention(bytes=2 * 10**12)),
        ("5000kB", Retention(bytes=5 * 10**6)),
        ("7d", Retention(seconds=7 * 86400.0)),
        ("12h", Retention(seconds=12 * 3600.0)),
        ("0.5d", Retention(seconds=43200.0)),
    ],
)
def test_sizes_and_ages_are_understood(given: str, kept: Retention | None) -> None:
    assert retention(given) == kept


@pytest.mark.parametrize(
    "given",
    [
        *("lots", "-1GB", "", "0d", "1KB", "999kB", "1B", "GB", "1e3MB", "7 days", "1GB\n", "٣GB"),
        *("9" * 400 + "GB", 7.5, None, True, b"1GB", ["1GB"], np.array(["all"])),
    ],
)
def test_everything_else_is_refused(given: Any) -> None:
    with pytest.raises(GradwatchError, match="`keep` must be 'all', a size from 1MB up") as caught:
        retention(given)
    assert caught.value.exit_code == Exit.USAGE
