"""For somebody with a GPU: are the numbers right on it, and what do they cost there?

First every statistic of both engines is held against the CPU kernel on made tensors; then GPT-2's
gradients are measured, beside the floor (reading as many bytes once), `torch._foreach_norm` and,
where it is installed, `wandb.watch`. Writes `gradwatch-gpu.json`, to be sent back. Where there is
no GPU it checks the numbers through Triton's interpreter and times nothing worth sending.
"""

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gradwatch.record.device import choice
from gradwatch.record.device.engine import Engine, Places, RowTimes, Wanted
from gradwatch.record.device.proof import NumberCheck, send_proof
from gradwatch.record.device.torch_engine import TorchEngine
from gradwatch.record.device.transfer import Transfer

FILE = Path("gradwatch-gpu.json")
TYPES = (torch.float32, torch.bfloat16, torch.float16)
GPT2_BLOCK = (
    *((768,), (768,), (2304, 768), (2304,), (768, 768), (768,)),
    *((768,), (768,), (3072, 768), (3072,), (768, 3072), (768,)),
)
GPT2 = ((50257, 768), (1024, 768), *(GPT2_BLOCK * 12), (768,), (768,))
SMALL = ((64, 48), (64,), (200, 16)) * 2
INTERPRET = "TRITON_INTERPRET"


def main() -> int:
    device = torch.accelerator.current_accelerator() or torch.device("cpu")
    if device.type == "cpu" and os.environ.get(INTERPRET) != "1":
        # It must be set before Python starts.
        command = [sys.executable, "-m", "benchmarks", "gpu"]
        return subprocess.run(command, env=os.environ | {INTERPRET: "1"}, check=False).returncode
    engines: list[Engine] = [TorchEngine(device)]
    hindrance = choice.hindrance(device)
    if not hindrance:
        engines.append(choice.triton_engine(TorchEngine(device)))
    checks = [check for engine in engines for check in proved(engine, device)]
    figures = {} if any(not check.ok for check in checks) else timed(engines, device)
    result = {
        "device": _name(device),
        "versions": _versions(),
        "engines": {engine.name: "checked" for engine in engines}
        | ({choice.TRITON: hindrance} if hindrance else {}),
        "checks": [asdict(check) for check in checks],
        "figures": figures,
    }
    FILE.write_text(json.dumps(result, indent=1) + "\n")
    wrong = [check for check in checks if not check.ok]
    for check in wrong:
        print(f"DIFFERS: {check.name} by {check.max_relative_error:.1e}")
    print(f"{len(checks) - len(wrong)} of {len(checks)} checks ok on {_name(device)}")
    for name, figure in figures.items():
        print(f"{name:44s}" + "".join(f"{key} {value:.3f}  " for key, value in figure.items()))
    print(f"wrote {FILE}: please send it back (docs/gpu.md)")
    return 1 if wrong else 0


def proved(engine: Engine, device: torch.device) -> list[NumberCheck]:
    """The checks of every type of numbers, named by engine."""
    sent = send_proof(engine, device, TYPES)
    transfer = Transfer(sent.parts)
    transfer.wait()
    return [
        NumberCheck(f"{engine.name} {check.name}", check.max_relative_error, check.ok)
        for check in sent.finish(transfer.parts())
    ]


def timed(engines: Sequence[Engine], device: torch.device) -> dict[str, dict[str, float]]:
    """Milliseconds and GB/s of each way to look at the gradients of one step."""
    shapes = SMALL if device.type == "cpu" else GPT2
    figures: dict[str, dict[str, float]] = {}
    for dtype in TYPES[:2]:
        label = str(dtype).removeprefix("torch.")
        tensors = [(torch.randn(shape, device=device) * 1e-3).to(dtype) for shape in shapes]
        size = sum(tensor.nbytes for tensor in tensors)
        for what, action in _ways(engines, tensors, device):
            seconds = _seconds(action, device)
            figures[f"{label} {what}"] = {"ms": seconds * 1e3, "GB/s": size / seconds / 1e9}
        if (cost := _wandb(tensors, device)) is not None:
            figures[f"{label} wandb.watch"] = {"ms": cost * 1e3}
    return figures


def _ways(
    engines: Sequence[Engine], tensors: Sequence[Tensor], device: torch.device
) -> Iterator[tuple[str, Callable[[], object]]]:
    flat = torch.cat([tensor.view(-1) for tensor in tensors])
    yield "floor: one read", flat.sum
    del flat
    yield "torch._foreach_norm", lambda: torch._foreach_norm(tensors)
    for engine in engines:
        for what, wanted in _steps(tensors, device):
            yield f"{engine.name}: {what}", _measuring(engine, tensors, wanted)


def _steps(tensors: Sequence[Tensor], device: torch.device) -> list[tuple[str, Wanted]]:
    rows = RowTimes([t.shape[0] if t.dim() > 1 else 0 for t in tensors], device)
    return [
        ("gradients", Wanted(rows=rows)),
        ("gradients, sketches", Wanted(rows=rows, sketches=True)),
        ("gradients, sketches, histograms", Wanted(rows=rows, sketches=True, histograms=True)),
        ("weights, histograms", Wanted(hashes=True, histograms=True)),
    ]


def _measuring(engine: Engine, tensors: Sequence[Tensor], wanted: Wanted) -> Callable[[], object]:
    """A recorded step: what is launched, and the copy of its numbers to the host."""
    count = len(tensors)
    sizes = np.array([tensor.numel() for tensor in tensors], np.int64)
    places = Places(np.arange(count, dtype=np.uint64), np.zeros(count, np.int64), sizes)
    return lambda: Transfer(engine.measure(tensors, places, wanted).parts)


def _seconds(action: Callable[[], object], device: torch.device) -> float:
    """Median of several, the device's queue empty before and after."""
    wait = torch.accelerator.synchronize if device.type != "cpu" else lambda: None
    rounds = 20 if device.type != "cpu" else 1
    times = []
    for turn in range(rounds + 2 * (rounds > 1)):  # the first ones compile and claim memory
        wait()
        start = time.perf_counter()
        action()
        wait()
        if turn >= 2 or rounds == 1:
            times.append(time.perf_counter() - start)
    return float(np.median(times))


class _Sum(nn.Module):
    """A model whose backward costs little beside what watches it."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        super().__init__()
        self.parts = nn.ParameterList([nn.Parameter(tensor.clone()) for tensor in tensors])

    def forward(self) -> Tensor:
        return torch.stack([part.float().sum() for part in self.parts]).sum()


def _wandb(tensors: Sequence[Tensor], device: torch.device) -> float | None:
    """Seconds that `wandb.watch` adds to a backward; None where it is not installed."""
    try:
        import wandb
    except ImportError:
        return None
    model = _Sum(tensors)

    def backward() -> None:
        model.zero_grad()
        model().backward()

    bare = _seconds(backward, device)
    with tempfile.TemporaryDirectory() as folder:
        run = wandb.init(mode="offline", dir=folder, settings=wandb.Settings(silent=True))
        wandb.watch(model, log="gradients", log_freq=1)
        watched = _seconds(backward, device)
        wandb.unwatch(model)
        run.finish()
    return watched - bare


def _name(device: torch.device) -> str:
    if device.type == "cpu":
        return "CPU, through Triton's interpreter"
    module = getattr(torch, device.type)
    return str(module.get_device_name()) if hasattr(module, "get_device_name") else str(device)


def _versions() -> dict[str, Any]:
    versions = {"torch": str(torch.__version__), "python": platform.python_version()}
    try:
        import triton
    except ImportError:
        return versions
    return versions | {"triton": triton.__version__}
