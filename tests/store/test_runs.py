"""Which run a person means."""

import json
from pathlib import Path

import pytest

from gradwatch.errors import GradwatchError
from gradwatch.store.places import Place
from gradwatch.store.runs import find_run

NAMES = ("mlp-small", "mlp-large", "vit", "gan")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    for number, name in enumerate(NAMES):
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        (folder / "run.json").write_text(json.dumps({"name": f"true {name}", "created": number}))
    (tmp_path / "runs" / "notes").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "run.json").write_text("{}")
    (tmp_path / "runs" / "loop").symlink_to(tmp_path / "other")
    monkeypatch.chdir(tmp_path)
    return Place.of("runs")


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("vit", "runs/vit"),
        ("runs/vit", "runs/vit"),
        ("other", "other"),
        ("true vit", "runs/vit"),
        ("small", "runs/mlp-small"),
        ("GAN", "runs/gan"),
        ("", "runs/gan"),  # the newest
        ("runs", "runs"),  # a folder, but no run: whoever opens it says so
    ],
)
def test_a_name_a_folder_a_part_or_nothing(typed: str, found: str, home: Place) -> None:
    assert str(find_run(typed, home)) == found


def test_a_whole_name_wins_over_longer_ones(home: Place, tmp_path: Path) -> None:
    (tmp_path / "runs" / "vit-2").mkdir()
    (tmp_path / "runs" / "vit-2" / "run.json").write_text("{}")
    assert str(find_run("vit", home)) == "runs/vit"


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("mlp", "fits 2: mlp-large and mlp-small. Say more"),
        ("mlp-smal1", "The nearest: mlp-small, mlp-large or "),
        ("notes", "found none"),
        ("loop", "found none"),
        ("../runs/nowhere", "found none"),
        ("x" * 5000, "xxx', found none"),  # longer than a file's name may be
    ],
)
def test_what_fits_several_or_none_is_refused(typed: str, words: str, home: Place) -> None:
    with pytest.raises(GradwatchError) as caught:
        find_run(typed, home)
    assert words in str(caught.value)


def test_without_any_run_the_sentence_says_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(GradwatchError, match="Record one with"):
        find_run("", Place.of(tmp_path))
