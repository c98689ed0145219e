"""No command ends with a traceback: whatever is odd about its input, a sentence and exit code 3."""

import json
import math
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.checkpoints.files import safetensors_bytes

from gradwatch.cli import explain, runs
from gradwatch.cli.main import gradwatch, main
from gradwatch.diagnosis import Diagnosis, diagnose
from gradwatch.run import Run
from gradwatch.store.layout import SCALAR_BIT, SCALARS, STEPS, packed, schemas
from gradwatch.store.tables import parquet

ODD = [10**400, math.inf, math.nan, -1, "x", [10**400], None]
ERRORS = [
    OverflowError("int too large to convert to float"),
    RecursionError("maximum recursion depth exceeded"),
    MemoryError(),
    OSError(5, "Input/output error", "a\x1b[2Jb"),
    UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed"),
    ValueError("first\nsecond \x1b]0;pwned\x07"),
]


def ended(words: list[str]) -> int | str | None:
    with pytest.raises(SystemExit) as end:
        main(words)
    return end.value.code


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_fault_is_one_sentence(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(check: str | None) -> str:
        raise error

    monkeypatch.setattr(explain, "page", fail)
    assert ended(["explain"]) == 3
    said = capsys.readouterr().err
    assert said.startswith("gradwatch: ")
    assert said.count("\n") == 1
    assert "Traceback" not in said
    assert "\x1b" not in said
    monkeypatch.setenv("GRADWATCH_DEBUG", "1")
    assert ended(["explain"]) == 3
    said = capsys.readouterr().err
    assert "Traceback (most recent call last)" in said
    assert "\x1b" not in said


def hostile(run: Path, what: str, value: Any) -> None:
    """A run with one value in it that no recorder writes."""
    layer = {"kind": "layer", "name": "a", "layer": "a"}
    weight = {**layer, "kind": "parameter", "name": "a.weight", "shape": [2, 2], "count": 4}
    event = {"kind": "cost", "text": "t", "step": 1, "wall": 1.0}
    notes: dict[str, Any] = {}
    document: dict[str, Any] = {"format": 4, "name": run.name, "created": 1e9}
    for part in (weight, event, document):
        part.update({what: value} if what in part or (part is weight and what == "order") else {})
    if what == "notes":
        notes = dict.fromkeys(("classes", "batches", "chance", "inputs", "versions"), value)
    lines = {
        "subjects": [[0, weight], [1, layer]],
        "note": notes,
        "event": event,
        "closed": {},
    }
    folder = run / "0000-0000-00000000"
    folder.mkdir(parents=True)
    (folder / "log.jsonl").write_bytes(b"".join(packed(*line) for line in lines.items()))
    tables = {
        STEPS: [range(6), [SCALAR_BIT] * 6],
        SCALARS: [range(6), ["loss"] * 6, [1.0] * 6],
    }
    for table, columns in tables.items():
        (folder / table).mkdir()
        rows = pa.table(columns, schema=schemas()[table])
        (folder / table / "00001-0.parquet").write_bytes(parquet(rows))
    (run / "run.json").write_text(json.dumps(document))


FIELDS = ("created", "wall", "count", "shape", "order", "notes", "name")
RUN = ("show", "diagnose --json")
MORE = ("diagnose", "show --json", "analyze", "export -o x.json --force", "report --force")


@pytest.mark.parametrize(
    "line", [*RUN, *(pytest.param(line, marks=pytest.mark.security) for line in MORE)]
)
def test_numbers_that_no_field_holds(
    line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for number, value in enumerate(ODD if line in MORE else ODD[:2]):
        for what in FIELDS:
            hostile(Path(f"{what}{number}"), what, value)
            command, *options = line.split()
            code = ended([command, f"{what}{number}", *options])
            said = capsys.readouterr()
            assert code in (0, 1, 3), (what, value, said.err)
            assert "Traceback" not in said.err
            if code == 3:
                assert said.err.startswith("gradwatch: ")
                assert said.err.count("\n") == 1
            else:
                assert "--json" not in options or json.loads(said.out)


def test_one_bad_run_hides_no_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, value in enumerate(ODD):
        for what in ("created", "wall", "count", "notes"):
            hostile(tmp_path / f"{what}{number}", what, value)
    (tmp_path / "nothing").mkdir()
    (tmp_path / "nothing/run.json").write_text("{")
    assert ended(["runs", str(tmp_path), "--quick"]) == 0
    said = capsys.readouterr()
    assert len(said.out.splitlines()) == 1 + 4 * len(ODD) + 1
    assert said.out.count("cannot be read") == 1
    assert said.err == ""


def test_a_fault_in_one_run_hides_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two"):
        hostile(tmp_path / name, "name", name)

    def fails(run: Run) -> Diagnosis:
        if run.info["name"] == "one":
            raise OverflowError
        return diagnose(run)

    monkeypatch.setattr(runs, "diagnose", fails)
    assert ended(["runs", str(tmp_path), "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["runs"]
    assert {item["name"]: item["state"] for item in listed} == {
        "one": "cannot be read",
        "two": "complete",
    }


def test_odd_floats_make_no_warnings(tmp_path: Path) -> None:
    info = np.finfo("<f8")
    odd = np.array([info.max, -info.max, info.tiny, 5e-324, np.inf, -np.inf, np.nan, -0.0, 1])
    bits = np.array([0x7FF0000000000001, 0xFFF0000000000001], "<u8")  # signalling
    pool = np.concatenate([odd, bits.view("<f8")])
    parts = {f"{n}.weight": np.resize(pool[n:], 36).tobytes() for n in range(len(pool))}
    parts["single"] = np.array([0x7F800001, 0x7F7FFFFF] * 18, "<u4").tobytes()
    head, data = {}, b""
    for name, raw in parts.items():
        kind = {"dtype": "F64" if len(raw) == 288 else "F32", "shape": [6, 6]}
        head[name] = {**kind, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    for name, values in (("one", data), ("two", data[::-1])):
        (tmp_path / f"{name}.safetensors").write_bytes(safetensors_bytes(head, values))
    one, two = (str(tmp_path / f"{name}.safetensors") for name in ("one", "two"))
    page = str(tmp_path / "page.html")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for words in (["weights", one, two, "--spectrum", "-o", page], ["drift", one, two]):
            gradwatch.main([*words, "--workers", "0"], standalone_mode=False)


@pytest.mark.parametrize("both", [False, pytest.param(True, marks=pytest.mark.security)])
@pytest.mark.parametrize(
    "line",
    [
        "doctor --help",
        *(
            pytest.param(line, marks=pytest.mark.security)
            for line in (
                "show one",
                "explain",
                "diagnose one --json",
                "runs",
                "runs --json",
                "--help",
            )
        ),
    ],
)
def test_a_reader_that_leaves_is_no_finding(line: str, both: bool, tmp_path: Path) -> None:
    """`gradwatch … | head`: the code is that of the command, however little of it was read."""
    hostile(tmp_path / "runs" / "one", "name", "one")
    reader, pipe = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "gradwatch", *line.split()],
        stdout=pipe,
        stderr=pipe if both else subprocess.PIPE,
        cwd=tmp_path,
        check=False,
    )
    os.close(pipe)
    assert (done.returncode, done.stderr or b"") == (0, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no such device")
def test_a_full_disk_is_said(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "gradwatch", "completion", "bash"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 3
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr
