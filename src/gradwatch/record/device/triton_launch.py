"""How the kernels of the Triton engine and their tables get to a device."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Launch = Callable[..., None]
"""Takes a kernel, the numbers of its programs, its arguments, and its constants by name."""
_BACKEND = "cuda" if torch.version.cuda else "hip" if torch.version.hip else ""
_WARPS = {"measure": 8, "step": 16, "look": 8}
_FEWER = {"measure": 8, "step": 8}
"""Of 64 threads, where others have 32."""


def options(kernel: Any, backend: str = _BACKEND) -> dict[str, Any]:
    """How a kernel is compiled; the same in the thread that compiles and where it is launched."""
    warps = (_FEWER if backend == "hip" else _WARPS).get(kernel.__name__, 4)
    chosen = {"num_warps": warps, "enable_fp_fusion": True}
    if backend == "cuda":
        chosen["maxnreg"] = 128  # of a thread, so that enough of them run at once
    return chosen


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
    """Launch a kernel; nobody waits for it."""
    kernel[grid](*arguments, **constants, **options(kernel))


def compile_only(kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
    """Compile what such a launch would need, without one."""
    kernel.warmup(*arguments, grid=grid, **constants, **options(kernel))


def on_device(device: torch.device) -> AbstractContextManager[Any]:
    """Triton launches on the current device."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def put(numbers: NDArray[Any], device: torch.device) -> Tensor:
    """An array on its way to the device; nobody waits for it."""
    host = torch.from_numpy(np.ascontiguousarray(numbers))
    # Pinned memory comes from torch's cache, which gives it to nobody before the copy is done.
    return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host


def address_of(number: Tensor | None, dtype: torch.dtype, hold: list[Tensor]) -> int:
    """Where one number lies on the device; what is made for it goes to `hold`."""
    if number is None:
        return 0
    hold.append(number.detach().reshape(-1)[:1].to(dtype))
    return hold[-1].data_ptr()
