"""Files are whole or absent, and nothing is overwritten silently."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pytest

from gradwatch.errors import GradwatchError
from gradwatch.files import make_folder, paths_of, write_text, write_whole


def test_paths_are_one_or_several_and_nothing_else() -> None:
    assert paths_of("a") == paths_of(Path("a")) == [Path("a")]
    assert paths_of(["a", Path("b")]) == [Path("a"), Path("b")]
    for given in (None, 3.0, [1.0, 2.0], [None]):
        with pytest.raises(GradwatchError, match="Expected the path of a file or folder"):
            paths_of(given)


def test_a_file_in_the_way_is_refused_unless_forced(tmp_path: Path) -> None:
    target = tmp_path / "out.txt"
    assert write_whole(target, lambda file: file.write(b"first")) == 5
    with pytest.raises(GradwatchError, match=r"already exists.*--force"):
        write_whole(target, lambda file: file.write(b"second"))
    write_whole(target, lambda file: file.write(b"second"), force=True)
    assert target.read_bytes() == b"second"


def test_a_writer_that_fails_leaves_the_old_file_and_nothing_beside(tmp_path: Path) -> None:
    target = tmp_path / "out.txt"
    target.write_bytes(b"old")

    def half(file: BinaryIO) -> None:
        file.write(b"ha")
        raise OSError(28, "No space left on device")

    with pytest.raises(GradwatchError, match="No space left"):
        write_whole(target, half, force=True)
    assert target.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["out.txt"]


def test_links_and_folders_are_never_written_to(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for name in ("link", "."):
        with pytest.raises(GradwatchError, match="plain file"):
            write_whole(tmp_path / name, lambda file: file.write(b"x"), force=True)


def test_text_is_written_as_it_is_into_new_folders(tmp_path: Path) -> None:
    target = write_text(tmp_path / "a" / "b.txt", "ε\r\n")
    assert target.read_bytes() == "ε\r\n".encode()
    with pytest.raises(GradwatchError, match="overwrite=True"):
        write_text(target, "again")


@pytest.fixture
def umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.usefixtures("umask")
@pytest.mark.parametrize(
    ("user", "mode", "group", "alone"),
    [
        (0, 0o755, 0, True),  # root
        (1000, 0o755, 1000, False),
        (1000, 0o700, 1000, False),
        (1000, 0o1777, 0, True),  # as /tmp
        (1000, 0o707, 0, True),
        (1000, 0o770, 50, True),
        (1000, 0o770, 1000, False),  # the user's own group
        (1000, 0o750, 50, False),  # others may read, not write
    ],
)
def test_for_whom_runs_and_reports_are(
    user: int,
    mode: int,
    group: int,
    alone: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    os.chown(home, -1, group)
    home.chmod(mode)
    monkeypatch.setattr(os, "geteuid", lambda: user)
    write_whole(home / "report.html", lambda file: file.write(b"x"))
    write_text(home / "deeper/animation.json", "{}")
    make_folder(home / "copied")
    files = {stat.S_IMODE((home / "report.html").stat().st_mode)}
    folders = {stat.S_IMODE((home / name).stat().st_mode) for name in ("deeper", "copied")}
    assert (files, folders) == (({0o600}, {0o700}) if alone else ({0o644}, {0o755}))


def test_a_folder_that_cannot_be_is_no_endless_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(OSError, match="No such file"):
        make_folder(Path("a"))
