"""Looking things up by `module:attribute`."""

from importlib import import_module
from typing import Any


def attribute(path: str) -> Any:
    """The object named; the map names things so that a test can look for every one of them."""
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)
