"""Exported runs: CSV that no spreadsheet runs, JSON that strict parsers take, Parquet."""

import csv
import io
import json

import numpy as np
import pytest
from click.testing import CliRunner
from tests.store.trial import WAIT

from gradwatch.cli.main import gradwatch, main
from gradwatch.errors import Exit
from gradwatch.graph import Graph
from gradwatch.jsonio import loads
from gradwatch.run import Event, EventKind, Subject
from gradwatch.stats import Family, Kind, State, row_dtype
from gradwatch.store import Writer, open_run
from gradwatch.views.export import quoted

NASTY = ["=cmd|' /C calc'!A0", '+1"quoted",x', "-2\n3", "@x", "\tz", "plain\ud800", "a,b"]


@pytest.fixture
def run_path(tmp_path):
    writer = Writer.create(tmp_path / "runs" / "one", name="one\x1b[31m")
    ids = writer.declare([Subject(Kind.PARAMETER, name, "layer") for name in NASTY])
    rows = np.zeros(len(NASTY), row_dtype(Family.GRAD))
    rows["grad_norm"] = [-1.5, np.nan, np.inf, -np.inf, 0.0, 1e-300, 3.25]
    rows["grad_nan"] = 2**60 + 1
    states = np.zeros(len(NASTY), np.uint8)
    states[4] = State.NO_GRADIENT
    for step in range(3):
        writer.put(Family.GRAD, step, ids, rows, states)
    writer.scalars(1, {"=loss": 0.5})
    writer.event(Event(1, EventKind.AUDIT, "an event", data={"x": 1}))
    assert writer.close(WAIT)
    return tmp_path / "runs" / "one"


def export(*arguments):
    result = CliRunner().invoke(gradwatch, ["export", *map(str, arguments)])
    assert result.exit_code == 0, result.output + repr(result.exception)


def test_csv(run_path, tmp_path):
    export(run_path, "-o", tmp_path / "x.csv")
    raw = (tmp_path / "x.csv").read_bytes()
    lines = list(csv.DictReader(io.StringIO(raw.decode(), newline="")))
    norms = [line for line in lines if line["statistic"] == "grad_norm" and line["step"] == "0"]
    assert len(norms) == len(NASTY)
    assert [line["value"] for line in norms] == ["-1.5", "nan", "inf", "-inf", "", "1e-300", "3.25"]
    assert norms[4]["state"] == "no_gradient"
    for line in lines:
        for cell in (line["name"], line["statistic"], line["kind"]):
            assert not cell.startswith(("=", "+", "-", "@", "\t", "\r", "\0"))
    assert norms[0]["name"] == "'" + NASTY[0]
    nans = [line for line in lines if line["statistic"] == "grad_nan"]
    assert int(nans[0]["value"]) == 2**60 + 1
    assert [line["value"] for line in lines if line["kind"] == "scalar"] == ["0.5"]


def test_csv_exact_names(run_path, tmp_path):
    export(run_path, "-o", tmp_path / "x.csv", "--exact-names", "--stat", "grad_norm")
    lines = list(csv.DictReader(io.StringIO((tmp_path / "x.csv").read_text(), newline="")))
    names = [line["name"] for line in lines if line["step"] == "0" and line["kind"] != "scalar"]
    assert names[0] == NASTY[0]
    assert {line["statistic"] for line in lines} == {"grad_norm", "=loss"}


def test_quoting():
    assert quoted('a"b') == '"a""b"'
    assert quoted("=1") == '"\'=1"'


def test_json_is_strict_and_comes_back(run_path, tmp_path):
    export(run_path, "-o", tmp_path / "x.json")
    text = (tmp_path / "x.json").read_text()

    def refuse(word):
        raise AssertionError(word)

    json.loads(text, parse_constant=refuse)
    back, run = loads(text), open_run(run_path)
    assert tuple(Subject.from_dict(item) for item in back["subjects"]) == tuple(run.subjects)
    assert back["steps"] == run.steps.tolist()
    for stat in run.series:
        series = back["series"][stat]
        values = np.array(series["values"], float)  # None becomes NaN
        assert np.array_equal(values, run.series[stat], equal_nan=True), stat
        assert series["states"] == run.state(stat).tolist()
    exact = np.where(run.measured("grad_nan"), run.integers("grad_nan"), None)
    assert back["series"]["grad_nan"]["values"] == exact.tolist()
    assert np.array_equal(
        np.array(back["scalars"]["=loss"], float), run.scalars["=loss"], equal_nan=True
    )
    events = [Event(**{**item, "kind": EventKind(item["kind"])}) for item in back["events"]]
    assert events == list(run.events)
    assert Graph.from_dict(back["graph"]) == run.graph


