"""Every form of loop against a float64 truth: gradient, weights, update, factor, step number."""

import pytest
import tests.record.loops_models
import tests.record.loops_optimizers
import tests.record.loops_scaled  # noqa: F401  (each adds its rows to the table)
import torch
from tests.record.comparing import compare_run
from tests.record.loops import LOOPS, Loop


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.name)
def test_what_is_recorded_is_what_happened(loop: Loop) -> None:
    torch.set_num_threads(1)
    compare_run(loop, loop.tolerance)
