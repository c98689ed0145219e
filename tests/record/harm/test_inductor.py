"""Compiled for real (C++ is generated): the same to the bit, and not one graph or break more."""

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
from tests.record.harm.comparing import train
from tests.record.harm.loops import Loop, classes, mlp, plain, sgd, vectors
from torch import nn
from torch._dynamo.utils import counters

needs_compiler = pytest.mark.skipif(
    shutil.which("c++") is None and shutil.which("g++") is None, reason="no C++ compiler"
)


def inductor(dtype: torch.dtype, *, watched: str, optimizer: bool = False) -> Loop:
    torch._dynamo.reset()
    model = mlp(nn.BatchNorm1d(16), nn.ReLU()).to(dtype)
    fast: Any = torch.compile(model)
    steps = sgd(model)
    if optimizer:
        steps.step = torch.compile(steps.step)  # type: ignore[method-assign]
    loop = plain(fast, steps, vectors(12, 6, dtype=dtype), classes)
    return Loop(model if watched == "inside" else fast, [steps], loop.step)


CASES: dict[str, Callable[[], Loop]] = {
    "fp32, watched inside": partial(inductor, torch.float32, watched="inside"),
    "fp32, watched outside": partial(inductor, torch.float32, watched="outside"),
    "bf16, watched inside": partial(inductor, torch.bfloat16, watched="inside"),
    "bf16, watched outside": partial(inductor, torch.bfloat16, watched="outside"),
    "compiled optimizer": partial(inductor, torch.float32, watched="inside", optimizer=True),
}


@pytest.mark.long
@needs_compiler
@pytest.mark.parametrize("case", CASES)
def test_compiled_trainings_are_the_same(case: str, tmp_path: Path) -> None:
    counters.clear()
    alone = train(CASES[case], None)
    graphs = counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())
    counters.clear()
    watched = train(CASES[case], tmp_path / "run", budget=1.0)
    assert alone.differences(watched) == []
    assert counters["stats"]["unique_graphs"] <= graphs[0]
    assert sum(counters["graph_break"].values()) <= graphs[1]


@pytest.mark.parametrize("watched", ["inside", "outside"])
def test_no_graph_and_no_break_more(watched: str, tmp_path: Path) -> None:
    """The quick form, without code generation."""

    def make() -> Loop:
        torch._dynamo.reset()
        model = mlp(nn.BatchNorm1d(16), nn.ReLU())
        fast: Any = torch.compile(model, backend="eager")
        loop = plain(fast, sgd(model), vectors(12, 6), classes)
        return Loop(model if watched == "inside" else fast, loop.optimizers, loop.step)

    found = []
    for folder in (None, tmp_path / "run"):
        counters.clear()
        train(make, folder, **({} if folder is None else {"budget": 1.0}))
        breaks = sum(counters["graph_break"].values())
        found.append((counters["stats"]["unique_graphs"], breaks))
    assert found[0] == found[1]
