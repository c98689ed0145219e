"""Writes the generated parts of README.md: `python -m tests.house.readme` after `make demo`."""

import re
import subprocess
import sys
from pathlib import Path

from gradwatch.checks import CHECKS

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"


def part(text: str, name: str) -> str:
    """What stands between `<!-- name -->` and the next `<!-- end -->`."""
    found = re.search(rf"<!-- {name} -->\n(.*?)<!-- end -->", text, re.DOTALL)
    assert found, name
    return found.group(1)


def replaced(text: str, name: str, content: str) -> str:
    return text.replace(f"<!-- {name} -->\n{part(text, name)}", f"<!-- {name} -->\n{content}")


def shown(*arguments: str) -> str:
    """A command and its output, as a code block."""
    done = subprocess.run(
        [sys.executable, "-m", "gradwatch", *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={"COLUMNS": "80", "PATH": "/usr/bin:/bin"},
    )
    return f"```\n$ gradwatch {' '.join(arguments)}\n{done.stdout.rstrip()}\n```\n"


def checks() -> str:
    lines = []
    for check in CHECKS:
        first = (check.__doc__ or "").strip().partition("\n")[0].rstrip(".")
        lines.append(f"- **{check.NAME}**: {first[0].lower()}{first[1:]}")
    return "\n".join(sorted(lines)) + "\n"


def main() -> None:
    text = README.read_text()
    text = replaced(text, "diagnose", shown("diagnose", "demo/run"))
    text = replaced(text, "help", shown("--help"))
    text = replaced(text, "checks", checks())
    README.write_text(text)


if __name__ == "__main__":
    main()
