"""The gallery of faults, made from its programs: `python -m tools.gallery [CHECK …]`.

Each program is sick as it stands. A comment `# fix: CODE` behind a line is what the mended program
has in its place (nothing: the line goes), a line that is only such a comment is added. Both are run
in processes of their own, and what gradwatch says of them is written down: `pages.json`, which
`gradwatch explain` prints, and `docs/gallery`.
"""

import difflib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np

from gradwatch.checkpoints import scan
from gradwatch.checks import CHECKS, TRAINING_CHECKS, WEIGHT_CHECKS, Check
from gradwatch.checks.explain import after, blocks, body, facts, summary
from gradwatch.checks.logged import losses
from gradwatch.cli.diagnose import finding_lines, lines
from gradwatch.diagnosis import Diagnosis, diagnose
from gradwatch.finding import Finding
from gradwatch.run import Run
from gradwatch.store import open_run
from gradwatch.text import number
from tools.gallery_picture import picture

ROOT = Path(__file__).parents[1]
PROGRAMS = ROOT / "docs/gallery/programs"
PAGES = ROOT / "src/gradwatch/checks/pages.json"
GALLERY = ROOT / "docs/gallery"
QUIET = {"OMP_NUM_THREADS": "1", "GRADWATCH_MODE": "quiet"}
WHOLE = """import runpy
from gradwatch.record import schedule
schedule.ALLOWANCE = 1e9
runpy.run_path("program.py", run_name="__main__")"""
"""A slow or busy machine would record less than the whole run, and the page would differ."""
MARK = "# fix:"
SECONDS = 120
AT_THE_END = 5
"""The loss a run ends with is the median of so many."""


class NotShownError(Exception):
    """A program fails, does not show its fault, or is not mended by its fix."""


@dataclass(frozen=True)
class Shown:
    """What one program shows: the sick run's finding, and both runs for the picture."""

    finding: Finding
    sick: Run
    mended: Run
    entry: dict[str, str]
    """Of `pages.json`."""


def main(names: Sequence[str]) -> None:
    """Make these checks anew, or all; those that cannot be shown are named at the end."""
    known = {check.NAME: check for check in CHECKS}
    unknown = sorted(set(names) - known.keys())
    if unknown:
        raise SystemExit(f"There is no check {', '.join(unknown)}.")
    wanted = [known[name] for name in names or known]
    kept = json.loads(PAGES.read_text("utf-8")) if PAGES.exists() else {}
    failed = []
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(os.cpu_count()) as pool:
        runs = [pool.submit(both, check.NAME, Path(folder)) for check in wanted]
        for check, ran in zip(wanted, runs, strict=True):
            try:
                ran.result()
                shown = look(check, Path(folder))
            except NotShownError as error:
                failed.append(f"{check.NAME}: {error}")
                continue
            kept[check.NAME] = shown.entry
            drawn = picture(check.NAME, shown.finding, shown.sick, shown.mended)
            write(GALLERY / f"{check.NAME}.svg", drawn)
            print(f"{check.NAME}: {shown.entry['after']}")
    write(PAGES, json.dumps(kept, indent=1, sort_keys=True) + "\n")
    pages()
    if failed:
        raise SystemExit("\n".join(["These do not show what they should:", *failed]))


def pages() -> None:
    """Write the Markdown pages from `pages.json`, which `explain` reads when first asked."""
    for check in CHECKS:
        if blocks(check.NAME):
            write(GALLERY / f"{check.NAME}.md", page(check))
    write(GALLERY / "index.md", index())


def write(path: Path, text: str) -> None:
    """The same bytes on every system."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8", newline="\n")


# -- programs --------------------------------------------------------------------------------------


def program_of(name: str) -> Path:
    """The file of a check's program."""
    return PROGRAMS / f"{name.replace('-', '_')}.py"


def versions(source: str) -> tuple[str, str]:
    """The sick program and the mended one."""
    sick, mended = [], []
    for line in source.splitlines():
        code, mark, new = line.partition(MARK)
        indent = line[: len(line) - len(line.lstrip())]
        if code.strip() or not mark:
            sick.append(code.rstrip())
        if new.strip() or not mark:
            mended.append(indent + new.strip() if mark else line.rstrip())
    return "\n".join(sick), "\n".join(mended)


def fix(sick: str, mended: str) -> str:
    """What changes, with a line around it."""
    changes = difflib.unified_diff(sick.splitlines(), mended.splitlines(), n=1, lineterm="")
    told = ["  ..." if line.startswith("@@") else f"{line[0]} {line[1:]}" for line in changes]
    return "\n".join(line.rstrip() for line in told[3:])  # two names of files and the first place


