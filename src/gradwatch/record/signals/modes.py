"""Layers that act otherwise in evaluation than in training: dropout and batch normalisation."""

from collections.abc import Iterator
from weakref import ref

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from gradwatch.record.parameters import bare_modules
from gradwatch.record.signals.hooks import WatchedLayer

_RATES = ("p", "drop_prob", "dropout")
"""Where modules keep the share that they drop."""


def drops(module: nn.Module) -> bool:
    """Whether it leaves out a random part of its input while it is in training mode."""
    if "Drop" not in type(module).__name__ and not isinstance(
        module, nn.MultiheadAttention | nn.RNNBase
    ):
        return False
    rates = (getattr(module, name, 0.0) for name in _RATES)
    return any(isinstance(rate, int | float) and rate > 0 for rate in rates)


def trainable_dropouts(model: nn.Module) -> Iterator[WatchedLayer]:
    """The dropout layers of parts that are trained; those of a frozen part rest on purpose."""
    modules = dict(bare_modules(model))
    for name, module in modules.items():
        if drops(module) and next(module.parameters(), None) is None:
            around = _around(name, modules)
            if around is None or any(p.requires_grad for p in around.parameters()):
                yield WatchedLayer(name, type(module).__name__, ref(module))


def _around(name: str, modules: dict[str, nn.Module]) -> nn.Module | None:
    """The smallest module that holds this one and has parameters."""
    while name:
        name = name.rpartition(".")[0]
        if (module := modules.get(name)) is not None and next(
            module.parameters(), None
        ) is not None:
            return module
    return None


class TrainingMode:
    """Whether a model that is called without gradients was left in training mode."""

    def __init__(self) -> None:
        self._layers: list[ref[nn.Module]] | None = None

    def __call__(self, model: nn.Module) -> bool:
        """Whether it is, and has layers that act otherwise then.

        Where only single layers are in training mode, somebody wanted it (Monte-Carlo dropout).
        """
        if not model.training:
            return False
        if self._layers is None:
            self._layers = [
                ref(module)
                for _, module in bare_modules(model)
                if isinstance(module, _BatchNorm) or drops(module)
            ]
        found = (reference() for reference in self._layers)
        return any(module is not None and module.training for module in found)
