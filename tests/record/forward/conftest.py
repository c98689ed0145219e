"""A test that leaves its forward part to itself must not disturb the next one."""

from collections.abc import Iterator

import pytest
import torch.nn.modules.module as torch_module

from gradwatch.record.forward import ForwardHook


@pytest.fixture(autouse=True)
def _no_hook_is_left() -> Iterator[None]:
    yield
    for key, hook in list(torch_module._global_forward_hooks.items()):
        if isinstance(hook, ForwardHook):
            del torch_module._global_forward_hooks[key]
            torch_module._global_forward_hooks_with_kwargs.pop(key)
