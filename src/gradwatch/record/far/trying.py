"""What a device cannot do is left out from then on, and said once; the rest is recorded."""

from collections.abc import Callable
from typing import TypeVar

import torch

from gradwatch.record.barrier import log

_Made = TypeVar("_Made")
_unable: set[tuple[str, str]] = set()
"""Type of device, and what it has no operation or no room for."""


def tried(what: str, device: torch.device, make: Callable[[], _Made]) -> _Made | None:
    """What `make` gives; None where the device has no such operation, or no memory left for it."""
    key = device.type, what
    if key in _unable:
        return None
    try:
        return make()
    except (RuntimeError, TypeError) as error:  # MPS has no float64 and says so by a TypeError
        _unable.add(key)
        log.warning("gradwatch: %s are not recorded on %s: %s", what, device.type, error)
        return None
