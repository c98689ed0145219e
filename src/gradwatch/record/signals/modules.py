"""Which modules are layers, what they are called, and which of them torch.compile runs."""

import weakref
from collections.abc import Collection
from dataclasses import dataclass

from torch import nn

from gradwatch.record.parameters import bare_modules, named_parameters

_REPARAMETRIZED = ".parametrizations."


@dataclass(frozen=True)
class WatchedLayer:
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
        """The module, or None when the user has let it go."""
        return self.reference()


def watched_layers(model: nn.Module, names: Collection[str]) -> set[str]:
    """The layers that own these parameters."""
    wanted = set(names)
    return {named.layer for named in named_parameters(model) if named.name in wanted}


def layers(model: nn.Module, watched: Collection[str] = ()) -> list[WatchedLayer]:
    """The layers as registered: modules without children, or with parameters of their own.

    Where `watched` names layers, others that have parameters are left out. A module registered
    twice is one layer, under its first name.
    """
    compiled = _compiled_modules(model)
    seen: set[int] = set()
    registered = []
    for name, module in bare_modules(model):
        if id(module) in seen or _REPARAMETRIZED in f".{name}.":
            continue
        seen.add(id(module))
        has_parameters = next(module.parameters(recurse=False), None) is not None
        # A parametrized module has a child that only computes its weights.
        childless = all(child == "parametrizations" for child in module._modules)
        if not childless and not has_parameters:
            continue
        if watched and name not in watched and next(module.parameters(), None) is not None:
            continue
        kind = type(module).__name__.removeprefix("Parametrized")
        hidden = id(module) in compiled
        registered.append(
            WatchedLayer(name, kind, weakref.ref(module), composite=not childless, hidden=hidden)
        )
    return registered


def owners(model: nn.Module) -> dict[int, str]:
    """The layer of each parameter, by the identity of the tensor; a tied one has its first name."""
    return {
        id(tensor): named.layer
        for named in named_parameters(model)
        if (tensor := named.ref()) is not None
    }


def is_compiled(model: nn.Module) -> bool:
    """Whether torch.compile has been applied to the model, or in place to a part of it."""
    return _runs_compiled(model) or any(root_is_compiled(module) for module in model.modules())


def root_is_compiled(model: nn.Module) -> bool:
    """Whether even a hook on the model itself would be compiled, as after `model.compile()`."""
    return getattr(model, "_compiled_call_impl", None) is not None


def _compiled_modules(model: nn.Module) -> set[int]:
    """The modules that run compiled, by identity; the wrapper that compile returns does not."""
    return {
        id(inner)
        for module in model.modules()
        if _runs_compiled(module)
        for inner in module.modules()
        if inner is not module or root_is_compiled(module)
    }


def _runs_compiled(module: nn.Module) -> bool:
    # `torch.compile(model)` wraps it; `model.compile()` works in place and leaves no wrapper.
    return root_is_compiled(module) or "_orig_mod" in module._modules
