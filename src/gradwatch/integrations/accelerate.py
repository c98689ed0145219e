"""Accelerate has no callbacks: `watcher = watch(accelerator, model, optimizer)` after `prepare`."""

from typing import Any

from gradwatch.live import watch as watch_plainly


def watch(accelerator: Any, model: Any, *optimizers: Any, **options: Any) -> Any:
    """As `gradwatch.watch`, for what `accelerator.prepare` gave back; passes its GradScaler."""
    options.setdefault("scaler", getattr(accelerator, "scaler", None))
    bare = [getattr(optimizer, "optimizer", optimizer) for optimizer in optimizers]
    return watch_plainly(accelerator.unwrap_model(model), *bare, **options)
