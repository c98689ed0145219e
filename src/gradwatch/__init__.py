"""gradwatch finds out why a neural network does not train, and names the layer and the step.

    import gradwatch
    watcher = gradwatch.watch(model, optimizer)
    …
    watcher.log(loss=loss)

The doors below are loaded when first used: `import gradwatch` imports neither torch nor numpy.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gradwatch.errors import GradwatchError
from gradwatch.version import __version__

if TYPE_CHECKING:
    from gradwatch.run import Run as Run
    from gradwatch.stats import Stat as Stat
    from gradwatch.store import open_run as open_run

_DOORS = {
    "Run": "gradwatch.run",
    "Stat": "gradwatch.stats",
    "open_run": "gradwatch.store",
}

__all__ = ["GradwatchError", "Run", "Stat", "__version__", "open_run"]


def __getattr__(name: str) -> Any:
    if name not in _DOORS:
        raise AttributeError(f"module 'gradwatch' has no attribute {name!r}")
    return getattr(import_module(_DOORS[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
