"""What a pickle stands for, as plain data: names of things, never the things."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Global:
    """`module.name`, written down; nothing is imported."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(eq=False, slots=True)
class Call:
    """A call the pickle asks for: remembered, never made."""

    function: Any
    arguments: Any
    state: Any = None
    items: list[Any] = field(default_factory=list)
    pairs: list[tuple[Any, Any]] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class Pairs:
    """A dictionary as a list of pairs: nothing is hashed, so keys cannot be made to collide."""

    pairs: list[tuple[Any, Any]] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class Persistent:
    """A reference to something outside the pickle: a tensor's storage."""

    key: Any


_HARMLESS_BUILTINS = frozenset(
    [
        "bool",
        "bytearray",
        "bytes",
        "complex",
        "dict",
        "float",
        "frozenset",
        "int",
        "list",
        "object",
        "range",
        "set",
        "slice",
        "str",
        "tuple",
    ]
)
_DANGEROUS = frozenset(
    [
        "asyncio",
        "bdb",
        "cProfile",
        "code",
        "codeop",
        "commands",
        "ctypes",
        "dill",
        "distutils",
        "doctest",
        "ensurepip",
        "ftplib",
        "http",
        "idlelib",
        "importlib",
        "imp",
        "inspect",
        "marshal",
        "multiprocessing",
        "nt",
        "operator",
        "os",
        "pdb",
        "pickle",
        "_pickle",
        "cloudpickle",
        "joblib",
        "pip",
        "pkgutil",
        "platform",
        "posix",
        "posixpath",
        "profile",
        "pty",
        "pydoc",
        "requests",
        "runpy",
        "setuptools",
        "shelve",
        "shutil",
        "signal",
        "site",
        "smtplib",
        "socket",
        "socketserver",
        "ssl",
        "subprocess",
        "sys",
        "tempfile",
        "test",
        "threading",
        "_thread",
        "timeit",
        "trace",
        "types",
        "urllib",
        "uuid",
        "venv",
        "webbrowser",
        "xmlrpc",
        "zipimport",
    ]
)
_DANGEROUS_NAMES = frozenset(
    {
        "torch.hub.load",
        "torch.load",
        "torch.serialization.load",
        "torch.jit.load",
        "torch.package.PackageImporter",
        "numpy.load",
        "numpy.testing._private.utils.runstring",
        "torch._dynamo.guards.GuardBuilder.get",
        "torch.utils._config_module.load_config",
        "torch.utils.collect_env.run",
        "torch.fx.experimental.symbolic_shapes.ShapeEnv.evaluate_guards_expression",
    }
)


def dangerous(symbol: Global) -> bool:
    """Whether no checkpoint has a reason to name this."""
    top = symbol.module.partition(".")[0]
    if top in ("builtins", "__builtin__"):
        return symbol.name not in _HARMLESS_BUILTINS
    words = symbol.name.split(".")
    dunder = any(word.startswith("__") and word not in ("__main__",) for word in words)
    return top in _DANGEROUS or dunder or str(symbol) in _DANGEROUS_NAMES
