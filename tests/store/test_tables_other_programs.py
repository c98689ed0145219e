"""duckdb, polars and pandas read what `Run` reads: finished, growing and killed runs."""

import contextlib
import glob
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import duckdb
import numpy as np
import pandas
import polars
import pyarrow as pa
import pytest
from tests.store.trial import Trial

from gradwatch.run import Run
from gradwatch.stats import Family, State
from gradwatch.store import open_run

pytest.importorskip("torch")  # real trainings write what is read here
ROOT = Path(__file__).parents[2]
WAIT = 120.0
TRAINING = """
import sys
import torch
import gradwatch
from gradwatch.store import writer
writer.PART_ROWS = 400
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
watcher = gradwatch.watch(model, optimizer, run=sys.argv[1], every=1)
for step in range(int(sys.argv[2])):
    optimizer.zero_grad()
    loss = model(torch.randn(16, 8)).square().mean()
    loss.backward()
    if step == 7:
        model[2].bias.grad.fill_(float("nan"))
    optimizer.step()
    if step == 7:
        torch.nn.init.zeros_(model[2].bias)
    watcher.log(loss=loss.item())
watcher.close()
"""


def test_recording_and_reading_import_no_pandas(tmp_path: Path) -> None:
    """It takes a second and 40 MB, and its import would run in the thread that writes."""
    code = (
        "from gradwatch.store import open_run\n"
        "run = open_run(sys.argv[1])\n"
        "assert [run.series[stat].size for stat in run.series] and run.scalars['loss'].size\n"
        "print(len(run.histograms('grad', run.names[0])), 'pandas' in sys.modules)\n"
    )
    command = [sys.executable, "-c", TRAINING + code, str(tmp_path / "run"), "300"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=WAIT)
    assert re.fullmatch(r"[1-9]\d* False\n", done.stdout), done.stdout + done.stderr


def start(path: Path, steps: int) -> subprocess.Popen:
    command = [sys.executable, "-c", TRAINING, str(path), str(steps)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def await_rows(path: Path, files: int, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + WAIT
    while len([*path.glob("**/rows/grad/*.parquet")]) < files:
        assert process.poll() is None, process.stdout.read()[-2000:]
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("finished") / "runs" / "NAME"
    process = start(path, 350)
    output, _ = process.communicate(timeout=WAIT)
    assert process.returncode == 0, output
    return path


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, list[int]]]:
    """A run that was read again and again while it grew, then killed; how many rows were seen."""
    path = tmp_path_factory.mktemp("killed") / "runs" / "NAME"
    process = start(path, 1_000_000)
    seen: dict[str, list[int]] = {program: [] for program in READERS}
    try:
        await_rows(path, 1, process)
        for _ in range(3):
            for program, read in READERS.items():
                cells = read(path)
                compare(cells, open_run(path))
                seen[program].append(len(cells))
            await_rows(path, len([*path.glob("**/rows/grad/*.parquet")]) + 1, process)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert process.returncode == -signal.SIGKILL
    return path, seen


@pytest.fixture(scope="module")
def killed(watched: tuple[Path, dict[str, list[int]]]) -> Path:
    return watched[0]


@pytest.fixture(params=["finished", "killed"])
def path(request: pytest.FixtureRequest) -> Path:
    return request.getfixturevalue(request.param)


Cells = dict[tuple[int, str], tuple[int, float | None]]
"""State and norm by step and name."""


def read_duckdb(path: Path) -> Cells:
    query = f"select step, name, state, grad_norm from '{path}/**/rows/grad/*.parquet'"
    return _cells(duckdb.sql(query).fetchall())


def read_polars(path: Path) -> Cells:
    rows = polars.scan_parquet(f"{path}/**/rows/grad/*.parquet")
    return _cells(rows.select("step", "name", "state", "grad_norm").collect().rows())


def read_pandas(path: Path) -> Cells:
    rows = pandas.concat(pandas.read_parquet(file) for file in path.glob("**/rows/grad/*.parquet"))
    return _cells(rows[["step", "name", "state", "grad_norm"]].itertuples(index=False))


def _cells(rows) -> Cells:
    cells: Cells = {}
    for step, name, state, norm in rows:
        assert (step, name) not in cells, "a row is there twice"
        missing = norm is None or (norm != norm and state not in (0, 5, 6, 7))
        cells[int(step), name] = int(state), None if missing else float(norm)
    return cells


READERS = {"duckdb": read_duckdb, "polars": read_polars, "pandas": read_pandas}


def compare(cells: Cells, run: Run) -> int:
    """Every cell is that of `Run`; how many have a number."""
    norm, state = run.series["grad_norm"], run.state("grad_norm")
    row = {step: at for at, step in enumerate(run.steps.tolist())}
    column = {name: at for at, name in enumerate(run.names)}
    numbers = 0
    for (step, name), (found_state, found) in cells.items():
        at = row[step], column[name]
        assert state[at] == found_state
        assert np.array_equal(norm[at], np.nan if found is None else found, equal_nan=True)
        numbers += found is not None
    return numbers


