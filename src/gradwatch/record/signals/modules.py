"""Which modules are layers, what they are called, and the tensors in what they take and give."""

import weakref
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from typing import Any

import torch
from torch import nn

from gradwatch.record.naming import bare_modules, named_parameters
from gradwatch.run import Subject
from gradwatch.stats import Kind

_REPARAMETRIZED = ".parametrizations."
_DEPTH = 4


@dataclass(frozen=True)
class Layer:
    """A module that is called as one piece. It is held weakly: we keep no model alive."""

    name: str
    kind: str
    reference: "weakref.ref[nn.Module]"
    composite: bool = False
    """It has parameters of its own and children as well, such as `nn.MultiheadAttention`."""
    hidden: bool = False
    """It runs inside something torch.compile was applied to, where no hook of ours may be."""

    @property
    def module(self) -> nn.Module | None:
        return self.reference()


def owner(parameter: str) -> str:
    """The layer of a parameter, by its name; a parametrized weight's is the module it serves."""
    if _REPARAMETRIZED in f".{parameter}":
        return f".{parameter}".partition(_REPARAMETRIZED)[0].removeprefix(".")
    return parameter.rpartition(".")[0]


def layers(model: nn.Module, names: Collection[str] = ()) -> list[Layer]:
    """The layers as registered: modules without children, or with parameters of their own.

    Where `names` (the watched parameters) is given, a layer none of whose parameters is watched is
    left out. A module registered twice is one layer, under its first name.
    """
    watched = {owner(name) for name in names}
    inside = _compiled_modules(model)
    seen: set[int] = set()
    found = []
    for name, module in bare_modules(model):
        if id(module) in seen or _REPARAMETRIZED in f".{name}.":
            continue
        seen.add(id(module))
        own = next(module.parameters(recurse=False), None) is not None
        whole = all(child == "parametrizations" for child in module._modules)
        if not whole and not own:
            continue
        if names and name not in watched and next(module.parameters(), None) is not None:
            continue
        kind = type(module).__name__.removeprefix("Parametrized")
        hidden = id(module) in inside
        found.append(Layer(name, kind, weakref.ref(module), composite=not whole, hidden=hidden))
    return found


def owners(model: nn.Module) -> dict[int, str]:
    """The layer of each parameter, by the identity of the tensor; a tied one has its first name."""
    return {
        id(tensor): owner(named.name)
        for named in named_parameters(model)
        if (tensor := named.ref()) is not None
    }


def subject(layer: str, kind: str, order: int | None = None) -> Subject:
    """The row of a layer in the table of subjects."""
    return Subject(Kind.LAYER, layer, layer, module=kind, order=order)


def tensors(value: Any, depth: int = _DEPTH) -> Iterator[torch.Tensor]:
    """The tensors in arguments or an output: tuples, lists, dicts, mappings, dataclasses."""
    if isinstance(value, torch.Tensor):
        yield value
    elif depth and isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors(item, depth - 1)
    elif depth and isinstance(value, Mapping):
        for item in value.values():
            yield from tensors(item, depth - 1)
    elif depth and is_dataclass(value):
        for item in vars(value).values():
            yield from tensors(item, depth - 1)


def first_floating(value: Any) -> torch.Tensor | None:
    """The first tensor of floating point numbers, which is what a layer's output is taken to be."""
    return next((tensor for tensor in tensors(value) if tensor.is_floating_point()), None)


def wholly_compiled(model: nn.Module) -> bool:
    """Whether torch.compile has been applied to the model, or in place to a part of it."""
    return _is_compiled(model) or any(root_is_compiled(module) for module in model.modules())


def root_is_compiled(model: nn.Module) -> bool:
    """Whether even a hook on the model itself would be compiled, as after `model.compile()`."""
    return getattr(model, "_compiled_call_impl", None) is not None


def _compiled_modules(model: nn.Module) -> set[int]:
    """The modules that run compiled, by identity; the wrapper that compile returns does not."""
    return {
        id(inner)
        for module in model.modules()
        if _is_compiled(module)
        for inner in module.modules()
        if inner is not module or root_is_compiled(module)
    }


def _is_compiled(module: nn.Module) -> bool:
    return root_is_compiled(module) or "_orig_mod" in module._modules
