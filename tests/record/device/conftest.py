"""The fixture under which CPU tensors are measured as on an accelerator."""

import pytest
import torch
from tests.record.device.pretending import pretend_on_device


@pytest.fixture
def on_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parameters and what layers give count as remote; numbers take a while to come over."""
    torch.set_num_threads(1)
    pretend_on_device(monkeypatch)