def test_parquet(run_path, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    export(run_path, "-o", tmp_path / "x.parquet")
    table = parquet.read_table(tmp_path / "x.parquet").to_pylist()
    norms = [row for row in table if row["statistic"] == "grad_norm" and row["step"] == 2]
    assert [row["value"] for row in norms][:1] + [row["value"] for row in norms][5:] == [
        -1.5,
        1e-300,
        3.25,
    ]
    assert norms[4]["value"] is None
    assert norms[4]["state"] == "no_gradient"
    assert next(row["whole"] for row in table if row["statistic"] == "grad_nan") == 2**60 + 1


def test_parquet_opens_in_pandas_and_polars(run_path, tmp_path):
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    export(run_path, "-o", tmp_path / "x.parquet")
    one, other = (
        pandas.read_parquet(tmp_path / "x.parquet"),
        polars.read_parquet(tmp_path / "x.parquet"),
    )
    assert len(one) == len(other) > 0
    chosen = one[(one["statistic"] == "grad_norm") & (one["step"] == 2)]["value"].dropna().tolist()
    rows = other.filter((polars.col("statistic") == "grad_norm") & (polars.col("step") == 2))
    assert rows["value"].drop_nulls().drop_nans().to_list() == chosen  # pandas drops NaN as well
    assert -1.5 in chosen
    assert 2**60 + 1 in other["whole"].drop_nulls().to_list()


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["-o", "x.txt"], Exit.USAGE),
        (["-o", "x.csv", "--stat", "nonsense"], Exit.USAGE),
        (["-o", "taken.csv"], Exit.USAGE),
    ],
)
def test_refusals(run_path, tmp_path, monkeypatch, capsys, words, code):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken.csv").write_text("mine")
    with pytest.raises(SystemExit) as caught:
        main(["export", str(run_path), *words])
    assert caught.value.code == code
    assert capsys.readouterr().err.startswith("gradwatch: ")
    assert (tmp_path / "taken.csv").read_text() == "mine"


def test_a_missing_run(tmp_path, capsys):
    with pytest.raises(SystemExit) as caught:
        main(["export", str(tmp_path / "none"), "-o", str(tmp_path / "x.csv")])
    assert caught.value.code == Exit.UNREADABLE
    assert "found none" in capsys.readouterr().err


def test_runs_are_listed_and_deleted(run_path, tmp_path):
    runs = run_path.parent
    listed = json.loads(CliRunner().invoke(gradwatch, ["runs", str(runs), "--json"]).stdout)
    assert [(item["name"], item["steps"]) for item in listed["runs"]] == [("one\x1b[31m", 3)]
    assert listed["runs"][0]["state"] == "complete"
    shown = CliRunner().invoke(gradwatch, ["runs", str(runs)]).stdout
    assert "one" in shown
    assert "\x1b" not in shown
    refused = CliRunner().invoke(gradwatch, ["runs", str(runs), "--delete", "one"], input="n\n")
    assert "Nothing was deleted" in refused.output
    assert run_path.exists()
    CliRunner().invoke(gradwatch, ["runs", str(runs), "--delete", "one"], input="y\n")
    assert not run_path.exists()


def test_only_runs_are_deleted(tmp_path, capsys):
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("x")
    with pytest.raises(SystemExit):
        main(["runs", str(tmp_path), "--delete", "precious", "--yes"])
    assert (tmp_path / "precious" / "file").exists()


def test_one_damaged_run_among_others(run_path):
    (run_path.parent / "two").mkdir()
    (run_path.parent / "two" / "run.json").write_text("{")
    listed = json.loads(
        CliRunner().invoke(gradwatch, ["runs", str(run_path.parent), "--json"]).stdout
    )
    assert {item["name"]: item["state"] for item in listed["runs"]} == {
        "one\x1b[31m": "complete",
        "two": "cannot be read",
    }
