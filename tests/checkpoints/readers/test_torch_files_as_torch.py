"""What torch loads is what we measured: the same tensors bit for bit, or a refusal."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from tests.checkpoints.readers import as_torch

from gradwatch.checkpoints.readers import torch_files
from gradwatch.errors import GradwatchError


def tried(seed: int, count: int, folder: Path) -> dict[str, int | list[str]]:
    """Mutants are read in a child: torch may take its memory, or crash."""
    done = subprocess.run(
        [sys.executable, "-m", as_torch.__name__, str(seed), str(count), str(folder)],
        cwd=Path(__file__).parents[3], capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def test_originals_and_some_mutants_are_read_as_torch_reads_them(tmp_path) -> None:
    counts = tried(11, 400, tmp_path)
    assert counts["found"] == []
    assert counts["read by both"] > 80


@pytest.mark.security
@pytest.mark.parametrize("seed", range(5))
def test_a_hundred_thousand_mutants_are_read_as_torch_reads_them(tmp_path, seed) -> None:
    counts = tried(seed, 20_000, tmp_path)
    assert counts["found"] == []
    assert counts["read by both"] > 3_000


def test_a_reader_that_is_off_by_one_element_is_seen(tmp_path, monkeypatch) -> None:
    right = torch_files.StorageView.shard

    def wrong(self, begin, file, start):
        return right(self, begin + self.element.size * (self.storage_count > 20), file, start)

    monkeypatch.setattr(torch_files.StorageView, "shard", wrong)
    monkeypatch.setattr(as_torch.resource, "setrlimit", lambda *_: None)
    found = as_torch.run(0, 30, tmp_path)["found"]
    assert any("has other elements" in difference for difference in found)


@pytest.mark.parametrize("zipped", [True, False])
def test_what_torch_leaves_on_no_device_is_not_measured(tmp_path, zipped) -> None:
    path = tmp_path / "a.pt"
    torch.save({"w": torch.ones(3)}, path, _use_new_zipfile_serialization=zipped)
    if zipped:
        with zipfile.ZipFile(path) as file:
            parts = {name: file.read(name) for name in file.namelist()}
        with zipfile.ZipFile(path, "w") as file:
            for name, raw in parts.items():
                file.writestr(name, raw.replace(b"\3\0\0\0cpu", b"\4\0\0\0meta"))
    else:
        path.write_bytes(path.read_bytes().replace(b"\3\0\0\0cpu", b"\4\0\0\0meta"))
    assert torch.load(path, weights_only=True)["w"].is_meta
    if zipped:
        index = torch_files.read_zip(path)
        assert not index.tensors
        assert "no numbers" in index.left_out["w"]
    else:  # a storage of which nobody knows how long it is
        with pytest.raises(GradwatchError):
            torch_files.read_stream(path)
