"""Everything a training leaves behind, down to the bit."""

import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tests.record.harm.loops import STEPS, Loop
from torch import Tensor, nn
from torch.optim import optimizer as optimizer_module

from gradwatch.record import Watcher, watch
from gradwatch.run import EventKind
from gradwatch.store import open_run


@dataclass(frozen=True)
class Remains:
    """Digests of the states after a training, each by its name."""

    parts: dict[str, str]

    def differences(self, other: "Remains") -> list[str]:
        names = {*self.parts, *other.parts}
        return sorted(name for name in names if self.parts.get(name) != other.parts.get(name))


def train(
    make: Callable[[], Loop], folder: Path | None, steps: int = STEPS, **options: Any
) -> Remains:
    """Train from a fixed seed, watched if there is a folder to write to."""
    torch.set_num_threads(1)
    torch.manual_seed(7)
    random.seed(7)
    np.random.seed(7)
    loop = make()
    losses, keys, before = [], list(loop.model.state_dict()), global_hooks()
    watcher = start(loop, folder, **options) if folder is not None else None
    for index in range(steps):
        loss = loop.step(index)
        losses.append(loss.detach().clone())
        if watcher is not None:
            watcher.log(loss=loss, index=index)
    if watcher is not None:
        assert watcher.recording
        assert set(keys) <= set(loop.model.state_dict())
        watcher.close()
        assert left_behind(loop, before) == []
        assert recorded(watcher) == {"grad_norm", "weight_norm"}
    return remains(loop, losses)


def start(loop: Loop, folder: Path, **options: Any) -> Watcher:
    watcher = watch(loop.model, *loop.optimizers, run=folder, scaler=loop.scaler, **options)
    assert isinstance(watcher, Watcher)
    return watcher


def recorded(watcher: Watcher) -> set[str]:
    """What was really measured: a watcher that records nothing harms nothing."""
    run = open_run(watcher.run_dir)
    assert not [event for event in run.events if event.kind is EventKind.SWITCHED_OFF]
    return {stat for stat in ("grad_norm", "weight_norm") if run.measured(stat).any()}


def remains(loop: Loop, losses: list[Tensor]) -> Remains:
    parts = {
        "torch's random numbers": torch.get_rng_state(),
        "python's random numbers": repr(random.getstate()),
        "numpy's random numbers": repr(np.random.get_state()),
        "losses": losses,
        "scaler": loop.scaler.state_dict() if loop.scaler is not None else None,
    }
    for number, module in enumerate((loop.model, *loop.extra)):
        for name, value in module.state_dict().items():
            parts[f"module {number} {name}"] = value
        for name, parameter in module.named_parameters():
            parts[f"gradient {number} {name}"] = parameter.grad
    for number, optimizer in enumerate(loop.optimizers):
        parts[f"optimizer {number}"] = optimizer.state_dict()
    return Remains({name: digest(value) for name, value in parts.items()})


def digest(value: Any) -> str:
    """Bits, not values: NaN is equal to the same NaN, and −0 is not 0."""
    state = hashlib.sha256()
    _feed(state, value)
    return state.hexdigest()


def _feed(state: Any, value: Any) -> None:
    if isinstance(value, Tensor):
        dense = value.detach().to_dense() if value.is_sparse else value.detach()
        state.update(f"{dense.dtype}{tuple(dense.shape)}".encode())
        state.update(dense.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    elif isinstance(value, dict):
        for key, item in value.items():
            state.update(repr(key).encode())
            _feed(state, item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _feed(state, item)
    else:
        state.update(repr(value).encode())


OURS = "gradwatch"


def left_behind(loop: Loop, before: frozenset[int]) -> list[str]:
    """Hooks of ours that are still there; `before` are the global ones of earlier watchers."""
    found = hooks_of(loop.model)
    for optimizer in loop.optimizers:
        for kind in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"):
            hooks = getattr(optimizer, kind)
            found += [f"optimizer {kind}" for hook in hooks.values() if _ours(hook)]
    return [*found, *(f"global hook {key}" for key in global_hooks() - before)]


def global_hooks() -> frozenset[int]:
    """The keys of torch's hooks for every optimizer of the process."""
    tables = (
        optimizer_module._global_optimizer_pre_hooks,
        optimizer_module._global_optimizer_post_hooks,
    )
    return frozenset(key for table in tables for key, hook in table.items() if _ours(hook))


def hooks_of(model: nn.Module) -> list[str]:
    """Hooks of ours on modules and parameters."""
    found = []
    for name, module in model.named_modules():
        for kind in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks"):
            found += [f"{name} {kind}" for hook in getattr(module, kind).values() if _ours(hook)]
    for name, parameter in model.named_parameters():
        for kind in ("_backward_hooks", "_post_accumulate_grad_hooks"):
            hooks = getattr(parameter, kind, None) or {}
            found += [f"{name} {kind}" for hook in hooks.values() if _ours(hook)]
    return found


def _ours(hook: Any) -> bool:
    function = getattr(hook, "func", hook)
    return any(
        str(getattr(part, "__module__", "")).startswith(OURS) for part in (function, type(function))
    )


def tiny() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
