"""A weight matrix uses only a few of its directions.

What is seen (with --spectrum): the effective rank, exp of the entropy of the squared singular
values, or for large matrices the sum of the squares divided by the largest, is below `share` of
the smaller side.

Why it hurts: the layer has collapsed to a few directions; what it passes on has no more. For
adapters and deliberately factored layers it is expected.

What helps: a lower learning rate, less weight decay, normalisation; or replace the matrix by
two thin ones.

Threshold: 2 % of a side of at least 64. Trained layers of our healthy checkpoints keep more
than 35 %.
"""

from gradwatch.checks.check import Outcome, Run, Severity, Skipped, Stat
from gradwatch.checks.tensors import TensorFault, checkpoint_of, findings, is_matrix
from gradwatch.text import number

NAME = "low-rank"
NEEDS = frozenset({Stat.WEIGHT_NORM})


def check(run: Run, *, share: float = 0.02, least: int = 64) -> Outcome:
    """Yield one finding for all; skipped without spectra."""
    checkpoint = checkpoint_of(run)
    if checkpoint.spectra is None:
        yield Skipped(NAME, "singular values are computed with --spectrum")
        return
    faults = []
    for stats in checkpoint.tensors:
        spectrum = checkpoint.spectra.get(stats.name)
        if spectrum is None or not is_matrix(stats.tensor) or spectrum.full_rank < least:
            continue
        rank = spectrum.effective_rank if spectrum.exact else spectrum.stable_rank
        if rank < share * spectrum.full_rank:
            words = f"effective rank {number(rank)} of {spectrum.full_rank}"
            faults.append(TensorFault(stats, rank / spectrum.full_rank, words))
    yield from findings(
        NAME,
        run,
        faults,
        {Severity.WARNING: share},
        stat=Stat.WEIGHT_NORM,
        cause="Almost all of this matrix lies in a few directions.",
        advice=(
            "Lower the learning rate or the weight decay.",
            "If it is meant to be so, store it as two thin matrices.",
        ),
        below=True,
    )
