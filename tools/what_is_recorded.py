"""`docs/what-is-recorded.md`, made from the catalogue: `python -m tools.what_is_recorded`."""

from gradwatch.stats.catalogue import Cadence, Family, Stat, State, family_stats

_HEAD = """\
# What is recorded

This page is made from the table in the code (`python -m tools.what_is_recorded`); a test keeps
the two equal.

Steps count from 0. Statistics describe the finite elements; NaN and Inf are counted beside them.
Gradients are those before the user's clipping, with the factor of the clipping beside them;
weights are those before the update of the step. *k* is 1 to begin with and is doubled where the
budget would otherwise be exceeded; the first ten steps record everything, and `every=n` makes
every family due on each n-th step. "Every step" below means each k-th, too, once k has grown.
"""

_TITLES = {
    Family.GRAD: "Gradients, per parameter",
    Family.WEIGHT: "Weights, per parameter",
    Family.UPDATE: "Updates, per parameter",
    Family.OPTIM: "Optimizer state, per parameter",
    Family.ACT: "Activations, per layer",
    Family.PROBE: "Probes, per layer",
    Family.GROUP: "Groups of the optimizer",
}
_COSTS = {
    Family.GRAD: "one call of the kernel, which passes over the gradients once",
    Family.WEIGHT: "one pass over the weights",
    Family.UPDATE: "a copy of the weights before the step and one pass after it",
    Family.OPTIM: "one pass over gradients and second moments",
    Family.ACT: "one pass over every layer's output, and over what relu, tanh and sigmoid gave; "
    "16 rows of up to 16 heads of a softmax or attention",
    Family.PROBE: "up to 4,096 elements per layer (1,024 of an output of more than 65,536), about "
    "10 µs where code is warm and several times that between large products; a row is written on "
    "recorded steps, and where something is not finite",
    Family.GROUP: "nothing to speak of",
}
_NOTES = {
    Family.ACT: "A forward without gradients or without a backward, a validation for one, is "
    "dropped. Of calls in one step all count; those in a reentrant checkpoint once. What lies "
    "behind a checkpoint or a saved-tensor hook is not looked into. Layers inside parts that "
    "`torch.compile` was applied to are not looked at; the run says so.",
    Family.PROBE: "Modules that make no NaN of finite numbers (ReLU, max pooling, dropout …) are "
    "not probed. After the first hit of a step all elements are looked at.",
}

SCALARS: tuple[tuple[str, str, str], ...] = (
    ("loss, val_loss", "where logged", "what `watcher.log` was given; any other name as well"),
    ("loss_nonfinite", "where logged", "1 where the logged loss is NaN or infinite"),
    ("input_rms", "every step", "RMS of the finite elements of the model's float inputs"),
    ("input_abs_max", "every step", "largest magnitude among them"),
    ("input_nonfinite", "every step", "NaN and infinite elements among them"),
    ("batch_fingerprint", "every step", "32 bits of shapes, types and some bits of all inputs"),
    ("output_rms", "every 4k steps", "RMS of the model's output"),
    ("output_spread", "every 4k steps", "how far rows of a batch differ, relative to that"),
    ("predicted_class", "every 4k steps", "the class that the output predicts most"),
    ("predicted_share", "every 4k steps", "share of the rows for which it does"),
    ("predicted_classes", "every 4k steps", "classes that are predicted at all"),
    ("probe_input_unread", "where seen", "1 where the first bad layer's input could not be read"),
    ("evaluations", "where seen", "calls of the model without gradients since the step before"),
    ("evaluations_in_training", "where seen", "those with dropout or BatchNorm in training mode"),
    ("training_mode", "every k steps", "1 while the model itself is in training mode"),
    ("clip_factor", "every k steps", "what the user's clipping multiplied the gradient by"),
    ("outside_change", "where seen", "largest change of a weight by another than the optimizer"),
    ("backwards", "every k steps", "backward passes since the step before"),
    ("stale", "every k steps", "1 where gradients were not zero before the first backward"),
    ("skipped", "every step", "1 where a gradient scaler left the step out"),
    ("step_seconds", "every step", "wall time of the step"),
)
"""Scalars beside the user's own: name, cadence, meaning."""

