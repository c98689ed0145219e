"""Builds sdist and wheel, and shows that the wheel works alone: `make wheel`.

The wheel goes into an empty environment without torch, where no compiler can be found; there the
reading half of the demo runs on a run that was recorded here.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
RUN = ROOT / "demo" / "run"


def main() -> None:
    """Build, install, read."""
    shutil.rmtree(DIST, ignore_errors=True)
    shutil.rmtree(ROOT / "build", ignore_errors=True)  # of another compiler, perhaps
    say([sys.executable, "-m", "build", "--outdir", DIST, ROOT])
    (wheel,) = DIST.glob("*.whl")
    if not RUN.exists():
        say([sys.executable, "-m", "examples.demo"], cwd=ROOT)
    with tempfile.TemporaryDirectory() as folder:
        read_alone(wheel, Path(folder))
    print(f"ok: {wheel.name} installs without a compiler and reads a run without torch")


def read_alone(wheel: Path, folder: Path) -> None:
    """The demo's reading half, in an environment that has the wheel and what it needs alone."""
    say([sys.executable, "-m", "venv", folder / "empty"])
    python = folder / "empty" / "bin" / "python"
    # No PATH, so no cc: pip must take wheels, ours among them.
    bare = {"PATH": "/nowhere", "CC": "/nowhere/cc", "HOME": str(folder)}
    bare |= {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    constraints = ["-c", ROOT / "constraints.txt"]
    command = folder / "empty" / "bin" / "gradwatch"
    for what in (f"{wheel}", f"{wheel}[pictures]"):  # help needs nothing that is optional
        say([python, "-m", "pip", "install", "-q", *constraints, what], env=bare)
        say([command, "--help"], env=bare, cwd=folder)
    say([python, "-c", "import torch"], env=bare, cwd=folder, allowed=(1,))  # is not there
    code = "import sys; from gradwatch import kernel; sys.exit(kernel.instruction_set == 'none')"
    say([python, "-c", code], env=bare, cwd=folder)
    for arguments in (
        ["show", RUN],
        ["diagnose", RUN],
        ["analyze", RUN, "--flow"],
        ["report", RUN, "-o", folder / "report.html"],
        ["animate", RUN, "-o", folder / "flow.gif"],
    ):
        say([command, *arguments], env=bare, cwd=folder, allowed=(0, 1))
    for name in ("report.html", "flow.gif"):
        size = (folder / name).stat().st_size
        print(f"{name}: {size:,} bytes")


def say(
    command: list[object],
    *,
    env: dict[str, str] | None = None,
    cwd: Path = ROOT,
    allowed: tuple[int, ...] = (0,),
) -> None:
    """Show a command, run it, and stop where it fails (1 says that something was found)."""
    words = [str(word) for word in command]
    print("$", *words, flush=True)
    code = subprocess.run(words, env=env, cwd=cwd, check=False).returncode
    if code not in allowed:
        sys.exit(f"it ended with {code}")


if __name__ == "__main__":
    main()
