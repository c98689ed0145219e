"""`gradwatch doctor`: what a bug report needs, and what is not well with the installation.

It names no host, no user, and no variable of the environment but our own.
"""

import getpass
import os
import platform
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module, metadata
from pathlib import Path
from textwrap import fill
from typing import Any

import click

from gradwatch.cli.help import examples
from gradwatch.cli.progress import waiting
from gradwatch.errors import Exit
from gradwatch.mode import VARIABLE as MODE
from gradwatch.mode import doubt
from gradwatch.text import many, plain
from gradwatch.version import __version__
from gradwatch.views.console import print_json, prose_width

FORMAT = 1
NEEDED = ("numpy", "pyarrow", "click", "rich", "starlette", "uvicorn")
EXTRAS = {"pictures": "pillow", "video": "imageio-ffmpeg", "dask": "distributed", "mcp": "mcp"}
HOME = Path("runs")
LEAST_FREE = 1e9
"""Bytes; a long run of a large model takes about that."""


@dataclass(frozen=True, slots=True)
class SystemFact:
    """One line of the answer."""

    name: str
    value: str
    trouble: str = ""
    """What is not well about it."""
    broken: bool = False
    """Whether something that must work does not."""


@click.command(
    "doctor",
    short_help="Print what a bug report needs, and what is not well.",
    epilog=examples("gradwatch doctor", "gradwatch doctor --json"),
)
@click.option("--json", "as_json", is_flag=True, help="The same as JSON.")
def command(as_json: bool) -> int:
    """Print versions, kernel, devices and the runs folder, and what is not well with them.

    Exit code 0: everything works. 1: something that must work does not.
    """
    with waiting("looking"):
        found = list(facts())
    troubles = [fact.trouble for fact in found if fact.trouble]
    broken = any(fact.broken for fact in found)
    if as_json:
        values = {fact.name: fact.value for fact in found}
        print_json(
            {"format": FORMAT, "facts": values, "not_well": troubles, "works": not broken}, indent=2
        )
    else:
        longest = max(len(fact.name) for fact in found) + 2
        for fact in found:
            click.echo(_filled(f"{fact.name:<{longest}}{fact.value}", longest))
        click.echo("\nNot well:" if troubles else "\nAll is well.")
        for trouble in troubles:
            click.echo(_filled(f"- {trouble}", 2))
    return Exit.FINDINGS if broken else Exit.HEALTHY


def facts() -> Iterator[SystemFact]:
    """Everything that is looked at, in the order in which it is shown."""
    yield _own()
    yield SystemFact("Python", f"{platform.python_implementation()} {platform.python_version()}")
    yield SystemFact("system", f"{platform.system()} {platform.release()} {platform.machine()}")
    torch, torch_fact = _torch()
    yield torch_fact
    for name in NEEDED:
        version = _version(name)
        if version is None:
            yield SystemFact(
                name, "not installed", f"{name} is not installed: pip install {name}.", True
            )
        else:
            yield SystemFact(name, version, old := _too_old(name, version), bool(old))
    kernel = _kernel(torch)
    yield kernel
    if not kernel.broken:  # without it nothing measures, on no device
        yield _engine(torch)
    for extra, name in EXTRAS.items():
        version = _version(name)
        missing = f"not installed: pip install {name}"
        yield SystemFact(extra, f"{name} {version}" if version else missing)
    yield _folder()
    yield from _environment()


def _own() -> SystemFact:
    folder = Path(__file__).parents[1]
    value = f"{__version__}, imported from {_nameless(folder)}"
    others = sorted(set(metadata.packages_distributions().get("gradwatch", [])) - {"gradwatch"})
    if others:
        trouble = f"Another distribution has a package gradwatch too: {', '.join(others)}."
        return SystemFact("gradwatch", value, f"{trouble} Uninstall one of them.")
    installed = _version("gradwatch")
    if installed not in (None, __version__):
        trouble = (
            f"gradwatch {installed} is installed, but another copy, {__version__}, comes first"
        )
        return SystemFact("gradwatch", value, f"{trouble} on the path and is imported.")
    return SystemFact("gradwatch", value)


def _nameless(path: Path) -> str:
    """A path without the name of the user."""
    with suppress(ValueError, RuntimeError):  # elsewhere; or nobody knows where home is
        path = Path("~", path.relative_to(Path.home()))
    try:
        user = getpass.getuser()
    except (OSError, KeyError, ImportError):  # a container's user without a name
        user = ""
    return str(Path(*("…" if part == user else part for part in path.parts)))


def _torch() -> tuple[Any, SystemFact]:
    """The module, if it can be had."""
    try:
        torch = import_module("torch")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            return None, _broken_torch(error)
        return None, SystemFact("torch", "not installed: recording needs it; reading runs does not")
    except Exception as error:  # a half-installed torch fails in many ways, all of them its own
        return None, _broken_torch(error)
    version = str(torch.__version__)
    value = f"{version}; {', '.join(['CPU', *_accelerators(torch)])}"
    return torch, SystemFact("torch", value, old := _too_old("torch", version), bool(old))


def _broken_torch(error: Exception) -> SystemFact:
    reason = f"{type(error).__name__}: {error}".splitlines()[0]
    return SystemFact("torch", "cannot be imported", f"torch cannot be imported ({reason}).", True)