def both(name: str, folder: Path) -> None:
    """Run a check's program, sick and mended, each in a folder of its own."""
    path = program_of(name)
    if not path.exists():
        raise NotShownError(f"has no program: expected {path.relative_to(ROOT)}")
    for state, source in zip(("sick", "mended"), versions(path.read_text("utf-8")), strict=True):
        place = folder / name / state
        place.mkdir(parents=True)
        (place / "program.py").write_text(source + "\n", "utf-8")
        words = [sys.executable, "-c", WHOLE]
        try:
            done = subprocess.run(
                words, cwd=place, env=os.environ | QUIET, capture_output=True, text=True,
                timeout=SECONDS, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise NotShownError(f"the {state} program runs longer than {SECONDS} s") from None
        if done.returncode:
            raise NotShownError(f"the {state} program fails: {done.stderr.strip()[-300:]}")


def read(name: str, place: Path) -> Run:
    """What a program left: its run, or the checkpoint it wrote."""
    if any(name == check.NAME for check in WEIGHT_CHECKS):
        return scan(next(place.glob("model.*")), spectrum=True)
    return open_run(place / "runs" / name)


# -- what gradwatch says ---------------------------------------------------------------------------


def look(check: Check, folder: Path) -> Shown:
    """Judge both runs of a check's program."""
    name = check.NAME
    sick, mended = (read(name, folder / name / state) for state in ("sick", "mended"))
    said, mended_said = diagnose(sick), diagnose(mended)
    finding = next((item for item in said.everything() if item.check == name), None)
    if finding is None:
        raise NotShownError(f"the sick program shows {checks_of(said)} instead")
    if any(item.check == name for item in mended_said.everything()):
        raise NotShownError("the mended program still has it")
    programs = versions(program_of(name).read_text("utf-8"))
    entry = {
        "program": programs[0],
        "fix": fix(*programs),
        "says": says(said, name),
        "after": ending(mended_said, sick, mended),
    }
    return Shown(finding, sick, mended, entry)


def checks_of(diagnosis: Diagnosis) -> str:
    """The checks that found something."""
    return ", ".join(dict.fromkeys(item.check for item in diagnosis.everything())) or "nothing"


def says(diagnosis: Diagnosis, name: str) -> str:
    """A check's finding as `gradwatch diagnose` prints it, or the one that it follows from."""
    root = next(
        item for item in diagnosis.findings
        if name in (item.check, *(other.check for other in item.consequences))
    )  # fmt: skip
    return click.unstyle("\n".join(finding_lines(root)))


def ending(diagnosis: Diagnosis, sick: Run, mended: Run) -> str:
    """One line on the mended run: what is said of it, and where its loss ends."""
    headline = click.unstyle(lines(diagnosis)[0])
    notes = f" ({checks_of(diagnosis)})" if diagnosis.findings else ""
    ends = [number(last_loss(run)) for run in (mended, sick) if losses(run.scalars)]
    loss = f" Its loss ends at {ends[0]}, the sick one at {ends[1]}." if len(ends) == 2 else ""
    return f"Mended: {headline}{notes}.{loss}"


def last_loss(run: Run) -> float:
    """The loss a run ends with; NaN where that is not finite."""
    logged = run.scalars[losses(run.scalars)[0]][-AT_THE_END:]
    finite = logged[np.isfinite(logged)]  # the last row has none: it holds the weights at the end
    return float(np.median(finite)) if len(finite) else np.nan


# -- pages -----------------------------------------------------------------------------------------


def page(check: Check) -> str:
    """What `gradwatch explain` prints, as Markdown with the picture."""
    shown = [
        f"{block.heading}\n\n```{block.language}\n{block.lines}\n```"
        for block in blocks(check.NAME)
    ]
    drawn = f"![{check.NAME}: the sick run and the mended one]({check.NAME}.svg)"
    parts = [
        f"# {check.NAME}", body(check), facts(check), *shown, after(check.NAME), drawn,
        "[All faults](index.md)",
    ]  # fmt: skip
    return "\n\n".join(parts) + "\n"


def index() -> str:
    """All checks, those of trainings and those of checkpoints."""
    parts = [_HEAD]
    for heading, checks in (("Trainings", TRAINING_CHECKS), ("Checkpoints", WEIGHT_CHECKS)):
        links = [
            f"- [{check.NAME}]({check.NAME}.md): {summary(check)}"
            for check in sorted(checks, key=lambda check: check.NAME)
            if blocks(check.NAME)
        ]
        parts.append("\n".join([f"## {heading}", "", *links]))
    return "\n\n".join(parts) + "\n"


_HEAD = """# The gallery of faults

For every check a short program that has the fault, what gradwatch says of it, the fix, and both
runs side by side. `gradwatch explain CHECK` prints the same page. Everything here is made by
`make gallery`, which runs the programs in `docs/gallery/programs`; change them, not these
pages."""

if __name__ == "__main__":
    main(sys.argv[1:])
