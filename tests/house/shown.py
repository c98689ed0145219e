"""Runs what the task pages show: `python -m tests.house.shown` writes the outputs in them anew.

A Python block that begins with `# name.py` is that file; a line `$ …` of a console block is run in
the page's own empty folder, and what stands below it is what it printed.
"""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "docs" / "start.md", *sorted((ROOT / "docs" / "tasks").glob("*.md"))]
_BLOCK = re.compile(r"```(python\n# (?P<file>[\w.]+)|console)\n(?P<body>.*?)```", re.DOTALL)
_COMMAND = re.compile(r"^\$ (?P<line>.*)\n(?P<output>(?:(?!\$ ).*\n)*)", re.MULTILINE)


def rerun(page: str, folder: Path) -> Iterator[tuple[str, str, str]]:
    """Every command of a page, in order: its line, the output that is shown, the real one."""
    for block in _BLOCK.finditer(page):
        if block["file"]:
            (folder / block["file"]).write_text(block["body"])
            continue
        for command in _COMMAND.finditer(block["body"]):
            yield command["line"], command["output"], printed(command["line"], folder)


def printed(line: str, folder: Path) -> str:
    """What a shell line prints, words and data as they come."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "GRADWATCH"))}
    done = subprocess.run(
        ["bash", "-c", line],
        cwd=folder,
        env=kept | {"PATH": path, "COLUMNS": "80", "OMP_NUM_THREADS": "1", "NO_COLOR": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    text = "".join(f"{row.rstrip()}\n" for row in done.stdout.rstrip().splitlines())
    return re.sub(r"\n{3,}", "\n\n", text)


def main() -> None:
    for page in PAGES:
        text = page.read_text()
        with tempfile.TemporaryDirectory() as folder:
            for line, shown, real in rerun(text, Path(folder)):
                text = text.replace(f"$ {line}\n{shown}", f"$ {line}\n{real}", 1)
        page.write_text(text)


if __name__ == "__main__":
    main()
