"""Parameter names as the bare model has them: wrapper prefixes removed, tied tensors once."""

import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field

from torch import Tensor
from torch.nn import Module

WRAPPERS = {
    "OptimizedModule": "_orig_mod",
    "DistributedDataParallel": "module",
    "DataParallel": "module",
    "FullyShardedDataParallel": "_fsdp_wrapped_module",
    "CheckpointWrapper": "_checkpoint_wrapped_module",
    "OffloadWrapper": "_checkpoint_wrapped_module",
}
"""Class of a wrapping module → the attribute under which it keeps what it wraps."""


@dataclass(frozen=True)
class ParameterInfo:
    """One parameter of the model, under its first name."""

    name: str
    layer: str
    module: str
    """Class of the owning module."""
    ref: "weakref.ref[Tensor]"
    """Weak, so that watching keeps no model alive."""
    others: list[str] = field(default_factory=list)
    """Its other names, where layers share it."""


def unwrap(model: Module) -> Module:
    """The user's own model inside compile, data-parallel and checkpoint wrappers."""
    while (inside := _wrapped(model)) is not None:
        child = model._modules.get(inside)
        if child is None:
            return model
        model = child
    return model


def bare_modules(model: Module) -> Iterator[tuple[str, Module]]:
    """(path, module) in registration order, as on the bare model; a shared module under each name.

    Walks with a stack of its own: a model may be deeper than Python's recursion and hold cycles.
    """
    seen: set[int] = set()
    stack: list[tuple[str, Module, tuple[object, ...] | None]] = [("", model, None)]
    while stack:
        path, module, above = stack.pop()
        if id(module) in seen and _is_above(module, above):
            continue
        seen.add(id(module))
        inside = _wrapped(module)
        if inside is None:  # a wrapper is no layer of the user's
            yield path, module
        children = [
            (path if name == inside else _join(path, name), child, (module, above))
            for name, child in module._modules.items()
            if child is not None
        ]
        stack.extend(reversed(children))


def named_parameters(model: Module) -> list[ParameterInfo]:
    """Every parameter once, under its first name, frozen ones included."""
    infos: dict[int, ParameterInfo] = {}
    kinds: dict[str, str] = {}
    for path, module in bare_modules(model):
        kinds[path] = type(module).__name__
        for local, parameter in module._parameters.items():
            if parameter is None:
                continue
            name = _join(path, local)
            if (info := infos.get(id(parameter))) is not None:
                info.others.append(name)
            else:
                layer, kind = _served(path, type(module).__name__, kinds)
                infos[id(parameter)] = ParameterInfo(name, layer, kind, weakref.ref(parameter))
    return list(infos.values())


def _served(path: str, kind: str, kinds: dict[str, str]) -> tuple[str, str]:
    """The layer a tensor belongs to: a parametrized weight serves the module above its list."""
    above, separator, _ = f".{path}.".partition(".parametrizations.")
    if not separator:
        return path, kind
    layer = above.removeprefix(".")
    return layer, kinds.get(layer, kind).removeprefix("Parametrized")


def _wrapped(module: Module) -> str | None:
    for kind in type(module).__mro__:
        if kind.__name__ in WRAPPERS:
            return WRAPPERS[kind.__name__]
    return None


def _is_above(module: Module, above: tuple[object, ...] | None) -> bool:
    while above is not None:
        if above[0] is module:
            return True
        above = above[1]  # type: ignore[assignment]
    return False


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
