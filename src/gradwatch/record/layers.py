"""The layers of a model, which of them run compiled, and which act otherwise in evaluation."""

import sys
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from weakref import ref

from torch import nn

from gradwatch.record.parameters import bare_modules, named_parameters

_REPARAMETRIZED = ".parametrizations."
_HARMLESS = (
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.Hardtanh, nn.Tanh, nn.Sigmoid),
    *(nn.Identity, nn.Flatten, nn.Unflatten, nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d),
    *(nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d),
)
"""Modules that give finite numbers for finite numbers: they can pass a NaN on, not make one."""
_RATES = ("p", "drop_prob", "dropout")
"""Where modules keep the share that they drop."""


@dataclass(eq=False, slots=True)
class Layer:
    """A module that is called as one piece. It is held weakly: we keep no model alive."""

    name: str
    kind: str
    module: "ref[nn.Module]"
    composite: bool = False
    """It has parameters of its own and children as well, such as `nn.MultiheadAttention`."""
    hidden: bool = False
    """It runs inside something torch.compile was applied to, where no hook of ours may be."""
    watched: bool = True
    """Nobody left it out."""
    probed: bool = False
    """It can make a NaN, and nobody left it out."""
    drops: bool = False
    """It is a dropout layer of a part that is trained."""
    root: bool = False
    """Its calls are calls of the model, or of one of several networks."""
    is_layer: bool = True

    @property
    def training(self) -> bool:
        """The mode it is in."""
        module = self.module()
        return module is None or module.training


def layers_of(
    model: nn.Module, watched: Collection[str] = (), roots: Iterable[nn.Module] = ()
) -> list[Layer]:
    """The layers as registered: modules without children, or with parameters of their own.

    Where `watched` names layers, others that have parameters are not watched. A module registered
    twice is one layer, under its first name. Roots that are no layers come last.
    """
    compiled, resting = _compiled_modules(model), _resting(model)
    found: dict[int, Layer] = {}
    for name, module in bare_modules(model):
        if id(module) in found or _REPARAMETRIZED in f".{name}.":
            continue
        has_parameters = next(module.parameters(recurse=False), None) is not None
        # A parametrized module has a child that only computes its weights.
        composite = any(child != "parametrizations" for child in module._modules)
        if composite and not has_parameters:
            continue
        layer = Layer(name, type(module).__name__.removeprefix("Parametrized"), ref(module))
        layer.composite, layer.hidden = composite, id(module) in compiled
        free = next(module.parameters(), None) is None
        layer.watched = free or not watched or name in watched
        layer.probed = layer.watched and not isinstance(module, _HARMLESS)
        layer.drops = free and drops(module) and id(module) not in resting
        found[id(module)] = layer
    for module in roots:
        blank = Layer("", type(module).__name__, ref(module), watched=False, is_layer=False)
        root = found.setdefault(id(module), blank)
        root.root, root.hidden = True, id(module) in compiled
    return list(found.values())


def owners(model: nn.Module) -> dict[int, str]:
    """The layer of each parameter, by the identity of the tensor; a tied one has its first name."""
    return {
        id(tensor): named.layer
        for named in named_parameters(model)
        if (tensor := named.ref()) is not None
    }


# -- torch.compile -------------------------------------------------------------------------------


def compiles() -> bool:
    """Whether anything was handed to torch.compile in this process."""
    frames = sys.modules.get("torch._dynamo.eval_frame")
    known = getattr(frames, "cached_backends", {})
    return any(backend is not None for backend in known.values())


def _compiled_modules(model: nn.Module) -> set[int]:
    """The modules that run compiled, by identity; the wrapper that compile returns does not."""
    hidden: set[int] = set()
    for module in model.modules():
        # `model.compile()` works in place; `torch.compile(model)` returns a wrapper.
        in_place = getattr(module, "_compiled_call_impl", None) is not None
        if in_place or "_orig_mod" in module._modules:
            hidden |= {id(inner) for inner in module.modules() if in_place or inner is not module}
    return hidden


# -- modes ---------------------------------------------------------------------------------------


def drops(module: nn.Module) -> bool:
    """Whether it leaves out a random part of its input while it is in training mode."""
    if "Drop" not in type(module).__name__ and not isinstance(
        module, nn.MultiheadAttention | nn.RNNBase
    ):
        return False
    rates = (getattr(module, name, 0.0) for name in _RATES)
    return any(isinstance(rate, int | float) and rate > 0 for rate in rates)


def _resting(model: nn.Module) -> set[int]:
    """The modules inside parts whose parameters are all frozen: dropouts there rest on purpose."""
    return {
        id(inner)
        for module in model.modules()
        if not any(parameter.requires_grad for parameter in module.parameters())
        if next(module.parameters(), None) is not None
        for inner in module.modules()
    }
