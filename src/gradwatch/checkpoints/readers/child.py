"""Pickled checkpoints are read in a child process that has little of everything.

`read` starts the child with the arguments KIND PATH SECONDS; the child runs `main`, which writes
the index, or a refusal, as JSON to its standard output. The parent believes nothing it says.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gradwatch.checkpoints.index import Index, from_rows, to_rows
from gradwatch.checkpoints.isolated import command
from gradwatch.checkpoints.limits import CPU_SECONDS, MAX_FILES, MIB, STORED_PER_SECOND
from gradwatch.checkpoints.readers import distributed, torch_files
from gradwatch.checkpoints.readers.files import names_in, stored_bytes
from gradwatch.errors import GradwatchError
from gradwatch.isolated import NEUTRAL, environment

READERS: dict[str, Callable[[Path], Index]] = {
    "zip": torch_files.read_zip,
    "stream": torch_files.read_stream,
    "distributed": distributed.read,
}
_MEMORY = 768 * MIB
_PATIENCE = 10
"""Times the child's limit of processor time, until it is ended by the clock."""


def read(kind: str, path: Path) -> Index:
    """The index of a pickled checkpoint (`kind`: one of READERS)."""
    files = [path / name for name in names_in(path, MAX_FILES)] if path.is_dir() else [path]
    seconds = CPU_SECONDS + stored_bytes(files) // STORED_PER_SECOND
    life, ours = os.pipe()
    try:
        done = subprocess.run(
            command(__name__, kind, str(path), str(seconds)),
            stdin=life,
            capture_output=True,
            timeout=_PATIENCE * seconds,
            cwd=NEUTRAL,
            env=environment(OPENBLAS_NUM_THREADS="1"),
            start_new_session=True,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise GradwatchError(f"{path} is refused: reading it did not come to an end.") from None
    finally:
        os.close(life)
        os.close(ours)
    if done.returncode:
        raise GradwatchError(f"{path} is refused: its reader died ({_cause_of_death(done)}).")
    try:
        answer = json.loads(done.stdout)
        if "refused" in answer:
            raise GradwatchError(str(answer["refused"]))
        return from_rows(answer["index"])
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
        raise GradwatchError(f"{path} is refused: its reader gave no usable answer.") from None


def _cause_of_death(done: "subprocess.CompletedProcess[bytes]") -> str:
    if done.returncode < 0:
        number = -done.returncode
        if number in (signal.SIGXCPU, signal.SIGKILL):
            return "it took too much time or memory"
        return f"signal {number}"
    lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
    last = lines[-1][:200] if lines else ""
    return last if last.isprintable() and last else f"exit code {done.returncode}"


def confine(seconds: int = CPU_SECONDS) -> None:
    """No more memory, time, files, processes or written bytes than reading an index takes."""
    import resource  # only the child needs it, and not every system has it

    # What is mapped already (the interpreter, numpy) differs between machines, so add to it.
    try:
        mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    except OSError:
        mapped = 1024 * MIB
    for limit, value in (
        (resource.RLIMIT_AS, mapped + _MEMORY),
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, min(MAX_FILES, 1024)),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NPROC, 0),
    ):
        _, hard = resource.getrlimit(limit)
        bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
        try:
            resource.setrlimit(limit, (bound, bound))
        except (OSError, ValueError):
            continue  # a system without this limit; the others still hold


def main() -> None:
    """The child: confine itself, read, and answer."""
    kind, path, seconds = sys.argv[1:]
    answer: dict[str, Any]
    confine(int(seconds))
    try:
        answer = {"index": READERS[kind](Path(path))}
    except GradwatchError as error:
        answer = {"refused": str(error)}
    except MemoryError:
        answer = {"refused": f"{path} asks for more than {_MEMORY // MIB} MiB to be described."}
    except RecursionError:
        answer = {"refused": f"{path} nests its contents too deeply."}
    sys.stdout.write(json.dumps(answer, default=to_rows))
