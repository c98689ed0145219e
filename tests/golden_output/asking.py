"""Runs every command on what `making` made: groups of questions, each with its masked answer.

An answer is a text or a JSON value. Commands run in this process through the program's own `main`,
80 columns wide; only `serve` is a process, asked over HTTP.
"""

import contextlib
import csv
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import httpx
from tests.golden_output.masking import compact, masked_data, masked_text
from tests.server.visiting import opened, visitor

import gradwatch
from gradwatch.cli.main import COMMANDS, main

RUNS = ("healthy", "sick", "killed", "damaged", "ranks", "long")
CHECKPOINTS = (
    "healthy.safetensors",
    "sick.pt",
    "old.pth",
    "after.npz",
    "sharded",
    "dcp",
    "hostile.bin",
    "cut.safetensors",
)
REFUSED = ("hostile.bin", "cut.safetensors")
SPECTRA = ("healthy.safetensors", "sick.pt")
DRIFTS = {
    "moved": ("healthy.safetensors", "after.npz"),
    "still": ("healthy.safetensors", "healthy.safetensors"),
    "adapter": ("healthy.safetensors", "adapter"),
    "sick": ("sharded", "sick.pt"),
    "refused": ("healthy.safetensors", "hostile.bin"),
}
ENVIRONMENT = {"COLUMNS": "80", "LINES": "24", "NO_COLOR": "1", "TERM": "dumb", "TZ": "UTC"}

SAME = "as in report.json"

Answers = dict[str, Any]
"""By the name of the file that keeps it: `.txt` for a text, `.json` for data."""


def answers(group: str, folder: Path) -> Answers:
    """Everything asked in a group, as it is kept."""
    folder = folder.resolve()
    with _inside(folder):
        kind, _, name = group.partition("/")
        found = GROUPS_OF[kind](name)
        return {
            name: masked_text(value, folder)
            if isinstance(value, str)
            else compact(masked_data(value, folder))
            for name, value in found.items()
        }


def groups() -> list[str]:
    """The names of all groups; each is a folder under `expected`."""
    return [
        "program",
        "explain",
        "serve",
        "drift",
        *(f"run/{name}" for name in RUNS),
        *(f"checkpoint/{name}" for name in CHECKPOINTS),
    ]


