"""Copies of runs: whole at every moment, complete at the end, and nothing goes twice."""

import threading
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gradwatch.errors import GradwatchError
from gradwatch.store import copying
from gradwatch.store import manifest as manifests
from gradwatch.store.copying import REPLACED, Copied, copy_run
from gradwatch.store.manifest import Manifest, SealedFile
from gradwatch.store.places import Place

ONE_AT_A_TIME = threading.RLock()
FOLDER = "0000-0000-1a2b3c4d"


class Recorder:
    """Writes a run's folder as a writer does, with numbers in place of tables."""

    def __init__(self, path: Path) -> None:
        self.run, self.folder = path, path / FOLDER
        self.folder.mkdir(parents=True)
        (path / "run.json").write_text('{"format": 3, "id": "ours", "name": "x"}')
        self.sealed: dict[str, bytes] = {}
        self.journal = 0
        self.begin()

    def begin(self) -> None:
        self.journal += 1
        self.append(b"begun")

    def append(self, data: bytes) -> None:
        with self._journal(self.journal).open("ab") as file:
            file.write(data)

    def _journal(self, number: int) -> Path:
        return self.folder / f"journal-{number:05d}.gwj"

    def seal(self, keep: int = 1000) -> None:
        """Make sealed files of the oldest journal; only `keep` files of rows remain."""
        number, old = (
            min(int(file.name[8:13]) for file in self.folder.glob("*.gwj")),
            [*self.sealed],
        )
        new = {
            f"{kind}/{number:05d}.parquet": b"%s %d" % (kind.encode(), number)
            for kind in ("rows/grad", "rollups/grad-10", "scalars")
        }
        new |= {file: b"%s %02d" % (file.encode(), number) for file in REPLACED}
        rows = [file for file in [*old, *new] if file.startswith("rows/")]
        gone = rows[: len(rows) - keep] if len(rows) > keep else []
        for file, data in new.items():
            path = self.folder / file
            path.parent.mkdir(parents=True, exist_ok=True)
            beside = path.with_name(path.name + ".part")
            beside.write_bytes(data)
            if file not in REPLACED:
                beside.rename(path)
        if number == self.journal:
            self.begin()
        self.sealed |= new
        for file in gone:
            del self.sealed[file]
        entries = tuple(entry(file, data) for file, data in self.sealed.items())
        raw = manifests.encode(Manifest(journals=((1, number, 0, 9),), files=entries))
        (self.folder / "manifest.new").write_bytes(raw)
        (self.folder / "manifest.new").rename(self.folder / manifests.NAME)
        for file in REPLACED:
            (self.folder / f"{file}.part").rename(self.folder / file)
        self._journal(number).unlink()
        for file in gone:
            (self.folder / file).unlink(missing_ok=True)


def entry(file: str, data: bytes) -> SealedFile:
    footer = 0 if file.endswith(".json") else min(len(data), 12)
    return SealedFile(file, len(data), 1, ((0, 1, 1),), footer, (zlib.crc32(data[-footer:]),))


def fits(place: Place, item: SealedFile) -> bool:
    """Whether a reader finds what the manifest says, also beside where it is being replaced."""
    names = [item.file, *([f"{item.file}.part"] if item.file in REPLACED else [])]
    found = [content(place, name) for name in names]
    return any(data is not None and entry(item.file, data) == item for data in found)


def content(place: Place, file: str) -> bytes | None:
    handle = place.open(file)
    return None if handle is None else handle.read(handle.size, 0)


def check_whole(folder: Place, source: Place) -> None:
    """What holds for a reader at every moment: named files are there, no journal has a gap."""
    raw = content(folder, manifests.NAME)
    manifest = Manifest() if raw is None else manifests.decode(raw)
    for item in manifest.files:
        assert fits(folder, item), item.file
    numbers = sorted(int(name[8:13]) for name in folder.files() if name.endswith(".gwj"))
    last = manifest.journals[-1][1] if manifest.journals else 0
    unsealed = [number for number in numbers if number > last]
    assert unsealed == list(range(last + 1, last + 1 + len(unsealed)))
    for number in unsealed[:-1]:
        name = f"journal-{number:05d}.gwj"
        assert content(source, name) in (None, content(folder, name)), name


