"""Triton's interpreter, made fast enough for tests."""

from collections.abc import Callable
from typing import Any

from triton.runtime import interpreter  # type: ignore[import-untyped]

_known: set[Callable[..., Any]] = set()


def _call(self: Any, *args: Any, **kwargs: Any) -> Any:
    """A function called by a kernel. The interpreter prepares the language for every such call,
    which takes most of its time; once for each function is enough."""
    if self.fn not in _known:
        interpreter._patch_lang(self.fn)
        _known.add(self.fn)
    return self.rewrite()(*args, **kwargs)


def quicken() -> None:
    interpreter.InterpretedFunction.__call__ = _call
