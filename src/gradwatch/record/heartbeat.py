"""The optimizer's hooks: torch's global ones, so that no optimizer is missed or altered.

The global hooks see every optimizer of the process, also one that was made, replaced or wrapped
after `watch`, and nothing is stored in any of them.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from gradwatch.record.barrier import Barrier

Beat = Callable[[Optimizer, tuple[Any, ...], dict[str, Any]], None]


class Heartbeat:
    """Calls `before` and `after` around the step of every optimizer in the process."""

    def __init__(self, barrier: Barrier, before: Beat, after: Beat) -> None:
        # Compiled steps run the hooks too; disabled, they are not traced into the graph.
        @torch.compiler.disable  # type: ignore[untyped-decorator]
        def pre(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            barrier.run(before, optimizer, args, kwargs)

        @torch.compiler.disable  # type: ignore[untyped-decorator]
        def post(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            barrier.run(after, optimizer, args, kwargs)

        self._handles = [
            register_optimizer_step_pre_hook(pre),
            register_optimizer_step_post_hook(post),
        ]

    def stop(self) -> None:
        """Take the hooks away; twice does nothing."""
        for handle in self._handles:
            handle.remove()
        self._handles = []


def bare_optimizer(thing: Any) -> Optimizer | None:
    """The innermost torch optimizer: wrappers keep it in `.optimizer`, and some (accelerate's) are
    optimizers themselves that never run the hooks given to them."""
    found = None
    for _ in range(4):
        if isinstance(thing, Optimizer):
            found = thing
        thing = getattr(thing, "optimizer", None)
    return found