def _accelerators(torch: Any) -> list[str]:
    found = []
    if torch.cuda.is_available():
        kind = f"ROCm {torch.version.hip}" if torch.version.hip else f"CUDA {torch.version.cuda}"
        names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
        found.append(f"{kind}: {', '.join(names)}")
    if torch.backends.mps.is_available():
        found.append("MPS")
    if hasattr(torch, "xpu") and torch.xpu.is_available():  # older ones have none
        found.append(f"XPU: {torch.xpu.device_count()}")
    return found


def _kernel(torch: Any) -> SystemFact:
    try:
        kernel = import_module("gradwatch.kernel")
    except (ImportError, ValueError) as error:  # no numpy; or a variable asks for what is not there
        return SystemFact("kernel", "cannot be used", f"The kernel cannot be used: {error}", True)
    threads = torch.get_num_threads() if torch is not None else 1
    name = kernel.instruction_set
    if name != kernel.NUMPY:
        return SystemFact("kernel", f"compiled, {name}, {many(threads, 'thread')}")
    asked = kernel.available() != (kernel.NUMPY,)
    why = f"{kernel.VARIABLE} asks for it" if asked else "none is built for this Python and machine"
    trouble = "The kernel is plain numpy, which is slow"
    mend = f"unset {kernel.VARIABLE}" if asked else "install a C compiler and gradwatch again"
    return SystemFact("kernel", f"plain numpy: {why}", f"{trouble}: {mend}.")


def _engine(torch: Any) -> SystemFact:
    if torch is None:
        return SystemFact("device engine", "none without torch")
    try:
        device = import_module("gradwatch.record.device")
        forced = device.forced()
        device.check_forced(())
    except Exception as error:  # whatever a torch that is too old lacks, or a wrong variable
        return SystemFact(
            "device engine", "cannot be chosen", f"Recording cannot start: {error}", True
        )
    kind = next((kind for kind in ("cuda", "xpu") if getattr(torch, kind).is_available()), None)
    kind = kind or ("mps" if torch.backends.mps.is_available() else "cpu" if forced else None)
    if kind is None:
        return SystemFact("device engine", "no accelerator: the kernel measures")
    if forced == device.TRITON and (why := device.hindrance(torch.device(kind))):
        trouble = f"{device.VARIABLE} asks for {device.TRITON}, which cannot be had: {why}."
        return SystemFact("device engine", "cannot be chosen", trouble, True)
    reason = f": {device.VARIABLE} asks for it" if forced else ""
    return SystemFact("device engine", f"{forced or device.TORCH} on {kind}{reason}")


def _folder() -> SystemFact:
    there, taken = HOME.is_dir(), HOME.is_file()
    place = HOME if there else Path()
    free = shutil.disk_usage(place).free
    kind = _file_system(place.resolve())
    size = f"{free / 1e9:.1f} GB free{f' on {kind}' if kind else ''}"
    value = f"{HOME}: {'there' if there else 'a file' if taken else 'not there yet'}, {size}"
    if taken or not os.access(place, os.W_OK | os.X_OK):
        wrong = "that is a file" if taken else "it cannot be written to"
        trouble = f"Runs cannot be kept in {HOME}: {wrong}. Name another place: watch(run=…)."
        return SystemFact("runs folder", f"{value}, not writable", trouble, True)
    if free < LEAST_FREE:
        return SystemFact("runs folder", f"{value}, writable", f"The disk is nearly full: {size}.")
    return SystemFact("runs folder", f"{value}, writable")


def _file_system(place: Path) -> str:
    """Its type, where the system lists what is mounted."""
    try:
        mounts = [line.split()[1:3] for line in Path("/proc/self/mounts").read_text().splitlines()]
    except OSError:
        return ""
    over = [(len(point), kind) for point, kind in mounts if place.is_relative_to(point)]
    return max(over)[1] if over else ""


def _environment() -> Iterator[SystemFact]:
    """Variables of ours that are set; kernel and engine have judged the values of theirs."""
    for name in sorted(name for name in os.environ if name.startswith("GRADWATCH_")):
        trouble = ""
        if name == MODE:
            trouble = f"{doubt()}." if doubt() else ""
        elif name not in ("GRADWATCH_KERNEL", "GRADWATCH_DEVICE_ENGINE", "GRADWATCH_DEBUG"):
            trouble = f"{name} is set, but nothing is known by that name."
        yield SystemFact(name, plain(os.environ[name]), plain(trouble))


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _too_old(name: str, version: str) -> str:
    """What to say of a version older than our own metadata asks for; empty where it is not."""
    needed = next(
        (found[1] for line in _requirements() if (found := re.match(rf"{name}>=([\d.]+)", line))),
        "",
    )
    if _numbers(version) >= _numbers(needed):
        return ""
    return f"{name} {version} is too old: gradwatch needs {needed}. pip install -U {name}."


def _requirements() -> list[str]:
    try:
        return metadata.requires("gradwatch") or []
    except metadata.PackageNotFoundError:  # run from its source, not installed
        return []


def _numbers(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:3]]


def _filled(text: str, margin: int) -> str:
    return fill(text, prose_width(), subsequent_indent=" " * margin, break_long_words=False)
