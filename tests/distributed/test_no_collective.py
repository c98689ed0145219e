"""Watching adds no communication: the profiler counts the same collectives with and without us."""

import json
from pathlib import Path

from tests.distributed.launching import launch


def test_we_never_talk_to_other_ranks(tmp_path: Path) -> None:
    launch(2, "tests.distributed.quiet", str(tmp_path))
    for rank in range(2):
        found = json.loads((tmp_path / f"collectives.{rank}.json").read_text())
        for name, (bare, watched) in found.items():
            assert sum(bare.values()) > 0, name  # the profiler sees them at all
            assert watched == bare, name