@dataclass(frozen=True)
class Watched(Place):
    """A folder that is looked at, or calls a function, at every change or opening."""

    at: list[Callable[[], None]] = field(default_factory=list, compare=False)

    def __truediv__(self, name: str) -> "Watched":
        return Watched(str(Path(self.path, name)), self.at)

    def put(self, file: str, data: bytes) -> None:
        super().put(file, data)
        self._called()

    def remove(self, file: str) -> None:
        super().remove(file)
        self._called()

    def open(self, file: str):
        self._called()
        return super().open(file)

    def _called(self) -> None:
        with ONE_AT_A_TIME:
            for function in list(self.at):
                function()


def equal(source: Path, target: Path) -> bool:
    files = {
        str(path.relative_to(source)): path.read_bytes()
        for path in source.rglob("*.*")
        if path.is_file()
    }
    copies = {
        str(path.relative_to(target)): path.read_bytes()
        for path in target.rglob("*.*")
        if path.is_file()
    }
    return files == copies


@pytest.fixture
def recorder(tmp_path: Path) -> Recorder:
    recorder = Recorder(tmp_path / "run")
    recorder.append(b"one")
    recorder.seal()
    recorder.append(b"two")
    return recorder


@pytest.fixture
def target(tmp_path: Path, recorder: Recorder) -> Watched:
    """Checked at every change."""
    place, source = Watched(str(tmp_path / "copy")), Place.of(recorder.folder)
    place.at.append(lambda: check_whole(Place(place.path) / FOLDER, source))
    return place


def test_a_copy_is_equal_and_its_repetition_copies_nothing(recorder, target):
    first = copy_run(Place.of(recorder.run), target)
    assert equal(recorder.run, Path(target))
    sizes = [path.stat().st_size for path in recorder.run.rglob("*.*") if path.is_file()]
    assert first == Copied(len(sizes), sum(sizes))
    assert copy_run(Place.of(recorder.run), target) == Copied()


def test_only_what_changed_goes(recorder, target):
    copy_run(Place.of(recorder.run), target)
    recorder.append(b"more")
    assert copy_run(Place.of(recorder.run), target) == Copied(1, len(b"beguntwomore"))
    recorder.seal()
    again = copy_run(Place.of(recorder.run), target)
    # three sealed files, manifest, journal; two that are replaced go beside first
    assert again.files == 3 + 1 + 1 + 2 * len(REPLACED)
    assert equal(recorder.run, Path(target))
    assert copy_run(Place.of(recorder.run), target) == Copied()


def test_a_file_that_is_replaced_by_one_of_the_same_length_goes(recorder, target):
    copy_run(Place.of(recorder.run), target)
    recorder.seal()
    before = (Path(target) / FOLDER / "graph.json").read_bytes()
    copy_run(Place.of(recorder.run), target)
    after = (Path(target) / FOLDER / "graph.json").read_bytes()
    assert len(before) == len(after)
    assert before != after


def test_journals_go_in_their_order(recorder, target):
    copy_run(Place.of(recorder.run), target)
    recorder.append(b"more")
    for _ in range(3):
        recorder.begin()
    assert copy_run(Place.of(recorder.run), target).files == 4
    assert equal(recorder.run, Path(target))


def test_of_a_file_being_replaced_the_one_that_fits_goes(recorder, target):
    for file in REPLACED:
        path = recorder.folder / file
        path.rename(path.with_name(f"{file}.part"))
        path.write_bytes(b"the old one")
    copy_run(Place.of(recorder.run), target)
    for file in REPLACED:
        copied = (Path(target) / FOLDER / file).read_bytes()
        assert copied == recorder.sealed[file]


def test_what_retention_took_goes_from_the_copy(recorder, target):
    copy_run(Place.of(recorder.run), target)
    for _ in range(3):
        recorder.seal(keep=2)
    copy_run(Place.of(recorder.run), target)
    assert equal(recorder.run, Path(target))
    assert len(list((Path(target) / FOLDER / "rows/grad").iterdir())) == 2


@pytest.mark.parametrize("moment", range(1, 22))
def test_a_run_that_seals_meanwhile_is_copied_whole(recorder, target, moment):
    copy_run(Place.of(recorder.run), target)
    recorder.seal(keep=2)
    recorder.append(b"x")
    recorder.begin()
    recorder.begin()
    source = Watched(str(recorder.run))
    calls = 0

    def seal_now() -> None:
        nonlocal calls
        calls += 1
        if calls in (moment, moment + 3):
            recorder.append(b"before")
            recorder.seal(keep=2)

    source.at.append(seal_now)
    copy_run(source, target)
    assert copy_run(Place.of(recorder.run), target).files <= 10
    assert equal(recorder.run, Path(target))


