"""The side of the wall where pickled formats are read: a child process with little of everything.

Started by `child.read` with the arguments KIND PATH SECONDS; writes the index, or a refusal, as
JSON to standard output.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gradwatch.checkpoints.index import Index, to_dict
from gradwatch.checkpoints.limits import MAX_FILES, MIB
from gradwatch.checkpoints.readers import distributed, torch_files
from gradwatch.errors import GradwatchError

READERS: dict[str, Callable[[Path], Index]] = {
    "zip": torch_files.read_zip,
    "stream": torch_files.read_legacy,
    "distributed": distributed.read,
}
MEMORY = 768 * MIB
SECONDS = 9
"""Of processor time, and one more for every 100 MB of the checkpoint."""


def confine(seconds: int = SECONDS) -> None:
    """No more memory, time, files, processes or written bytes than reading an index takes."""
    import resource

    # What is mapped already (the interpreter, numpy) differs between machines, so add to it.
    try:
        mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    except OSError:
        mapped = 1024 * MIB
    for limit, value in (
        (resource.RLIMIT_AS, mapped + MEMORY),
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
    """Read, and say what was found."""
    kind, path, seconds = sys.argv[1:]
    answer: dict[str, Any]
    confine(int(seconds))
    try:
        answer = {"index": to_dict(READERS[kind](Path(path)))}
    except GradwatchError as error:
        answer = {"refused": str(error)}
    except MemoryError:
        answer = {"refused": f"{path} asks for more than {MEMORY // MIB} MiB to be described."}
    except RecursionError:
        answer = {"refused": f"{path} nests its contents too deeply."}
    sys.stdout.write(json.dumps(answer))
