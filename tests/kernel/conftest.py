"""Every test that asks for `instruction_set` runs on each one this machine has, numpy included."""

from collections.abc import Iterator

import pytest

from gradwatch import kernel


@pytest.fixture(params=kernel.available())
def instruction_set(request: pytest.FixtureRequest) -> Iterator[str]:
    before = kernel.instruction_set
    kernel.select(request.param)
    yield request.param
    kernel.select(before)


@pytest.fixture(params=[name for name in kernel.available() if name != "none"])
def compiled_set(request: pytest.FixtureRequest) -> Iterator[str]:
    """The same without numpy."""
    before = kernel.instruction_set
    kernel.select(request.param)
    yield request.param
    kernel.select(before)
