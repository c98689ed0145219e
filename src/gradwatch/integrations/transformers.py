"""Hugging Face Trainer: `Trainer(…, callbacks=[GradwatchTrainerCallback()])`.

Passes the optimizer, the step number and the losses; what clipping and accumulation did is seen by
the watcher itself.
"""

from typing import Any

from transformers import TrainerCallback

from gradwatch.live import watch

NAMES = {"loss": "loss", "eval_loss": "val_loss"}


class GradwatchTrainerCallback(TrainerCallback):  # type: ignore[misc]
    """Watches from the first step to the last; takes the arguments of `gradwatch.watch`."""

    def __init__(self, run: Any = None, **options: Any) -> None:
        self._run, self._options = run, options
        self.watcher: Any = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Begin to watch: by now the Trainer has made the optimizer."""
        self.watcher = watch(
            given["model"],
            given["optimizer"],
            run=self._run,
            step=state.global_step,
            **self._options,
        )

    def on_log(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Log the training and validation losses that the Trainer reports."""
        logs = given.get("logs") or {}
        losses = {ours: logs[theirs] for theirs, ours in NAMES.items() if theirs in logs}
        if losses and self.watcher is not None:
            self.watcher.log(losses)

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Stop the training when the watcher says so."""
        if self.watcher is not None and self.watcher.should_stop:
            control.should_training_stop = True

    def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Write what is left and close the run."""
        if self.watcher is not None:
            self.watcher.close()
