"""The commands show, report and animate on run folders."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.views.samples import HOSTILE, network
from tests.views.stored import Stored, stored

from gradwatch.cli.main import gradwatch, main
from gradwatch.cli.show import growing


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stored(network(5, 60, fading=True), tmp_path_factory.mktemp("runs") / "one", "one")


def called(*words: str | Path) -> Result:
    return CliRunner().invoke(gradwatch, [str(word) for word in words], catch_exceptions=False)


def test_show_fits_eighty_columns_and_obeys_no_color(folder: Path) -> None:
    environment = {**os.environ, "NO_COLOR": "1", "COLUMNS": "80"}
    done = subprocess.run(
        [sys.executable, "-m", "gradwatch", "show", str(folder)],
        capture_output=True,
        text=True,
        env=environment,
        check=True,
        timeout=120,
    )
    assert "\x1b" not in done.stdout
    assert max(len(line) for line in done.stdout.splitlines()) <= 80
    assert "net.0" in done.stdout


def test_show_can_look_at_the_last_steps(folder: Path) -> None:
    model = json.loads(called("show", folder, "--json", "--last", "10").stdout)
    assert model["window"] == [50, 59]
    assert "step 50" in called("show", folder, "--last", "10").stdout


def test_show_lists_signals(folder: Path) -> None:
    text = called("show", folder, "--signals").stdout
    assert "update_ratio" in text
    assert "every 4k steps" in text


def test_follow_ends_when_the_run_is_complete(folder: Path) -> None:
    assert "net.0" in called("show", folder, "--follow").stdout


def test_a_growing_run_is_seen_to_grow(tmp_path: Path) -> None:
    writing = Stored(network(3, 30), tmp_path / "one", "one")
    writing.upto(10)
    waits = iter([lambda: writing.upto(20), lambda: None, writing.finish])
    grown = growing(tmp_path / "one", wait=lambda _: next(waits)())
    assert [len(run.steps) for run in grown] == [10, 20, 30]


def test_an_unknown_statistic_or_run_is_said_with_its_code(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, code in (
        (["show", str(folder), "--stat", "nonsense"], 2),
        (["show", str(tmp_path / "none")], 3),
        (["report", str(tmp_path / "none"), "-o", str(tmp_path / "r.html")], 3),
        (["serve", str(tmp_path / "none")], 3),
        (["serve", str(tmp_path), "--host", "0.0.0.0"], 2),
        (["serve", str(tmp_path), "--host", "192.0.2.1"], 2),
    ):
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == code, words
        assert capsys.readouterr().err


def test_report_writes_one_file_and_never_over_another(folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "r.html"
    assert called("report", folder, "-o", target).exit_code == 0
    text = target.read_text()
    assert "http://" not in text.replace("http://www.w3.org", "")
    assert "default-src 'none'" in text.replace("&#x27;", "'")
    before = target.read_bytes()
    with pytest.raises(SystemExit) as ended:
        main(["report", str(folder), "-o", str(target)])
    assert ended.value.code == 2
    assert target.read_bytes() == before
    assert called("report", folder, "-o", target, "--force").exit_code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["r.html"]


def test_a_report_of_500_tensors_stays_under_two_megabytes(tmp_path: Path) -> None:
    names = [f"model.layers.{i}.part{j}" for i in range(50) for j in range(5)]
    stored(network(names=names, steps=400), tmp_path / "big", "big")
    called("report", tmp_path / "big", "-o", tmp_path / "r.html")
    assert (tmp_path / "r.html").stat().st_size < 2_000_000


def test_no_hostile_name_breaks_out_of_the_report(tmp_path: Path) -> None:
    from gradwatch.views.model import build
    from gradwatch.views.page import report

    for name in HOSTILE:
        run = network(names=[name, "other"], steps=3)
        text = report(build(run))
        assert text.count("<script") == 2
        assert text.lower().count("</script") == 2
        text.encode()


def test_animate_writes_what_the_ending_says(folder: Path, tmp_path: Path) -> None:
    for ending in ("gif", "html", "txt"):
        target = tmp_path / f"flow.{ending}"
        done = called("animate", folder, "-o", target, "--frames", "10", "--colours", "cividis")
        assert done.exit_code == 0
        assert target.stat().st_size > 1000


def test_follow_shows_a_run_while_it_grows(tmp_path: Path) -> None:
    writing = Stored(network(3, 30), tmp_path / "one", "one")
    writing.upto(10)
    following = subprocess.Popen(
        [sys.executable, "-m", "gradwatch", "show", str(tmp_path / "one"), "--follow"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "80", "NO_COLOR": "1"},
    )
    try:
        writing.finish()
        out, _ = following.communicate(timeout=120)
    finally:
        following.kill()
    assert following.returncode == 0
    assert "3 layers, 30 steps" in " ".join(out.split())
