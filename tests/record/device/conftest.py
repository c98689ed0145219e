"""Torch without threads of its own: the machine has few cores."""

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GRADWATCH_DEVICE_ENGINE", raising=False)
    torch.set_num_threads(1)
