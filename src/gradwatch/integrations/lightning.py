"""Lightning: `Trainer(callbacks=[GradwatchLightningCallback()])`, any kind of optimization.

Passes the optimizers, the step number and the losses. In automatic optimization Lightning runs the
backward pass inside `optimizer.step`; the watcher knows such closures.
"""

from collections.abc import Mapping
from typing import Any

from lightning.pytorch import Callback

from gradwatch.live import watch


class GradwatchLightningCallback(Callback):  # type: ignore[misc]
    """Watches from the first batch to the last; takes the arguments of `gradwatch.watch`."""

    def __init__(self, run: Any = None, **options: Any) -> None:
        self._run, self._options = run, options
        self.watcher: Any = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to watch: by now Lightning has made the optimizers."""
        self.watcher = watch(
            pl_module,
            *trainer.optimizers,
            run=self._run,
            step=trainer.global_step,
            **self._options,
        )

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Log the loss, and stop the training when the watcher says so."""
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if loss is not None:
            self.watcher.log(loss=loss)
        if self.watcher.should_stop:
            trainer.should_stop = True

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Log `val_loss`, but not that of the sanity check before the training."""
        loss = trainer.callback_metrics.get("val_loss")
        if loss is not None and self.watcher is not None and not trainer.sanity_checking:
            self.watcher.log(val_loss=loss)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Write what is left and close the run."""
        self.watcher.close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Close the run, so that what led to the exception is on disk."""
        if self.watcher is not None:
            self.watcher.__exit__(type(exception), exception, None)
