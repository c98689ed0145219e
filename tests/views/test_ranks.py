"""`gradwatch show --ranks`: each rank's own loss and step time, the slow one marked."""

from pathlib import Path

from click.testing import CliRunner

from gradwatch.cli.main import gradwatch
from gradwatch.store import Writer


def test_every_rank_has_its_own_row(tmp_path: Path) -> None:
    for rank in range(3):
        writer = Writer.create(tmp_path / "run", name="run", rank=rank, world=3)
        for step in range(10):
            seconds = 0.5 if rank == 2 else 0.1
            writer.scalars(
                step, {"loss": rank + 1.25, "step_seconds": seconds, "input_rms": 1.0 + rank}
            )
        writer.close(30.0)
    done = CliRunner().invoke(gradwatch, ["show", str(tmp_path / "run"), "--ranks"])
    assert done.exit_code == 0, done.output
    rows = [line.split() for line in done.stdout.splitlines()[1:]]
    assert [row[0] for row in rows] == ["0", "1", "2"]
    assert [row[2] for row in rows] == ["1.25", "2.25", "3.25"]
    assert rows[0][4:] == ["1", "–", "100"]
    assert rows[2][4:] == ["3", "–", "500", "slow"]