@contextlib.contextmanager
def _inside(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        with mock.patch.dict(os.environ, ENVIRONMENT):
            os.environ.pop("FORCE_COLOR", None)
            yield
    finally:
        os.chdir(before)


# -- one command -----------------------------------------------------------------------------------


def ran(*arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of `gradwatch ARGUMENTS`."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(list(arguments))
        except SystemExit as end:
            return int(end.code or 0), out.getvalue(), err.getvalue()
    raise AssertionError("the program ends by exiting")


def text(*arguments: str) -> str:
    """As a person at a terminal would see it, with the exit code below."""
    code, out, err = ran(*arguments)
    parts = [f"$ gradwatch {' '.join(arguments)}\n", out]
    if err:
        parts.append(f"--- standard error\n{err}")
    return "".join(parts) + f"--- exit code {code}\n"


def data(*arguments: str) -> Any:
    """The JSON a command prints, with its exit code; what was said instead, if it was refused."""
    code, out, err = ran(*arguments)
    answer = json.loads(out, parse_constant=_refuse) if out else None
    return {"exit": code, "error": err, "json": answer}


def _refuse(word: str) -> None:
    raise AssertionError(f"{word} is no JSON")


# -- groups ----------------------------------------------------------------------------------------


def _program(_: str) -> Answers:
    """Help of every command, lists, and what is refused before anything is read."""
    found: Answers = {"help.txt": text("--help"), "version.txt": text("--version")}
    for command in COMMANDS:
        found[f"help-{command}.txt"] = text(command, "--help")
    found["help-zoo-run.txt"] = text("zoo", "run", "--help")
    found["help-zoo-score.txt"] = text("zoo", "score", "--help")
    found["zoo.txt"] = text("zoo")
    found["runs.txt"] = text("runs")
    found["runs.json"] = data("runs", "--json")
    refused = [
        ("nonsense",),
        ("zoo", "run", "nonsense"),
        ("runs", "nowhere"),
        ("runs", "--delete", "nonsense"),
        *((command, "nowhere") for command in ("show", "diagnose", "analyze", "report", "serve")),
        *((command, "nowhere") for command in ("weights", "animate", "export")),
        ("drift", "nowhere", "nowhere"),
        ("show", "checkpoints/healthy.safetensors"),
        ("show", "runs/healthy", "--stat", "nonsense"),
        ("show", "runs/healthy", "--last", "0"),
        ("diagnose", "runs/healthy", "--fail-on", "nonsense"),
        ("analyze", "runs/healthy", "--rules", "original"),
        ("export", "runs/healthy", "-o", "run.xyz"),
        ("export", "runs/healthy", "-o", "run.csv", "--stat", "nonsense"),
        ("animate", "runs/healthy", "-o", "run.xyz"),
        ("serve", "runs", "--host", "0.0.0.0"),
        ("serve", "runs", "--host", "192.0.2.1"),
    ]
    found["refused.txt"] = "\n".join(text(*arguments) for arguments in refused)
    return found


def _explain(_: str) -> Answers:
    """The list, and the page of every check in it."""
    listed = text("explain")
    names = re.findall(r"^  ?([a-z][a-z0-9-]+)  ", listed, re.M) or re.findall(
        r"^([a-z][a-z0-9-]+)  ", listed, re.M
    )
    assert len(set(names)) > 30, listed
    pages = {f"{name}.txt": text("explain", name) for name in sorted(set(names))}
    return {"_list.txt": listed, "_wrong-name.txt": text("explain", "dead-unit"), **pages}


def _run(name: str) -> Answers:
    """Everything that reads one run."""
    run = f"runs/{name}"
    found: Answers = {
        "show.txt": text("show", run),
        "show.json": data("show", run, "--json"),
        "show-signals.txt": text("show", run, "--signals"),
        "show-ranks.txt": text("show", run, "--ranks"),
        "show-part.txt": text(
            "show", run, "--last", "20", "--stat", "update_ratio", "--layers", "block*"
        ),
        "diagnose.txt": text("diagnose", run),
        "diagnose.json": data("diagnose", run, "--json"),
        "diagnose-fail-on.txt": text("diagnose", run, "--fail-on", "info"),
        "analyze.txt": text("analyze", run),
        "analyze.json": data("analyze", run, "--json"),
        "analyze-original.json": data("analyze", run, "--rules", "original", "--json"),
    }
    found.update(_report(run))
    found.update(_animation(run))
    report = found["report.json"]
    found["show.json"]["json"] = _beside(report, found["show.json"]["json"])
    found["animate.json"] = _beside(report, found["animate.json"])
    found.update(_exports(run))
    return found


def _beside(report: Any, model: Any) -> Any:
    """Only what differs from the model in the report, which is kept whole."""
    return model and {
        key: SAME if key in report and report[key] == value else value
        for key, value in model.items()
    }


def _report(run: str) -> Answers:
    """What the page holds, and the page around it without script and style."""
    said = text("report", run, "-o", "report.html")
    again = text("report", run, "-o", "report.html")
    skeleton, model = page_of(Path("report.html").read_text("utf-8"))
    Path("report.html").unlink()
    return {"report.txt": "\n".join([said, again, skeleton]), "report.json": model}


def page_of(page: str) -> tuple[str, Any]:
    """The page without its script, style and their hashes; and the model inside it."""
    inside = re.search(r'<script type="application/json" id="model">(.*?)</script>', page, re.S)
    model = json.loads(inside[1], parse_constant=_refuse) if inside else None
    bare = re.sub(r"<(script|style)([^>]*)>.*?</\1>", r"<\1\2>…</\1>", page, flags=re.S)
    return re.sub(r"sha256-[\w+/=]+", "sha256-…", bare), model


def _animation(run: str) -> Answers:
    """The film as text; its page; size and number of pictures of the GIF."""
    from PIL import Image, ImageSequence

    said = text("animate", run, "-o", "flow.txt", "--frames", "4")
    film = Path("flow.txt").read_text("utf-8") if Path("flow.txt").exists() else ""
    said += "\n" + text("animate", run, "-o", "flow.html", "--frames", "4")
    skeleton, model = "", None
    if Path("flow.html").exists():
        skeleton, model = page_of(Path("flow.html").read_text("utf-8"))
    said += "\n" + text(
        "animate", run, "-o", "flow.gif", "--frames", "3", "--colours", "mono", "--fps", "5"
    )
    if Path("flow.gif").exists():
        with Image.open("flow.gif") as picture:
            lasting = [frame.info["duration"] for frame in ImageSequence.Iterator(picture)]
            film += f"\n=== GIF of {picture.width} × {picture.height}, ms: {lasting}\n"
    for file in Path().glob("flow.*"):
        file.unlink()
    return {"animate.txt": "\n".join([said, film, skeleton]), "animate.json": model}


def _exports(run: str) -> Answers:
    """The three tables and TensorBoard's file, shortened by `compact` to what can be compared."""
    import pyarrow.parquet

    # thousands of steps are too many numbers to read back: of a long run two statistics will do
    chosen = ("--stat", "grad_norm", "--stat", "weight_norm") if run == "runs/long" else ()
    forms = ("csv", "json", "parquet")
    said = [text("export", run, "-o", f"run.{form}", *chosen) for form in forms]
    said.append(text("export", run, "-o", "run.csv"))  # is there already: refused
    if not chosen:
        said.append(text("export", run, "--tensorboard", "events") + _tags(Path("events")))
    with Path("run.csv").open(encoding="utf-8", newline="") as file:
        rows = [tuple(row) for row in csv.reader(file)]
    table = pyarrow.parquet.read_table("run.parquet")
    found: Answers = {
        "export.csv.json": _table(rows[0], list(zip(*rows[1:], strict=True))),
        "export.json": json.loads(Path("run.json").read_text("utf-8"), parse_constant=_refuse),
        "export.parquet.json": _table(
            [f"{field.name}: {field.type}" for field in table.schema],
            [table.column(name).to_pylist() for name in table.column_names],
        ),
        "export.txt": "\n".join(said),
    }
    for path in Path().glob("run.*"):
        path.unlink()
    return found


def _table(titles: "list[str] | tuple[str, ...]", columns: list[Any]) -> Any:
    """Numbers of each statistic by themselves; times left out."""
    names = [title.partition(":")[0] for title in titles]
    statistics, values = columns[names.index("statistic")], columns[names.index("value")]
    series: dict[str, list[Any]] = {}
    for statistic, value in zip(statistics, values, strict=True):
        series.setdefault(statistic, []).append(_number(value))
    others = {
        title: _digest(list(map(str, column)))
        for name, title, column in zip(names, titles, columns, strict=True)
        if name not in ("value", "whole")
    }
    return {"titles": list(titles), "rows": len(statistics), "series": series, "others": others}


def _number(value: Any) -> Any:
    if isinstance(value, str):
        return float(value) if re.fullmatch(r"-?[\d.]+(e[+-]?\d+)?", value) else value or None
    return value


def _digest(words: list[str]) -> str:
    """A hash of texts that must be the same to the letter."""
    return hashlib.sha256("\n".join(words).encode()).hexdigest()[:16]


def _tags(folder: Path) -> str:
    """The tags in TensorBoard's file, each with how often it stands there."""
    (file,) = folder.iterdir()
    found = re.findall(rb"\n.([\w.]+/[\w./]+)\x15", file.read_bytes(), re.S)
    shutil.rmtree(folder)
    tags = sorted({tag.decode() for tag in found})
    return "".join(f"{tag} × {found.count(tag.encode())}\n" for tag in tags)


def _checkpoint(name: str) -> Answers:
    """Everything that reads one checkpoint."""
    path = f"checkpoints/{name}"
    found: Answers = {
        "weights.txt": text("weights", path, "--workers", "0"),
        "weights.json": data("weights", path, "--json", "--workers", "0"),
    }
    if name in REFUSED:
        return found
    found["weights-spectrum.txt"] = text("weights", path, "--spectrum", "--workers", "0")
    if name in SPECTRA:
        found["weights-spectrum.json"] = data("weights", path, "--spectrum", "--json")
    if name == "sick.pt":
        both = ("weights", "checkpoints/healthy.safetensors", path)
        said = text(*both, "-o", "page.html", "--fail-on", "info")
        skeleton, model = page_of(Path("page.html").read_text("utf-8"))
        Path("page.html").unlink()
        found.update({"page.txt": f"{said}\n{skeleton}", "page.json": model})
        found["two-steps.json"] = data(*both, "--json")
    return found


def _drift(_: str) -> Answers:
    found: Answers = {}
    for name, pair in DRIFTS.items():
        paths = [f"checkpoints/{path}" for path in pair]
        found[f"{name}.txt"] = text("drift", *paths, "--workers", "0")
        found[f"{name}.json"] = data("drift", *paths, "--json", "--fail-on", "warning")
    return found


def _serve(_: str) -> Answers:
    """The routes of the live page, over HTTP, behind the link the terminal showed."""
    with _serving() as (client, said):
        listing = _listing(client)
        keys = {run["name"]: run["id"] for run in listing["runs"]}
        for run in listing["runs"]:
            run["id"] = "…"
        found: Answers = {"said.txt": said, "runs.json": listing}
        skeleton, _ = page_of(client.get("/").text)
        found["page.txt"] = skeleton
        for name, key in sorted(keys.items()):
            view = client.get(f"/api/runs/{key}/view").json()
            found[f"view-{name}.json"] = _beside(_report(f"runs/{name}")["report.json"], view)
        for name, query in {
            "window": "first=10&last=19",
            "sections": "sections=health,findings,cost",
            "maps": "maps=weight_norm,update_ratio&sections=heat",
            "bad-step": "first=x",
            "bad-map": "maps=nonsense",
            "bad-section": "sections=nonsense",
        }.items():
            answer = client.get(f"/api/runs/{keys['sick']}/view?{query}")
            found[f"sick-{name}.json"] = {"status": answer.status_code, "json": answer.json()}
        for name, path in {"no-run": "/api/runs/0000/view", "no-route": "/nonsense"}.items():
            answer = client.get(path)
            found[f"{name}.json"] = {"status": answer.status_code, "json": answer.json()}
        with visitor(client.headers["host"]) as unknown:
            stranger = unknown.get("/api/runs")
        found["stranger.txt"] = f"{stranger.status_code}\n{stranger.text}\n"
    return found


def _listing(client: httpx.Client) -> Any:
    """The list of runs; on a slow machine one answer has not looked at all of them yet."""
    for _ in range(60):
        found = client.get("/api/runs").json()
        lines = [run["line"] for run in found["runs"]]
        if not any(line.startswith(("not looked at yet", "opening")) for line in lines):
            return found
        time.sleep(0.1)
    raise AssertionError(lines)


@contextlib.contextmanager
def _serving() -> Iterator[tuple[httpx.Client, str]]:
    """`gradwatch serve` on a free port; a visitor who followed the link, and what was said."""
    source = str(Path(gradwatch.__file__).parents[1])
    process = subprocess.Popen(
        [sys.executable, "-m", "gradwatch", "serve", "runs", "--port", "0"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": source, "PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        said = process.stderr.readline()
        link = process.stdout.readline().strip()
        with opened(link) as client:
            shown = re.sub(r"\w+(\.localhost:)\d+(/\?token=)[\w-]+", r"…\1…\2…", link)
            yield client, f"{said}{shown}\n"
    finally:
        process.terminate()
        process.communicate(timeout=30)


GROUPS_OF: dict[str, Callable[[str], Answers]] = {
    "program": _program,
    "explain": _explain,
    "serve": _serve,
    "drift": _drift,
    "run": _run,
    "checkpoint": _checkpoint,
}
