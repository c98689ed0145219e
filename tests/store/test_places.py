"""A run's folder reads the same wherever it lies; what cannot be reached is said, no secret is."""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.s3 import KEY, S3, SECRET, s3_server
from tests.store.trial import Trial, finishing_at

from gradwatch.cli.export import copy
from gradwatch.errors import Exit, GradwatchError
from gradwatch.run import EventKind
from gradwatch.stats import Family, Stat
from gradwatch.store import list_runs, open_run
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
    for hidden in (KEY, SECRET, "endpoint_override"):
        assert hidden not in text
    assert len(text) < 500
    assert "\n" not in text
    return text


# -- everywhere ------------------------------------------------------------------------------------


def test_a_copy_is_the_run(place: Place, tmp_path: Path) -> None:
    with finishing_at(20_000):
        trial = Trial(tmp_path / "source").steps(range(100), 25)
        assert not place.exists()
        assert place.folders() == []
        assert place.files() == {}
        assert place.read("run.json") is None
        copy(Place.of(trial.path), place)
        assert not open_run(place).info["complete"]
        trial.check(open_run(place))
        mark = place.mark()
        assert place.mark() == mark
        trial.steps(range(100, 150), 25).close()
    copy(Place.of(trial.path), place)
    assert place.exists()
    assert place.mark() != mark
    there = place.files()
    for file, size in Place.of(trial.path).files().items():
        assert there[file] == size
    run = open_run(place)
    assert run.info["complete"]  # streams that were copied before do not count beside Parquet
    assert not [event for event in run.events if event.kind is EventKind.DAMAGE]
    assert trial.check(run) > 1000
    (found,) = list_runs(place)
    assert found.name == "trial"
    back = Place.of(tmp_path / "back")
    copy(place, back)
    trial.check(open_run(back))


def test_ranks_and_attempts_are_put_together(place: Place, tmp_path: Path) -> None:
    for number, attempt in ((0, 0), (1, 0), (0, 1)):
        trial = Trial(tmp_path / "ranks", rank=number, world=2, seed=number)
        trial.steps(range(20 * attempt, 20 * attempt + 40)).close()
    copy(Place.of(tmp_path / "ranks"), place)
    here, there = open_run(tmp_path / "ranks"), open_run(place)
    assert len(place.folders()) == 3
    assert there.steps.tolist() == here.steps.tolist() == list(range(60))
    assert there.recorded == here.recorded
    for stat in here.recorded:
        assert np.array_equal(there.series[stat], here.series[stat], equal_nan=True)
        assert np.array_equal(there.state(stat), here.state(stat))
    assert [event.text for event in there.events] == [event.text for event in here.events]
    assert open_run([place, tmp_path / "ranks"]).steps.tolist() == list(range(60))


def test_nothing_to_read_is_a_sentence(place: Place) -> None:
    with pytest.raises(GradwatchError, match="Expected a run folder") as caught:
        open_run(place)
    assert SECRET not in str(caught.value)


# -- on this machine -------------------------------------------------------------------------------


def test_a_file_url_is_a_path(tmp_path: Path) -> None:
    place = Place.of(f"file://{tmp_path}/with%20space")
    assert not place.remote
    assert str(place) == f"{tmp_path}/with space"


def test_paths_are_no_urls() -> None:
    assert is_url("s3://a")
    assert is_url("abfs+x.1-2://a")
    for path in ("runs/x", "/a", "C://x", "s3:/a", "://a", "a b://c", Path("s3://a"), 3, None):
        assert not is_url(path)


# -- elsewhere -------------------------------------------------------------------------------------


def test_one_statistic_moves_a_part_of_the_run(s3: S3, tmp_path: Path) -> None:
    families = (Family.GRAD, Family.WEIGHT, Family.UPDATE, Family.OPTIM)
    trial = Trial(tmp_path / "large", tensors=100, families=families).steps(range(150))
    source, target = Place.of(trial.close()), Place.of(s3.url("large"))
    copy(source, target)
    total = sum(source.files().values())
    s3.fetched.clear()
    run = open_run(s3.url("large"))
    opened = s3.bytes()
    assert len(run.series[Stat.UPDATE_NORM]) == 150
    assert opened < 0.05 * total
    assert s3.bytes() < 0.2 * total


def test_credentials_may_be_in_the_environment(
    s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy(Place.of(Trial(tmp_path / "x").steps(range(3)).close()), Place.of(s3.url("environment")))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{s3.port}")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    assert len(open_run("s3://bucket/environment").steps) == 3


def test_credentials_are_never_shown(s3: S3) -> None:
    place = Place.of(s3.url("runs/x/"))
    for shown in (str(place), f"{place}", os.fspath(place)):
        assert shown == "s3://bucket/runs/x"
    for shown in (repr(place), repr(place / "y"), repr([place])):
        assert "bucket/runs/x" in shown
        for hidden in (KEY, SECRET, "endpoint"):
            assert hidden not in shown


@pytest.mark.parametrize(
    "url",
    [
        "nope://key:pass/word@host/x?token=hush",
        "nope://key:pa?ss@word@host/x",
        "nope://hush@host/x?a=pass#word",
    ],
)
def test_credentials_that_were_pasted_in_badly_are_not_shown_either(url: str) -> None:
    with pytest.raises(GradwatchError) as caught:
        Place.of(url)
    for part in ("key:", "pass", "word", "hush", "ss@"):
        assert part not in str(caught.value)


def test_what_the_storage_refuses_is_said(s3: S3) -> None:
    assert sentence(s3.url("x", bucket="denied")).startswith("Expected to reach 's3://denied/x', ")
    denied = Place.of(s3.url("x", bucket="denied"))
    for ask in (denied.folders, lambda: denied.read("y"), denied.mark, lambda: open_run(denied)):
        with pytest.raises(GradwatchError, match="Expected to reach") as caught:
            ask()
        assert KEY not in str(caught.value)
    with pytest.raises(GradwatchError, match="Expected to reach"):
        copy(Place.of(Path.cwd()), Place.of(s3.url("x", bucket="nobody")))


def test_urls_that_nothing_opens_are_refused() -> None:
    assert "nope" in sentence("nope://a/b")
    assert "'s3://b/x'" in sentence(f"s3://{KEY}:{SECRET}@b/x?bogus={SECRET}")
    assert "but got" in sentence("s3:///x")
