"""A training recorded, and its gradients and weights handed in as arrays: the same numbers."""

import numpy as np
import pytest

from gradwatch.run import Run
from gradwatch.stats import Family, Stat, State, family_stats

torch = pytest.importorskip("torch")

STEPS = 70
FAMILIES = (Family.GRAD, Family.WEIGHT, Family.UPDATE)


class Net(torch.nn.Module):
    """Rows that are touched now and then, a part that is used from step 5 on, a frozen bias."""

    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(40, 6)
        self.hidden = torch.nn.Linear(6, 9)
        self.late = torch.nn.Linear(9, 9)
        self.head = torch.nn.Linear(9, 3)
        self.head.bias.requires_grad_(False)

    def forward(self, tokens, step: int):
        hidden = self.hidden(self.words(tokens)).relu()
        return self.head(hidden if step < 5 else self.late(hidden))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_arrays_say_what_the_recording_says(dtype) -> None:
    from tests.record.sinks import MemorySink, watch_into

    torch.manual_seed(0)
    model, sink = Net().to(dtype), MemorySink()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    watcher = watch_into(sink, model, optimizer)
    gradients = {name: [] for name, _ in model.named_parameters()}
    weights = {name: [] for name in gradients}
    for step in range(STEPS):
        optimizer.zero_grad()
        tokens = torch.randint(0, 30, (2,))
        model(tokens, step).float().square().mean().backward()
        for name, parameter in model.named_parameters():
            gradients[name].append(None if parameter.grad is None else parameter.grad.clone())
            weights[name].append(parameter.detach().clone())
        optimizer.step()
    watcher.close()
    run = Run.from_arrays(gradients, weights)
    for family in FAMILIES:
        for column, name in enumerate(run.names):
            compare(run, sink, family, column, name)


def compare(run: Run, sink, family: Family, column: int, name: str) -> None:
    steps = slice(STEPS - 1)  # the update of the last step is not handed in
    recorded = [sink.rows[family, step, name] for step in range(STEPS)][steps]
    rows, states = (np.array(part) for part in zip(*recorded, strict=True))
    measured = states == State.MEASURED
    for stat in family_stats(family):
        assert (run.state(stat)[steps, column] == states).all()
        found = run.series[stat][steps, column]
        assert np.isnan(found[~measured]).all()
        if stat is Stat.GRAD_COSINE:
            # Gradients as small as these are in the recorder's sample whole.
            np.testing.assert_allclose(found[measured], rows[stat][measured], atol=2e-6)
        elif stat is not Stat.WEIGHT_HASH:
            np.testing.assert_array_equal(found[measured], rows[stat][measured], stat)
        elif run.parameters[column].dtype != "bfloat16":
            # Of the bits: those of a bfloat16 are others than those of the float32 it is read as.
            assert (run.integers(stat)[steps, column] == rows[stat]).all()