@pytest.mark.parametrize("program", READERS)
def test_the_numbers_of_a_run(path: Path, program: str) -> None:
    run, cells = open_run(path), READERS[program](path)
    assert {name for _, name in cells} == set(run.names)
    assert compare(cells, run) > 300
    if run.info["complete"]:
        assert len(cells) == (run.state("grad_norm") != State.NOT_SAMPLED).sum() > 1200


@pytest.mark.parametrize("program", READERS)
def test_a_run_that_grows(watched: tuple[Path, dict[str, list[int]]], program: str) -> None:
    """It got longer while it was read, and was never wrong."""
    seen = watched[1][program]
    assert seen == sorted(seen)
    assert 0 < seen[0] < seen[-1]


def test_the_newest_rows_are_in_the_stream(killed: Path) -> None:
    """As docs/format.md says: what is finished and the whole batches of the stream are all rows."""
    run, cells = open_run(killed), read_polars(killed)
    rows = []
    for stream in killed.glob("*/rows/grad/*.arrows"):
        with pa.OSFile(str(stream)) as file, contextlib.suppress(pa.ArrowInvalid):  # cut off
            for batch in pa.ipc.open_stream(file):
                rows += batch.select(["step", "subject"]).to_pylist()
    newest = {(row["step"], run.names[row["subject"]]) for row in rows}
    assert not newest & cells.keys()
    there = run.state("grad_norm") != State.NOT_SAMPLED
    known = [cell for cell in newest if cell[0] in run.steps]
    assert len(cells) + len(known) == there.sum()


def test_ranks_and_attempts_are_columns(tmp_path: Path) -> None:
    for rank, begin in ((0, 0), (1, 0), (0, 20)):
        trial = Trial(tmp_path / "run", rank=rank, world=2, families=(Family.GRAD,))
        trial.steps(range(begin, begin + 30)).close()
    found = duckdb.sql(
        f"select rank, attempt, count(*), min(step), max(step), count(distinct name) "
        f"from '{tmp_path}/run/**/rows/grad/*.parquet' group by all order by all"
    ).fetchall()
    assert found == [(0, 0, 120, 0, 29, 4), (0, 1, 120, 20, 49, 4), (1, 0, 120, 0, 29, 4)]
    named = polars.scan_parquet(f"{tmp_path}/run/**/coarse/grad/*.parquet").collect()
    assert set(named["name"]) == {subject.name for subject in trial.subjects}


# -- the queries of the page -----------------------------------------------------------------------


def queries() -> Iterator[tuple[str, str]]:
    """Language and text of each query in docs/format.md, in order."""
    page = (ROOT / "docs" / "format.md").read_text()
    section = page.partition("## Other programs")[2].partition("\n## ")[0]
    yield from re.findall(r"```(\w+)\n(.*?)```", section, flags=re.DOTALL)


@pytest.fixture
def in_its_folder(path: Path) -> Iterator[Path]:
    before = Path.cwd()
    os.chdir(path.parent.parent)
    yield path
    os.chdir(before)


def evaluated(query: str):
    """What the last expression of a query gives, after the statements before it."""
    names = {"polars": polars, "pandas": pandas, "glob": glob}
    *statements, last = re.split(r"\n(?=\S)", query.strip().replace("\n)", "\n )"))
    exec("\n".join(statements), names)
    return eval(last, names)


def test_there_are_three_queries() -> None:
    assert [language for language, _ in queries()] == ["sql", "python", "python"]


def test_the_query_of_duckdb(in_its_folder: Path) -> None:
    (_, query), _, _ = queries()
    found = dict(duckdb.sql(query).fetchall())
    run, cells = open_run(in_its_folder), read_duckdb(in_its_folder)
    assert set(found) == set(run.names)
    for name, largest in found.items():
        norms = [norm for (_, other), (_, norm) in cells.items() if other == name]
        assert largest == max(norm for norm in norms if norm is not None and norm == norm)


def test_the_query_of_polars(in_its_folder: Path) -> None:
    _, (_, query), _ = queries()
    found = evaluated(query)
    assert found.columns == ["step", "name", "rank"]
    run, cells = open_run(in_its_folder), read_polars(in_its_folder)
    odd = run.series["grad_nan"] + run.series["grad_inf"] > 0
    wanted = [(int(run.steps[at]), run.names[column]) for at, column in np.argwhere(odd)]
    assert wanted[0] == (7, "2.bias")
    assert sorted(found.select("step", "name").rows()) == [cell for cell in wanted if cell in cells]


def test_the_query_of_pandas(in_its_folder: Path) -> None:
    _, _, (_, query) = queries()
    table = evaluated(query)
    run = open_run(in_its_folder)
    assert {*table.columns} == {*run.names}
    for step, row in table.iterrows():
        (at,) = np.flatnonzero(run.steps == step)
        for name, value in row.items():
            assert np.array_equal(value, run.column("grad_norm", name)[at], equal_nan=True)