@pytest.mark.parametrize("moment", range(1, 18))
def test_a_copy_that_was_killed_is_completed_by_the_next(recorder, target, moment):
    copy_run(Place.of(recorder.run), target)
    recorder.seal(keep=1)
    calls = 0

    def die() -> None:
        nonlocal calls
        calls += 1
        if calls == moment:
            raise KeyboardInterrupt

    target.at.append(die)
    with suppress(KeyboardInterrupt):
        copy_run(Place.of(recorder.run), target)
    target.at.remove(die)
    check_whole(Place(target.path) / FOLDER, Place.of(recorder.folder))
    copy_run(Place.of(recorder.run), target)
    assert equal(recorder.run, Path(target))


def test_a_run_that_never_stops_changing_is_given_up(recorder, target, monkeypatch):
    monkeypatch.setattr(copying, "LOOKS", 2)
    source = Watched(str(recorder.run))
    source.at.append(recorder.seal)
    with pytest.raises(GradwatchError, match="changes faster"):
        copy_run(source, target)


def test_damage_is_copied_and_counted(recorder, tmp_path):
    (recorder.folder / "rows/grad/00001.parquet").unlink()
    (recorder.folder / "scalars/00001.parquet").write_bytes(b"cut")
    target = tmp_path / "copy"
    assert copy_run(Place.of(recorder.run), Place.of(target)).lost == 1
    assert equal(recorder.run, target)


@pytest.mark.parametrize("damage", ["missing", "damaged"])
def test_without_a_sound_manifest_everything_found_goes(recorder, tmp_path, damage):
    if damage == "missing":
        (recorder.folder / manifests.NAME).unlink()
    else:
        (recorder.folder / manifests.NAME).write_bytes(b"{}")
    target = tmp_path / "copy"
    copy_run(Place.of(recorder.run), Place.of(target))
    assert equal(recorder.run, target)
    assert copy_run(Place.of(recorder.run), Place.of(target)) == Copied()


def test_what_is_not_ours_is_neither_copied_nor_removed(recorder, target, tmp_path):
    (recorder.run / "notes.txt").write_text("mine")
    (recorder.folder / "rows/grad/notes.txt").write_text("mine")
    (recorder.folder / "rows/grad/00009.parquet").symlink_to(tmp_path / "elsewhere")
    copy_run(Place.of(recorder.run), target)
    assert not list(Path(target).rglob("notes.txt"))
    (Path(target) / FOLDER / "keep.me").write_text("yours")
    other = Path(target) / "0001-0000-aaaaaaaa" / "rows" / "grad"
    other.mkdir(parents=True)
    (other / "00001.parquet").write_text("another rank's")
    recorder.seal()
    copy_run(Place.of(recorder.run), target)
    assert (Path(target) / FOLDER / "keep.me").read_text() == "yours"
    assert (other / "00001.parquet").read_text() == "another rank's"


def test_nothing_is_written_where_it_does_not_belong(recorder, tmp_path):
    run = Place.of(recorder.run)
    before = sorted(tmp_path.rglob("*"))
    for wrong in (recorder.run, recorder.run / "inside", tmp_path):
        with pytest.raises(GradwatchError, match=r"outside of the run|found other folders"):
            copy_run(run, Place.of(wrong))
    with pytest.raises(GradwatchError, match="Expected a run folder"):
        copy_run(Place.of(tmp_path), Place.of(tmp_path / "new"))
    assert sorted(tmp_path.rglob("*")) == before
    other = tmp_path / "other"
    other.mkdir()
    (other / "run.json").write_text('{"format": 3, "id": "another"}')
    with pytest.raises(GradwatchError, match="found another run"):
        copy_run(run, Place.of(other))
    assert copy_run(run, Place.of(other), force=True).files


def test_a_forged_manifest_reaches_nothing_outside(recorder, tmp_path):
    (tmp_path / "secret").write_text("secret")
    good = manifests.decode((recorder.folder / manifests.NAME).read_bytes())
    for file in ("../../secret", "../x", "/etc/passwd"):
        raw = manifests.encode(Manifest(files=(*good.files, entry(file, b"secret"))))
        (recorder.folder / manifests.NAME).write_bytes(raw)
        target = tmp_path / f"copy{len(file)}"
        copy_run(Place.of(recorder.run), Place.of(target))
        assert not list(target.rglob("*secret*"))
        assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == ["secret"]
