"""The example of a plain loop runs as it stands."""

from pathlib import Path

import pytest

from examples import plain_loop


def test_the_plain_loop_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plain_loop, "STEPS", 20)
    plain_loop.main()
    said = capsys.readouterr().out
    assert "21 steps, 6 parameters" in said
    assert "4.bias" in said