_STATES = {
    State.MEASURED: "measured on every element",
    State.NOT_SAMPLED: "not due on this step",
    State.NO_GRADIENT: "the gradient was None",
    State.SKIPPED_STEP: "the step was skipped by a gradient scaler",
    State.UNSUPPORTED: "a tensor we cannot read (its layout, type or device)",
    State.SAMPLED: "measured on a fixed sample of the coordinates",
    State.PARTIAL: "not all shards of this step were there",
    State.CLIPPED: "measured after a clipping that cannot be undone",
}


_ACCELERATORS = """\
## On accelerators

What lives on a GPU is measured there, by a few operations of torch's ([which, and how far they are
proven](gpu.md)). The training never waits for a number: what was measured is sent when the
optimizer steps, and written as rows of its step when it has arrived, a step or a few later. The
numbers are those of the CPU, but:

- Norm, mean magnitude and largest magnitude are exact, and so is whether an element is NaN or
  infinite. Everything else of a tensor of more than 4,096 elements is told by at most that many
  evenly spread ones (state *sampled*): shares are those of the sample, NaN and Inf are counted in
  it (at least one where there is one). Where an element is not finite, norms describe the finite
  part of the sample.
- Of a model of more than 256 tensors of one type the mean magnitude of gradients is taken on one
  recorded step of four.
- Histograms and Adam's ratio are not recorded.
- Rows of gradients are looked at on one recorded step of four; between them the last counts stand,
  and a dead row is one that was zero on the last 64 looks. The spread of a weight's rows is told by
  17 of them and 64 columns.
- Updates and cosines are taken from the samples.
- The hash of a weight is one of its statistics: weights that are equal have equal hashes, and a
  change shows where it changes a norm, the mean or largest magnitude, or a sampled element.
- Clipping by value is known only where a sampled gradient shows it. Whether somebody else changes
  weights between two steps is not looked at, nor whether gradients that are left over are zeros.
- Sparse gradients are *unsupported*.
- Probes look at 4,096 elements of each output and of each first input. That one of them is not
  finite is written as 1, how many are is not known; the state is *sampled*. They look at the first
  call of each layer on a step.
- The hooks of a step queue at most 500 operations; a layer that comes after them is *not sampled*
  on this step and one of the first on the next.
- Nothing is recorded while a CUDA graph is captured, nor when one is replayed.
- The time that devices work for us is measured too; the overhead and the cadence go by the larger
  of both times.
- Inputs of more than 16,384 elements are read at that many evenly spread ones.
- Activations are those of 4,096 evenly spread elements (*sampled*). What relu, tanh, sigmoid,
  softmax and attention do is not looked at.
- The kind of the loss is known only from a logged tensor.

Nothing is kept on the device; for a moment a step takes a few megabytes: 2 for GPT-2, 3 for 7
billion parameters. On the host the last samples are kept, up to 32 KB per tensor.
"""


def page() -> str:
    """The whole page."""
    families = "\n".join(_family(family) for family in Family)
    return f"{_HEAD}\n{families}\n{_scalars()}\n{_ACCELERATORS}\n{_states()}"


def _family(family: Family) -> str:
    cadence = str(family.cadence)
    if family.cadence is Cadence.STEP:
        cadence += ", as long as the budget allows"
    parts = [f"## {_TITLES[family]}\n", f"Cadence: {cadence}. Cost: {_COSTS[family]}.\n"]
    if family in _NOTES:
        parts.append(f"{_NOTES[family]}\n")
    parts += ["| statistic | unit | meaning |", "|---|---|---|"]
    parts += map(_row, family_stats(family))
    return "\n".join(parts) + "\n"


def _row(stat: Stat) -> str:
    meaning = stat.meaning.replace("|", r"\|")
    return f"| `{stat}` | {stat.unit or '–'} | {meaning} |"


def _scalars() -> str:
    lines = ["## Scalars, per step\n", "| name | cadence | meaning |", "|---|---|---|"]
    lines += [f"| `{name}` | {cadence} | {meaning} |" for name, cadence, meaning in SCALARS]
    return "\n".join(lines) + "\n"


def _states() -> str:
    lines = [
        "## Why a value is missing\n",
        "NaN in a series only says that there is no finite number; `run.state(stat)` says why.\n",
        "| state | meaning |",
        "|---|---|",
    ]
    lines += [
        f"| {state.name.lower().replace('_', ' ')} | {text} |" for state, text in _STATES.items()
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(page(), end="")
