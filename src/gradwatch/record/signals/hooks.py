"""Forward hooks that cannot hurt: they catch errors, count their time and pickle as nothing."""

import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from gradwatch.run import Event, EventKind

log = logging.getLogger("gradwatch")

Listener = Callable[..., None]


@dataclass
class Stage:
    """What the instruments of one model share."""

    order: dict[str, int] = field(default_factory=dict)
    """The layers' positions in forward order, as far as they are known."""
    traced: bool = False
    """Whether torch.compile has seen our hooks. It guards their number: from then on none may come
    or go before the end, or the model would be compiled anew."""


def observable() -> bool:
    """Whether an eager forward is running whose tensors hold real numbers.

    Under a transform, a trace or a dispatch mode a look at a tensor would become part of the
    computation: selective checkpointing, for one, counts every operation it sees.
    """
    return not (
        torch._C._are_functorch_transforms_active()
        or torch._C._len_torch_dispatch_stack()
        or torch._C._get_tracing_state()
    )


class Hook:
    """One hook on one module.

    A module pickled or copied while it is watched takes its hooks along. Ours then turn into a
    method of the standard library that accepts anything and does nothing, so that the copy loads
    where we are not installed and is not watched.
    """

    __slots__ = ("listener", "owner")

    def __init__(self, owner: "Hooks", listener: Listener) -> None:
        self.owner = owner
        self.listener = listener

    def __call__(self, *seen: Any) -> None:
        if torch.compiler.is_compiling():
            self.owner.stage.traced = True
            return
        owner = self.owner
        if owner.failure is not None or not observable():
            return
        start = time.perf_counter()
        try:
            self.listener(*seen)
        except Exception as error:
            owner.fail(error)
        finally:
            owner.spent += time.perf_counter() - start

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (contextlib.nullcontext(), "__exit__")


class LightHook(Hook):
    """For hooks that run between the matrix products of every step, where all code is cold.

    Its listener only looks at memory, so it is asked whether there was anything to look at after
    it has failed rather than before each call. Only dispatch modes see what it does.
    """

    __slots__ = ()

    def __call__(self, *seen: Any) -> None:
        if torch.compiler.is_compiling():
            self.owner.stage.traced = True
            return
        owner = self.owner
        start = time.perf_counter()
        try:
            if owner.failure is None and not torch._C._len_torch_dispatch_stack():
                self.listener(*seen)
        except Exception as error:
            if observable():
                owner.fail(error)
        finally:
            owner.spent += time.perf_counter() - start


class Hooks:
    """The hooks of one instrument: put up together, taken down together, silent after a failure."""

    def __init__(self, what: str, stage: Stage) -> None:
        self.what = what
        self.stage = stage
        self.spent = 0.0
        self.step = 0
        self.failure: str | None = None
        self._handles: list[RemovableHandle] = []
        self._told = False

    def __bool__(self) -> bool:
        return bool(self._handles)

    def after(self, module: nn.Module, listener: Listener) -> None:
        """`listener(module, args, kwargs, output)` when the module has run."""
        self._handles.append(module.register_forward_hook(Hook(self, listener), with_kwargs=True))

    def after_plain(self, module: nn.Module, listener: Listener) -> None:
        """`listener(module, args, output)`: the cheapest form, for hooks that run on every step."""
        self._handles.append(module.register_forward_hook(LightHook(self, listener)))

    def before(self, module: nn.Module, listener: Listener) -> None:
        """`listener(module, args, kwargs)` when the module is called."""
        self._handles.append(
            module.register_forward_pre_hook(Hook(self, listener), with_kwargs=True)
        )

    @property
    def closed(self) -> bool:
        """Whether no more hooks may be put up."""
        return self.failure is not None or self.stage.traced

    def clear(self) -> None:
        """Take the hooks down, unless a compiled graph counts on them."""
        if not self.stage.traced:
            self.remove()

    def remove(self) -> None:
        """Take the hooks down for good."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def fail(self, error: BaseException) -> None:
        """Stop looking; say so once. Training goes on as if we were not there."""
        if self.failure is None:
            self.failure = f"{type(error).__name__}: {error}"
            log.warning("gradwatch stopped recording %s: %s", self.what, self.failure)

    def events(self) -> list[Event]:
        """The failure as an event, once."""
        if self.failure is None or self._told:
            return []
        self._told = True
        text = f"{self.what} are no longer recorded: {self.failure}"
        return [Event(self.step, EventKind.SWITCHED_OFF, text)]
