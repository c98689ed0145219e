"""Which of the tensors a model is given go anywhere: by identity, while its forward runs."""

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor, nn

from gradwatch.record.signals.tensors import readable

_MOST = 1 << 20
"""Elements of an output that are looked at for zeros."""


class InputUse:
    """Follows the float tensors among a model's arguments through one forward after the other.

    An input is known by its place among the arguments. It is used by the layers that are called
    with it; a layer without parameters that gives nothing but zeros passes nothing on. Operations
    outside of layers show only that they took some tensor without a gradient (`unseen`): where
    there is one, an input that no layer is called with may have gone there.
    """

    def __init__(self) -> None:
        self._current: dict[int, int] = {}
        """Place of an input, by the identity of the tensor, while the forward runs."""
        self._names: dict[int, str] = {}
        self._takers: dict[int, set[str]] = {}
        self._blocking: dict[int, set[str]] = {}
        self._unseen = False

    @property
    def several(self) -> bool:
        """Whether there are inputs to tell apart."""
        return len(self._names) > 1

    def begin(self, model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """The model is called with these."""
        self._current.clear()
        names = _names(model)
        names += [name for name in kwargs if name not in names]
        given = [*enumerate(args), *((names.index(name), kwargs[name]) for name in kwargs)]
        for place, value in given:
            plain = isinstance(value, Tensor) and value.is_floating_point()
            if plain and not value.requires_grad and value.numel() > 1:
                self._current[id(value)] = place
                self._names.setdefault(place, names[place] if place < len(names) else "")

    def layer(self, name: str, module: nn.Module, given: list[Tensor], made: list[Tensor]) -> None:
        """A layer was called with `given`."""
        places = {self._current[id(t)] for t in given if id(t) in self._current}
        alone = bool(places) and len(given) == 1 and next(module.parameters(), None) is None
        blocks = alone and made and _nothing(made) and not _nothing(given)
        if not type(module).__module__.startswith("torch."):
            self.took_unseen()  # it may reach an input by another way than its arguments
        for place in places:
            (self._blocking if blocks else self._takers).setdefault(place, set()).add(name)

    def took_unseen(self) -> None:
        """Something without a gradient went in that is no input: it may come from any of them."""
        self._unseen = True

    def end(self) -> None:
        """The forward is over: tensors are forgotten."""
        self._current.clear()

    def info(self) -> dict[str, Any]:
        """Keys for `run.info`: the inputs that may be unused, and the layers that take each."""
        entries = [
            {
                "number": place + 1,
                "name": name,
                "layers": sorted(self._takers.get(place, ())),
                "blocked_by": sorted(self._blocking.get(place, ())),
                "sure": not self._unseen,
            }
            for place, name in sorted(self._names.items())
        ]
        return {"inputs": entries} if self.several else {}


def _names(model: nn.Module) -> list[str]:
    """The names of the forward's arguments, up to the first that takes any number of them."""
    names: list[str] = []
    try:
        parameters = inspect.signature(model.forward).parameters
    except (TypeError, ValueError):  # not written in Python
        return names
    for name, parameter in parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            break
        names.append(name)
    return names


def _nothing(tensors: Iterable[Tensor]) -> bool:
    """Whether all elements are zero; no where that cannot be read without waiting."""
    return all(
        readable(tensor) and tensor.numel() <= _MOST and not bool(tensor.detach().any())
        for tensor in tensors
    )
