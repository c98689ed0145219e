"""Watchers and the process: one per model, none in forked children, all closed at the end."""

import atexit
import os
import weakref
from typing import TYPE_CHECKING

from torch.nn import Module

import gradwatch.store  # noqa: F401  (what is registered later runs earlier: writers close after us)
from gradwatch.record import heartbeat
from gradwatch.record.barrier import log
from gradwatch.record.naming import unwrap

if TYPE_CHECKING:
    from gradwatch.record.watcher import Watcher

_live: "weakref.WeakSet[Watcher]" = weakref.WeakSet()
_by_model: "weakref.WeakKeyDictionary[Module, weakref.ref[Watcher]]" = weakref.WeakKeyDictionary()


def register(watcher: "Watcher", model: Module) -> None:
    """Remember who watches the model."""
    _live.add(watcher)
    _by_model[unwrap(model)] = weakref.ref(watcher)


def close_previous(model: Module) -> None:
    """A model has one watcher: an earlier one is closed, and says so."""
    reference = _by_model.pop(unwrap(model), None)
    earlier = reference() if reference is not None else None
    if earlier is not None and earlier.recording:
        log.warning("gradwatch: the model is watched again; %s is closed", earlier)
        earlier._close("closed because the model is watched again")


def _close_all() -> None:
    for watcher in list(_live):
        watcher._close("closed at the end of the process")


def _silence_all() -> None:
    heartbeat.fall_silent()
    for watcher in list(_live):
        watcher._forked()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_silence_all)
