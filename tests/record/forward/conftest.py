"""No test of this folder disturbs the next one, or is disturbed by others of the process."""

import sys
from collections.abc import Iterator

import pytest
import torch
import torch.nn.modules.module as torch_module

from gradwatch.record.forward import ForwardHook


@pytest.fixture(autouse=True)
def _on_its_own() -> Iterator[None]:
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()  # where something was compiled the hooks are others
    yield
    for key, hook in list(torch_module._global_forward_hooks.items()):
        if isinstance(hook, ForwardHook):
            del torch_module._global_forward_hooks[key]
            torch_module._global_forward_hooks_with_kwargs.pop(key)
