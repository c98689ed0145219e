"""Asks the confined child for the index of a pickled checkpoint, and believes nothing it says."""

import json
import os
import signal
import subprocess
from pathlib import Path

from gradwatch.checkpoints.index import Index, from_dict
from gradwatch.checkpoints.isolated import NEUTRAL, command
from gradwatch.checkpoints.limits import MIB
from gradwatch.checkpoints.readers.pickled import SECONDS
from gradwatch.errors import GradwatchError

_MODULE = "gradwatch.checkpoints.readers.pickled"
_PATIENCE = 10
"""Times the child's own limit, which is in processor time, until it is ended by the clock."""
_KEPT = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "LC_CTYPE")


def read(kind: str, path: Path) -> Index:
    """The index of a pickled checkpoint (`kind`: zip, stream or distributed)."""
    seconds = _seconds(path)
    environment = {name: os.environ[name] for name in _KEPT if name in os.environ}
    environment["OPENBLAS_NUM_THREADS"] = "1"
    try:
        done = subprocess.run(
            command(_MODULE, kind, str(path), str(seconds)),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_PATIENCE * seconds,
            cwd=NEUTRAL,
            env=environment,
            start_new_session=True,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise GradwatchError(f"{path} is refused: reading it did not come to an end.") from None
    if done.returncode:
        raise GradwatchError(f"{path} is refused: its reader died ({_death(done)}).")
    try:
        answer = json.loads(done.stdout)
        if "refused" in answer:
            raise GradwatchError(str(answer["refused"]))
        return from_dict(answer["index"])
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
        raise GradwatchError(f"{path} is refused: its reader gave no usable answer.") from None


def _seconds(path: Path) -> int:
    """Processor time for the child: a hostile file is small, a large one may take longer."""
    files = path.iterdir() if path.is_dir() else [path]
    size = sum(file.stat().st_size for file in files if file.is_file())
    return SECONDS + size // (100 * MIB)


def _death(done: "subprocess.CompletedProcess[bytes]") -> str:
    if done.returncode < 0:
        number = -done.returncode
        if number in (signal.SIGXCPU, signal.SIGKILL):
            return "it took too much time or memory"
        return f"signal {number}"
    lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
    last = lines[-1][:200] if lines else ""
    return last if last.isprintable() and last else f"exit code {done.returncode}"
