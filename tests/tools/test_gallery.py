"""The gallery is what its programs show: every check has one, and the pages are made from them."""

import json
from pathlib import Path

import pytest

from gradwatch.checks import CHECKS, Check
from gradwatch.checks.explain import blocks
from tools import gallery

KEPT = json.loads(gallery.PAGES.read_text("utf-8"))
QUICK = ("foreign-optimizer", "learning-rate-zero")
"""Run in `make test`: what is said of these holds no number that rounding could change."""
MOST_LINES = 16
LONGER = {"overpowering-discriminator": 24, "replica-divergence": 20}
"""Two networks, or two processes, cannot be told in fewer."""
MOST_BYTES = 15_000
each_check = pytest.mark.parametrize("check", CHECKS, ids=lambda check: str(check.NAME))


@each_check
def test_the_program_is_short_and_the_one_that_is_shown(check: Check) -> None:
    source = gallery.program_of(check.NAME).read_text("utf-8")
    sick, mended = gallery.versions(source)
    assert KEPT[check.NAME]["program"] == sick
    assert KEPT[check.NAME]["fix"] == gallery.fix(sick, mended)
    assert len(list(filter(str.strip, sick.splitlines()))) <= LONGER.get(check.NAME, MOST_LINES)
    assert sick != mended


@each_check
def test_the_page_is_what_is_kept(check: Check) -> None:
    page = (gallery.GALLERY / f"{check.NAME}.md").read_text("utf-8")
    assert page == gallery.page(check), "renew it: make gallery"
    for block in blocks(check.NAME):
        assert block.lines in page


@each_check
def test_the_picture_is_small_and_shows_both_runs(check: Check) -> None:
    drawn = (gallery.GALLERY / f"{check.NAME}.svg").read_text("utf-8")
    assert len(drawn.encode()) <= MOST_BYTES
    assert 'class="sick"' in drawn or "no value" in drawn
    assert 'class="mended"' in drawn


def test_the_index_names_every_check_and_nothing_is_left_over() -> None:
    index = (gallery.GALLERY / "index.md").read_text("utf-8")
    assert index == gallery.index(), "renew it: make gallery"
    names = {check.NAME for check in CHECKS}
    assert all(f"]({name}.md)" in index for name in names)
    assert KEPT.keys() == names
    assert {path.stem for path in gallery.GALLERY.glob("*.*")} == names | {"index"}
    assert set(gallery.PROGRAMS.glob("*.py")) == set(map(gallery.program_of, names))


@pytest.mark.parametrize(
    "check",
    [
        pytest.param(check, id=check.NAME, marks=[] if check.NAME in QUICK else pytest.mark.long)
        for check in CHECKS
    ],
)
def test_what_is_said_is_what_the_program_shows(check: Check, tmp_path: Path) -> None:
    gallery.both(check.NAME, tmp_path)
    shown = gallery.look(check, tmp_path).entry  # refuses what does not show its fault
    kept = KEPT[check.NAME]
    assert (shown["program"], shown["fix"]) == (kept["program"], kept["fix"])
    if check.NAME in QUICK:  # of the others another processor may round a digit differently
        assert shown["says"] == kept["says"]


def test_a_program_that_does_not_show_its_fault_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gallery, "PROGRAMS", tmp_path)
    (tmp_path / "dead_units.py").write_text("raise SystemExit('no such data')\n")
    with pytest.raises(gallery.NotShownError, match="the sick program fails: no such data"):
        gallery.both("dead-units", tmp_path / "runs")


def test_a_fix_replaces_removes_and_adds() -> None:
    source = "a = 1  # fix: a = 2\nb = 3  # fix:\nif a:\n    # fix: c = 4\n    d = 5  # kept\n"
    sick, mended = gallery.versions(source)
    assert sick == "a = 1\nb = 3\nif a:\n    d = 5  # kept"
    assert mended == "a = 2\nif a:\n    c = 4\n    d = 5  # kept"
    assert gallery.fix(sick, mended).splitlines() == [
        "- a = 1", "- b = 3", "+ a = 2", "  if a:", "+     c = 4", "      d = 5  # kept",
    ]  # fmt: skip
