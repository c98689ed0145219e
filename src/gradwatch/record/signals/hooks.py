"""Signals that hook modules, and the layers of a model that they hook.

The hooks catch errors, count their time and pickle as nothing.
"""

import contextlib
import logging
import time
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from string import digits
from typing import Any
from weakref import ref

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from gradwatch.record.parameters import bare_modules, named_parameters
from gradwatch.record.rows import PendingRows
from gradwatch.record.signal import Signal
from gradwatch.record.signals.tensors import observable
from gradwatch.run import Event, EventKind, Subject, block_of
from gradwatch.stats import Kind

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


def repeated_blocks(model: nn.Module, found: Sequence[WatchedLayer]) -> list[WatchedLayer]:
    """The outermost blocks of a kind that hold several of these layers: `h.0`, `h.1` and so on."""
    sizes = Counter(block_of(layer.name) for layer in found)
    compiled = {block_of(layer.name) for layer in found if layer.hidden}
    stems = Counter(name.rstrip(digits) for name in sizes if name[-1:].isdigit())
    return [
        WatchedLayer(name, type(module).__name__, weakref.ref(module))
        for name, module in bare_modules(model)
        if sizes[name] > 1 and stems[name.rstrip(digits)] > 1 and name not in compiled
    ]


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


log = logging.getLogger("gradwatch")

Listener = Callable[..., None]
DISPATCH = 3.5e-6
"""Seconds that torch takes to call a hook, between the matrix products of a step: a module with
one goes a longer way. Our clock sees nothing of it, and with hundreds of layers it is the most."""


@dataclass
class ModelContext:
    """What the signals of one model share."""

    watched: Collection[str] = ()
    """The layers to look at; where none is named, all of them."""
    order: dict[str, int] = field(default_factory=dict)
    """The layers' positions in forward order, as far as they are known."""
    traced: bool = False
    """Whether torch.compile has seen our hooks. It guards their number: from then on none may come
    or go before the end, or the model would be compiled anew."""
    backward_ran: bool = False
    """Since a forward pass was last seen."""
    _micro_batch: int = 0

    def micro_batch(self) -> int:
        """The number of the present micro-batch: the first forward after a backward begins one.

        Within a backward only checkpoints call layers, which belong to the micro-batch before.
        """
        if self.backward_ran and torch._C._current_graph_task_id() == -1:
            self.backward_ran = False
            self._micro_batch += 1
        return self._micro_batch

    def subject(self, layer: str, kind: str) -> Subject:
        """The row of a layer in the table of subjects."""
        return Subject(Kind.LAYER, layer, layer, module=kind, order=self.order.get(layer))


class HookedSignal(Signal):
    """Its hooks are put up together, taken down together, and silent after a failure in one."""

    what = ""
    """What the user is told is no longer recorded after a failure."""

    def __init__(self, model: nn.Module, context: ModelContext | None = None) -> None:
        self._model = ref(model)  # weak: watching keeps no model alive
        self.context = context or ModelContext()
        self.spent = 0.0
        self.failure: str | None = None
        self._step = 0
        self._handles: list[RemovableHandle] = []
        self._events: list[Event] = []
        self._pending: list[PendingRows] = []
        self._failure_told = False

    def take_spent(self) -> float:
        """Seconds the hooks took since the last call, for the budget."""
        spent, self.spent = self.spent, 0.0
        return spent

    def backward(self) -> None:
        """A backward pass has run: the next forward is one of another micro-batch."""
        self.context.backward_ran = True

    def events(self) -> list[Event]:
        """What happened since the last call; a failure is reported once."""
        events, self._events = self._events, []
        if self.failure is not None and not self._failure_told:
            self._failure_told = True
            text = f"{self.what} are no longer recorded: {self.failure}"
            events.append(Event(self._step, EventKind.SWITCHED_OFF, text))
        return events

    def pending(self, step: int) -> Sequence[PendingRows]:
        """Rows still on their way from a device; handed over once."""
        pending, self._pending = self._pending, []
        return pending

    def detach(self) -> None:
        """Take the hooks off and forget what is on its way."""
        self._remove_hooks()
        self._pending.clear()

    def fail(self, error: BaseException) -> None:
        """Stop looking; say so once. Training goes on as if we were not there."""
        if self.failure is None:
            self.failure = f"{type(error).__name__}: {error}"
            log.warning("gradwatch stopped recording %s: %s", self.what, self.failure)

    # -- hooks -----------------------------------------------------------------------------------

    def _hook_after(self, module: nn.Module, listener: Listener) -> None:
        """`listener(module, args, kwargs, output)` when the module has run."""
        self._handles.append(module.register_forward_hook(Hook(self, listener), with_kwargs=True))

    def _hook_after_lightly(self, module: nn.Module, listener: Listener) -> None:
        """`listener(module, args, output)`: the cheapest form, for hooks that run on every step."""
        self._handles.append(module.register_forward_hook(LightHook(self, listener)))

    def _hook_before(self, module: nn.Module, listener: Listener) -> None:
        """`listener(module, args, kwargs)` when the module is called."""
        self._handles.append(
            module.register_forward_pre_hook(Hook(self, listener), with_kwargs=True)
        )

    @property
    def _may_not_hook(self) -> bool:
        return self.failure is not None or self.context.traced

    def _unhook(self) -> None:
        """Take the hooks down, unless a compiled graph counts on them."""
        if not self.context.traced:
            self._remove_hooks()

    def _remove_hooks(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()


class PicklesAsNothing:
    """A module pickled or copied while it is watched takes its hooks along.

    Ours then turn into a method of the standard library that accepts anything and does nothing, so
    that the copy loads where we are not installed and is not watched.
    """

    __slots__ = ()

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (contextlib.nullcontext(), "__exit__")


class Hook(PicklesAsNothing):
    """One hook on one module."""

    __slots__ = ("listener", "signal")

    def __init__(self, signal: HookedSignal, listener: Listener) -> None:
        self.signal = signal
        self.listener = listener

    def __call__(self, *seen: Any) -> None:
        """Call the listener, count its time, and switch the signal off if it fails."""
        # torch.compile traces this call: it must see no clock and no listener, which would break
        # the graph. What is left is one assignment, done while tracing.
        if torch.compiler.is_compiling():
            self.signal.context.traced = True
            return
        signal = self.signal
        if signal.failure is not None or not observable():
            return
        start = time.perf_counter()
        try:
            self.listener(*seen)
        except Exception as error:
            signal.fail(error)
        finally:
            signal.spent += time.perf_counter() - start + DISPATCH


class LightHook(Hook):
    """For hooks that run between the matrix products of every step, where all code is cold.

    Its listener only looks at memory, so it is asked whether there was anything to look at after
    it has failed rather than before each call. Only dispatch modes see what it does.
    """

    __slots__ = ()

    def __call__(self, *seen: Any) -> None:
        """As `Hook`, with the checks that cost time left to the failure."""
        if torch.compiler.is_compiling():
            self.signal.context.traced = True
            return
        signal = self.signal
        start = time.perf_counter()
        try:
            if signal.failure is None and not torch._C._len_torch_dispatch_stack():
                self.listener(*seen)
        except Exception as error:
            if observable():
                signal.fail(error)
        finally:
            signal.spent += time.perf_counter() - start + DISPATCH
