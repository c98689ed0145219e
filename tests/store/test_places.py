"""A run's folder looks the same wherever it lies, and what cannot be reached is said."""

import os
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.s3 import KEY, S3, SECRET, s3_server

from gradwatch.errors import Exit, GradwatchError
from gradwatch.files import paths_of
from gradwatch.store import remote
from gradwatch.store.places import Place, is_url


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    with s3_server() as server:
        yield server


@pytest.fixture(params=["local", "s3", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A folder that is not there yet."""
    name = f"runs/{tmp_path.name}"
    if request.param == "s3":
        return Place.of(request.getfixturevalue("s3").url(name))
    return Place.of(tmp_path / name if request.param == "local" else f"memory://{name}")


def sentence(given: str) -> str:
    """What a user is told who names this place."""
    with pytest.raises(GradwatchError) as caught:
        Place.of(given).files()
    assert caught.value.exit_code == Exit.UNREADABLE
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__
    text = str(caught.value)
    assert KEY not in text
    assert SECRET not in text
    assert "endpoint_override" not in text
    assert len(text) < 400
    return text


# -- everywhere ------------------------------------------------------------------------------------


def test_what_is_put_is_there(place):
    assert not place.exists()
    assert place.folders() == []
    assert place.files() == {}
    assert place.open("run.json") is None
    place.put("run.json", b"{}")
    place.put("0000-0000-1a2b3c4d/rows/grad/00001.parquet", b"0123456789")
    place.put("0000-0000-1a2b3c4d/empty", b"")
    assert place.exists()
    assert place.folders() == ["0000-0000-1a2b3c4d"]
    assert place.files() == {
        "run.json": 2,
        "0000-0000-1a2b3c4d/rows/grad/00001.parquet": 10,
        "0000-0000-1a2b3c4d/empty": 0,
    }
    below = place / "0000-0000-1a2b3c4d"
    assert below.name == "0000-0000-1a2b3c4d"
    assert str(below) == f"{place}/0000-0000-1a2b3c4d"
    assert below.exists()
    assert below.files() == {"rows/grad/00001.parquet": 10, "empty": 0}
    assert (below / "rows" / "grad").files() == {"00001.parquet": 10}
    assert below.open("rows") is None
    assert not (place / "run.json").exists()


@pytest.mark.parametrize("name", ["x.parquet", "journal-00001.gwj"])
def test_reads_are_of_ranges(place, name):
    place.put(name, b"0123456789")
    file = place.open(name)
    assert file.size == 10
    assert file.read(3, 0) == b"012"
    assert file.read(3, 4) == b"456"
    assert file.read(100, 8) == b"89"
    assert file.read(5, 10) == file.read(5, 99) == file.read(0, 3) == b""


def test_files_are_replaced_and_removed(place):
    place.put("a", b"123")
    place.put("b", b"123")
    mark = place.mark()
    assert place.mark() == mark
    time.sleep(1.1 if "s3://" in str(place) else 0.01)  # S3 tells whole seconds
    place.put("a", b"4567")
    assert place.mark() != mark
    assert place.open("a").read(9, 0) == b"4567"
    place.remove("a")
    place.remove("never there")
    assert place.files() == {"b": 3}


def test_a_file_that_goes_while_it_is_open_is_empty_or_as_it_was(place):
    place.put("x.parquet", b"0123456789")
    place.put("journal-00001.gwj", b"0123456789")
    table, journal = place.open("x.parquet"), place.open("journal-00001.gwj")
    assert journal.read(4, 0) == b"0123"
    place.remove("x.parquet")
    place.remove("journal-00001.gwj")
    assert table.read(4, 2) in (b"", b"2345")
    assert journal.read(100, 4) == b"456789"


def test_places_are_equal_sorted_and_named_by_where_they_are(place):
    assert place / "a" == place / "a"
    assert len({place / "a", place / "a", place / "b"}) == 2
    assert sorted([place / "b", place / "a"]) == [place / "a", place / "b"]
    assert Place.of(place) is place
    assert str(Place.of(paths_of(place)[0])) == str(place)
    assert os.fspath(place) == str(place)


# -- on this machine -------------------------------------------------------------------------------


def test_links_and_what_is_no_file_are_left_alone(tmp_path):
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    outside.mkdir()
    inside.mkdir()
    (outside / "secret").write_bytes(b"secret")
    (inside / "folder").symlink_to(outside)
    (inside / "file").symlink_to(outside / "secret")
    os.mkfifo(inside / "pipe")
    place = Place.of(inside)
    assert place.files() == {}
    assert place.folders() == []
    assert [place.open(name) for name in ("file", "pipe", "folder", "a\0b")] == [None] * 4
    with pytest.raises(GradwatchError, match="a link is in the way"):
        place.put("folder/new", b"")
    with pytest.raises(GradwatchError, match="found a link"):
        place.put("file", b"")
    assert (outside / "secret").read_bytes() == b"secret"
    assert [file.name for file in outside.iterdir()] == ["secret"]


def test_a_file_url_is_a_path(tmp_path):
    place = Place.of(f"file://{tmp_path}/with%20space")
    assert type(place) is Place
    assert str(place) == f"{tmp_path}/with space"


def test_paths_are_no_urls():
    assert is_url("s3://a")
    assert is_url("abfs+x.1-2://a")
    for path in ("runs/x", "/a", "C://x", "s3:/a", "://a", "a b://c", Path("s3://a"), 3, None):
        assert not is_url(path)


# -- elsewhere -------------------------------------------------------------------------------------


def test_journals_come_whole_and_other_files_by_ranges(s3):
    place = Place.of(s3.url("ranges"))
    place.put("journal-00001.gwj", bytes(1000))
    place.put("00001.parquet", bytes(100_000))
    s3.fetched.clear()
    journal, table = place.open("journal-00001.gwj"), place.open("00001.parquet")
    for offset in range(0, 1000, 40):
        assert journal.read(40, offset) == bytes(40)
    assert [size for _, size in s3.fetched] == [1000]
    s3.fetched.clear()
    table.read(300, 99_700)
    table.read(5000, 4)
    assert [size for _, size in s3.fetched] == [300, 5000]


def test_credentials_and_endpoint_may_be_in_the_environment(s3, monkeypatch):
    Place.of(s3.url("environment")).put("run.json", b"{}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{s3.port}")
    assert Place.of("s3://bucket/environment").files() == {"run.json": 2}


def test_credentials_are_never_shown(s3):
    place = Place.of(s3.url("runs/x/"))
    for shown in (str(place), f"{place}", os.fspath(place)):
        assert shown == "s3://bucket/runs/x"
    for shown in (repr(place), repr(place / "y"), repr(vars(place)), repr([place])):
        assert "bucket/runs/x" in shown
        assert KEY not in shown
        assert SECRET not in shown
        assert "endpoint" not in shown


@pytest.mark.parametrize(
    "url",
    [
        "nope://key:pass/word@host/x?token=hush",
        "nope://key:pa?ss@word@host/x",
        "nope://hush@host/x?a=pass#word",
    ],
)
def test_credentials_that_were_pasted_in_badly_are_not_shown_either(url):
    with pytest.raises(GradwatchError) as caught:
        Place.of(url)
    for part in ("key", "pass", "word", "hush", "ss@"):
        assert part not in str(caught.value)


def test_what_the_storage_refuses_is_said(s3):
    assert sentence(s3.url("x", bucket="nobody")) == (
        "Expected to reach 's3://nobody/x', but there is no such bucket; check its name."
    )
    assert sentence(s3.url("x", bucket="denied")) == (
        "Expected to reach 's3://denied/x', but access was refused; check the credentials in the "
        "environment."
    )
    denied = Place.of(s3.url("x", bucket="denied"))
    for ask in (denied.exists, denied.folders, lambda: denied.open("y"), denied.mark):
        with pytest.raises(GradwatchError, match="access was refused"):
            ask()
    with pytest.raises(GradwatchError, match="no such bucket"):
        Place.of(s3.url("x", bucket="nobody")).put("y", b"z")


def test_urls_that_nothing_opens_are_refused(monkeypatch):
    assert "got nope://…, which neither pyarrow nor fsspec opens" in sentence("nope://a/b")
    assert "Unexpected query parameter" in sentence(f"s3://{KEY}:{SECRET}@b/x?bogus={SECRET}")
    assert "but got" in sentence("s3:///x")
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    assert "`pip install fsspec`" in sentence("memory://x")
    monkeypatch.setitem(sys.modules, "pyarrow.fs", None)
    assert "`pip install pyarrow`" in sentence("s3://b/x")


def test_a_server_that_is_not_there_or_silent_is_given_up(s3, monkeypatch):
    monkeypatch.setattr(remote, "REQUEST_SECONDS", 1.0)
    silent = socket.create_server(("127.0.0.1", 0))
    begun = time.monotonic()
    with silent:
        for port in (1, silent.getsockname()[1]):
            assert "the server cannot be reached" in sentence(s3.url("x", port=port))
    assert time.monotonic() - begun < 15
