"""Fresh Python processes that the current folder and the environment cannot slip modules into.

Python looks for modules in the current folder (`-m`, `-c`, multiprocessing's spawn) and in whatever
`PYTHONPATH` names. Inside a downloaded model's folder that is somebody else's code. The processes
started here live in `/` and import from the standard library, the folder of the caller's gradwatch
and those of the packages named (numpy, for one), wherever the caller found them.
"""

import contextlib
import os
import re
import select
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

NEUTRAL = "/"
WORKER = __name__
"""The module whose `main` a worker runs."""
_KEPT = re.compile(r"PATH|LD_LIBRARY_PATH|LANG|LC_\w+|\w+_NUM_THREADS|GRADWATCH_\w+")


class Died(Exception):
    """The process is gone, or had to be ended because it did not answer."""


def command(
    module: str, *arguments: str, packages: tuple[str, ...] = ("numpy",), before: str = ""
) -> list[str]:
    """The command line that runs `main()` of a module; to be started in the folder `NEUTRAL`,
    with a pipe as its standard input, at whose other end it ends.

    `before` is a line of Python to run first, with everything importable.
    """
    # -I: no current folder, no PYTHON* variables, no user site. -S: no .pth files, sitecustomize
    # or usercustomize, so that sys.path is the standard library's. Each package is imported with
    # its own folder only: it is then the caller's own, even where other folders have one too.
    folders = {package: _folder_of(package) for package in packages}
    imports = "".join(
        f"sys.path.append({folder!a})\nimport {package}\nsys.path.pop()\n"
        for package, folder in folders.items()
    )
    own_folder = str(Path(__file__).absolute().parents[1])
    program = (
        f"import sys\n{imports}sys.path += [{own_folder!a}, {folders['numpy']!a}]\n"
        f"from {__name__} import end_with_caller\nend_with_caller()\n{before}\n"
        f"from {module} import main\nmain()\n"
    )
    interpreter = [sys.executable, "-I", "-S", "-B", "-X", f"utf8={sys.flags.utf8_mode}"]
    return [*interpreter, "-c", program, *arguments]


def end_with_caller() -> None:
    """From here on this process ends with its caller, whatever it is doing.

    Standard input is a pipe that the caller holds and never writes to. When its other end closes,
    the kernel sends SIGIO, which ends a process. (PR_SET_PDEATHSIG would come with the end of the
    *thread* that started this process, and those of a server come and go.)
    """
    with contextlib.suppress(ImportError, OSError):  # a system without it: the limits still hold
        import fcntl

        fcntl.fcntl(0, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(0, fcntl.F_SETFL, fcntl.fcntl(0, fcntl.F_GETFL) | os.O_ASYNC)
        if select.select([0], [], [], 0)[0]:  # it closed before
            sys.exit(1)


def _folder_of(package: str) -> str:
    found = find_spec(package.partition(".")[0])  # of a module within, it would import the package
    if found is None or found.origin is None:
        raise ImportError(f"There is no {package}.")
    return str(Path(found.origin).absolute().parents[1])


def environment(**more: str) -> dict[str, str]:
    """The few variables that such a process gets, and more.

    The others stay away: many a library takes code from one (OPENSSL_CONF, LD_PRELOAD, …).
    """
    return {name: value for name, value in os.environ.items() if _KEPT.fullmatch(name)} | more


class IsolatedProcess:
    """Such a process at the end of a pipe, that calls what it is asked to."""

    def __init__(
        self, line: Callable[[str], list[str]], variables: Mapping[str, str] | None = None
    ) -> None:
        """`line` makes the command line, given the number of the pipe, of this module's `main`."""
        self._pipe, theirs = Pipe()  # tasks and results cross it, never a file
        with theirs:
            self._process = subprocess.Popen(
                line(str(theirs.fileno())),
                stdin=subprocess.PIPE,
                pass_fds=[theirs.fileno()],
                cwd=NEUTRAL,
                env=environment(**(variables or {})),
                start_new_session=True,  # Ctrl-C is for the caller, who then ends the workers
            )

    @property
    def pid(self) -> int | None:
        """The process, which has nothing to do; None once it has ended."""
        ended = self._process.poll() is not None or self._pipe.poll()  # the end of what it says
        return None if ended else self._process.pid

    def ask(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any] | None = None,
        seconds: float | None = None,
    ) -> Any:
        """What the function, one that it can import, returns there; raises what that raises."""
        try:
            self._pipe.send((function, args, kwargs or {}))
            if not self._pipe.poll(seconds):
                raise Died(f"it did not answer within {seconds:g} seconds")
            error, result = self._pipe.recv()
        except (OSError, EOFError):
            raise Died("it died") from None
        if error is not None:
            raise error
        return result

    def kill(self) -> None:
        """End whatever it does."""
        self._process.kill()

    def close(self) -> None:
        """End it for good."""
        self.kill()
        self._process.communicate()
        self._pipe.close()


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
