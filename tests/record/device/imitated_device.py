"""A device that is none: its tensors lie on the CPU, but nobody can read them there.

A wrapper around every tensor says that it lives on "far:0". Every operation is counted,
operations between devices fail as they do on a real one, and whatever would wait for the device to
give a number fails, except a copy that does not block.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.backend_registration import (
    _DummyBackendModule,
    _setup_privateuseone_for_python_backend,
)

from gradwatch.record.device import transfer
from gradwatch.record.signals import tensors

NAME = "far"
DEVICE = torch.device("privateuseone", 0)
VIEWS = {"view", "as_strided", "detach", "unbind", "slice", "select", "unsqueeze", "expand", "t"}
VIEWS |= {"transpose", "permute", "alias", "squeeze", "split", "_unsafe_view", "_reshape_alias"}
WAITS = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "bincount"}
WAITS |= {"histc", "_unique2", "unique_consecutive", "repeat_interleave", "item"}

launched: Counter[str] = Counter()
"""Operations that a device would really have done."""


class Waits(Exception):
    """Something asked the device for a number, or mixed it with another."""


class DeviceTensor(Tensor):
    raw: Tensor

    @staticmethod
    def __new__(cls, raw: Tensor) -> "DeviceTensor":
        return torch.Tensor._make_wrapper_subclass(
            cls,
            raw.size(),
            strides=raw.stride(),
            storage_offset=raw.storage_offset(),
            dtype=raw.dtype,
            device=DEVICE,
        )

    def __init__(self, raw: Tensor) -> None:
        self.raw = raw

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return run(func, args, kwargs or {})


def run(func: Any, args: Any, kwargs: Any) -> Any:
    name = func._schema.name.removeprefix("aten::")
    if name == "copy_":
        return _copy(*args, **kwargs)
    flat = list(_tensors((args, kwargs)))
    if name in WAITS or (name.startswith("index") and _has_mask(args)):
        raise Waits(f"{name} waits for the device")
    near = [one for one in flat if not isinstance(one, DeviceTensor) and one.dim() > 0]
    if near and name != "_to_copy":
        raise Waits(f"{name} mixes devices")
    wanted = kwargs.get("device", DEVICE)
    if torch.device(wanted).type != NAME:
        if not kwargs.get("non_blocking"):
            raise Waits(f"{name} to {wanted} waits for the device")
        return func(*_plain(args), **_plain(kwargs))
    if name.removesuffix("_copy") not in VIEWS:
        _launch(name)
    if "device" in kwargs:
        kwargs = kwargs | {"device": "cpu"}
    known = {id(one.raw): one for one in flat if isinstance(one, DeviceTensor)}
    return _far(func(*_plain(args), **_plain(kwargs)), known)


def _launch(name: str) -> None:
    launched[name] += 1
    Clock.now += Clock.seconds_per_launch


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple, dict)):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _tensors(one)


def _far(value: Any, known: dict[int, DeviceTensor]) -> Any:
    """Wrapped again; what an operation has changed in place is the wrapper it was given."""
    if isinstance(value, Tensor):
        return known[id(value)] if id(value) in known else DeviceTensor(value)
    if isinstance(value, (list, tuple)):
        return type(value)(_far(one, known) for one in value)
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, DeviceTensor):
        return value.raw
    if isinstance(value, (list, tuple)):
        return type(value)(_plain(one) for one in value)
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    return value


def _copy(target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    if not isinstance(target, DeviceTensor) and not non_blocking:
        raise Waits("copy_ to the CPU waits for the device")
    _launch("copy_")
    _plain(target).copy_(_plain(source))
    return target


def _has_mask(args: Any) -> bool:
    return any(one.dtype in (torch.bool, torch.uint8) for one in _tensors(args[1:]))


class Clock:
    """Of the device: how long its work has taken so far, if every launch takes so long."""

    seconds_per_launch = 0.0
    now = 0.0


class Event:
    """Marks a place in the device's work; what came before it is done two questions later."""

    asked = 0
    """Questions to all events together."""

    def __init__(self, enable_timing: bool = False) -> None:
        self.timed, self.at, self.done_after = enable_timing, 0.0, 0

    def record(self, stream: object) -> None:
        self.at, self.done_after = Clock.now, Event.asked + 2

    def query(self) -> bool:
        Event.asked += 1
        return self.done

    @property
    def done(self) -> bool:
        return Event.asked > self.done_after

    def synchronize(self) -> None:
        Event.asked = max(Event.asked, self.done_after + 1)

    def elapsed_time(self, end: "Event") -> float:
        assert self.timed
        assert end.timed
        if not end.done:
            raise Waits("elapsed_time waits for the device")
        return 1000 * (end.at - self.at)


class Module(_DummyBackendModule):
    Event = Event
    capturing = False

    @classmethod
    def is_current_stream_capturing(cls) -> bool:
        """Whether what is launched is only written down, as in a CUDA graph."""
        return cls.capturing

    def current_stream(self, device: torch.device) -> str:
        return f"of {device}"


def install() -> None:
    """Make the device known to torch, for the rest of this process."""
    _setup_privateuseone_for_python_backend(NAME, Module())
    torch.library.impl("aten::empty.memory_format", "PrivateUse1", _empty)
    torch.library.impl("aten::empty_strided", "PrivateUse1", _empty_strided)
    transfer.pinned = lambda like: torch.empty(like.shape, dtype=like.dtype)
    # A wrapper is no plain tensor; on a real device it would be one.
    tensors.PLAIN = (*tensors.PLAIN, DeviceTensor)


def _empty(size: Any, *, dtype: Any = None, memory_format: Any = None, **_: Any) -> Tensor:
    return DeviceTensor(torch.empty(size, dtype=dtype, memory_format=memory_format))


def _empty_strided(size: Any, stride: Any, *, dtype: Any = None, **_: Any) -> Tensor:
    return DeviceTensor(torch.empty_strided(size, stride, dtype=dtype))
