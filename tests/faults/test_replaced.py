"""`subjects.parquet` and `graph.json` are replaced while somebody reads: no damage, never old."""

import shutil
from pathlib import Path

import pytest
from tests.faults import small_run

from gradwatch.store import open_run, places


@pytest.mark.parametrize("name", ["subjects.parquet", "graph.json"])
@pytest.mark.parametrize("same_size", [False, True])
@pytest.mark.parametrize("moment", ["listing", "first open", "second open"])
def test_renamed_while_it_is_read(tmp_path, monkeypatch, name, same_size, moment):
    """The writer's rename comes between two looks of the reader, at every place it can."""
    small = small_run.make(tmp_path / "run", journal=False)
    target = small.folder / name
    beside = target.with_name(name + ".part")
    shutil.copy(target, beside)
    old = target.read_bytes()
    target.write_bytes(bytes(len(old)) if same_size else b"old" + old)
    listed, opened = places.Place.files_and_stored, places.Place.open
    done: list[str] = []

    def rename(now: str) -> None:
        if now == moment and beside.exists():
            beside.replace(target)
            done.append(now)

    def listing(place: places.Place) -> tuple[dict[str, int], int]:
        sizes, stored = listed(place)
        sizes.pop(beside.name, None)  # the folder was read when one was there, then the other
        rename("listing")
        return sizes, stored

    def opening(place: places.Place, file: str):
        if Path(file).name == beside.name:
            rename("second open")
        found = opened(place, file)
        if Path(file).name == name:
            rename("first open")
        return found

    if moment == "listing":
        monkeypatch.setattr(places.Place, "files_and_stored", listing)
    monkeypatch.setattr(places.Place, "open", opening)
    run = open_run(small.path)
    assert not small.missing(run)
    assert not small_run.damaged(run)
    assert run.info["complete"]
    assert done == [moment]
