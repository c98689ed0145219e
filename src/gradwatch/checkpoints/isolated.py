"""Fresh Python processes that the current folder and the environment cannot slip modules into.

Python looks for modules in the current folder (`-m`, `-c`, multiprocessing's spawn) and in whatever
`PYTHONPATH` names. Inside a downloaded model's folder that is somebody else's code. The processes
started here live in `/` and import from three places only: the standard library, the folder of
the caller's gradwatch and that of its numpy, wherever the caller found them.
"""

import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import numpy as np

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")

NEUTRAL = "/"


def command(module: str, *arguments: str) -> list[str]:
    """The command line that runs `main()` of a module; to be started in the folder `NEUTRAL`."""
    # -I: no current folder, no PYTHON* variables, no user site. -S: no .pth files, sitecustomize
    # or usercustomize, so that sys.path is the standard library's. numpy is imported before the
    # other folder is added: each is then the caller's own, even where a folder holds both.
    numpy_folder = Path(np.__file__).absolute().parents[1]
    own_folder = Path(__file__).absolute().parents[2]
    program = (
        "import sys\n"
        f"sys.path.append({str(numpy_folder)!a})\n"
        "import numpy\n"
        f"sys.path.insert(-1, {str(own_folder)!a})\n"
        "from gradwatch.checkpoints.readers import files\n"
        f"files.relative_to = {_current_folder()!a}\n"
        f"from {module} import main\n"
        "main()\n"
    )
    interpreter = [sys.executable, "-I", "-S", "-B", "-X", f"utf8={sys.flags.utf8_mode}"]
    return [*interpreter, "-c", program, *arguments]


def _current_folder() -> str:
    try:
        return str(Path.cwd())
    except FileNotFoundError:  # it was deleted: no relative path leads anywhere
        return NEUTRAL


class Workers(Executor):
    """A pool of such processes, each fed by one thread.

    Unlike a ProcessPoolExecutor's, they neither start from the current folder (nor does a tracker
    process) nor import the caller's main module, so a script needs no `if __name__ == ...` guard.
    """

    def __init__(self, count: int) -> None:
        self._threads = ThreadPoolExecutor(count)
        self._of_thread = threading.local()
        self._processes: list[subprocess.Popen[bytes]] = []

    def submit(
        self, function: Callable[_Given, _Result], /, *args: _Given.args, **kwargs: _Given.kwargs
    ) -> Future[_Result]:
        """The function must be one of gradwatch's: a worker can import no other."""
        return self._threads.submit(self._ask, function, args, kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Wait for the work to end (`cancel_futures`: break it off), then end the processes."""
        if cancel_futures:
            self._threads.shutdown(wait=False, cancel_futures=True)
            for process in list(self._processes):
                process.kill()
        self._threads.shutdown()
        for process in self._processes:
            process.kill()
            process.wait()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.shutdown(cancel_futures=kind is not None)

    def _ask(self, *request: object) -> Any:
        if not hasattr(self._of_thread, "worker"):
            self._of_thread.worker = self._started()
        try:
            self._of_thread.worker.send(request)
            error, result = self._of_thread.worker.recv()
        except (OSError, EOFError):
            raise BrokenExecutor("A worker process died.") from None
        if error is not None:
            raise error
        return result

    def _started(self) -> "Connection[Any, Any]":
        """A new worker, as the end of a pipe to it. Tasks and results cross it, never a file."""
        ours, theirs = Pipe()
        with theirs:
            process = subprocess.Popen(
                command(__name__, str(theirs.fileno())),
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                cwd=NEUTRAL,
                env={k: v for k, v in os.environ.items() if not k.startswith("PYTHON")},
                start_new_session=True,  # Ctrl-C is for the caller, who then ends the workers
            )
        self._processes.append(process)
        return ours


def main() -> None:
    """A worker: calls what it is asked to, until the caller is gone."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # if that is while it answers: end quietly
    caller: Connection[Any, Any] = Connection(int(sys.argv[1]))
    while True:
        try:
            function, args, kwargs = caller.recv()
        except (OSError, EOFError):
            return
        try:
            caller.send((None, function(*args, **kwargs)))
        except Exception as error:
            error.add_note(traceback.format_exc())  # a traceback itself cannot be sent
            caller.send((error, None))
