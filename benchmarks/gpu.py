"""For somebody with a GPU: are the numbers right on it, and what do they cost there?

First both ways to measure (torch's operations, the Triton kernel) are held against the kernel of
the CPU on made tensors; then GPT-2's gradients are measured, beside the floor (reading as many
bytes once). Writes `gradwatch-gpu.json`, to be sent back. Where there is no GPU it checks the
numbers on the CPU, through Triton's interpreter, and times nothing worth sending.
"""

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradwatch import kernel
from gradwatch.record import device as device_meter
from gradwatch.record.device import Engine, Seen
from gradwatch.record.transfer import Transfer

FILE = Path("gradwatch-gpu.json")
INTERPRET = "TRITON_INTERPRET"
TYPES = (torch.float32, torch.bfloat16, torch.float16)
BLOCK = (
    *((768,), (768,), (2304, 768), (2304,), (768, 768), (768,)),
    *((768,), (768,), (3072, 768), (3072,), (768, 3072), (768,)),
)
GPT2 = ((50257, 768), (1024, 768), *(BLOCK * 12), (768,), (768,))
SMALL = ((64, 80), (64,), (200, 16)) * 2
NORMS = ("norm", "abs_mean", "abs_max")
EXACT = ("count", "zeros", "nan", "pos_inf", "neg_inf", "zero_rows", "min", "max")
TOLERANCE, SUMMED = 1e-5, 1e-3
"""Of sums about a mean; of norms that torch adds up in float32, on a CPU one by one."""


def main() -> int:
    device = torch.accelerator.current_accelerator() or torch.device("cpu")
    if device.type == "cpu" and os.environ.get(INTERPRET) != "1":
        # It must be set before Python starts.
        command = [sys.executable, "-m", "benchmarks", "gpu"]
        return subprocess.run(command, env=os.environ | {INTERPRET: "1"}, check=False).returncode
    engines: dict[str, Engine] = {device_meter.TORCH: device_meter.by_torch}
    if not (hindrance := device_meter.hindrance(device)):
        engines[device_meter.TRITON] = import_module("gradwatch.record.triton").by_triton
    checks = [one for name, engine in engines.items() for one in proved(name, engine, device)]
    wrong = [check for check in checks if not check["ok"]]
    figures = {} if wrong else timed(engines, device)
    result = {
        "device": _name(device),
        "versions": {"torch": str(torch.__version__), "python": platform.python_version()},
        "engines": dict.fromkeys(engines, "checked") | ({"triton": hindrance} if hindrance else {}),
        "checks": checks,
        "figures": figures,
    }
    FILE.write_text(json.dumps(result, indent=1) + "\n")
    for check in wrong:
        print(f"DIFFERS: {check['name']} by {check['max_relative_error']:.1e}")
    print(f"{len(checks) - len(wrong)} of {len(checks)} checks ok on {_name(device)}")
    for name, figure in figures.items():
        print(f"{name:32s}" + "  ".join(f"{key} {value:.3f}" for key, value in figure.items()))
    print(f"wrote {FILE}: please send it back (docs/gpu.md)")
    return 1 if wrong else 0


# -- numbers ---------------------------------------------------------------------------------------


def made() -> dict[str, Tensor]:
    """Tensors of many kinds, in float64; of each a small and a large one."""
    generator = torch.Generator().manual_seed(0)
    kinds: dict[str, Tensor] = {}
    for size, shape in (("small", (37, 50)), ("large", (70, 130))):
        x = torch.randn(shape, generator=generator, dtype=torch.float64)
        kinds |= {f"{size} gaussian": x, f"{size} constant": torch.full_like(x, 0.75)}
        kinds[f"{size} far offset"] = x * 0.25 + 100
        kinds[f"{size} huge"], kinds[f"{size} subnormal"] = x * 1e4, x * 1e-7
        kinds[f"{size} zero rows"] = x * (torch.arange(len(x)) % 3 > 0).view(-1, 1)
        for name, value in (("one NaN", np.nan), ("one Inf", np.inf)):
            kinds[f"{size} {name}"] = x.clone()
            kinds[f"{size} {name}"][1, 1] = value
    return kinds


def proved(name: str, engine: Engine, device: torch.device) -> list[dict[str, Any]]:
    """Every kind and type against float64 on the CPU."""
    checks = []
    for dtype in TYPES:
        kinds = made()
        tensors = [x.to(dtype) for x in kinds.values()]
        given = [x.to(device) for x in tensors]
        # Views that are not aligned beside those that are.
        given += [torch.cat([x.view(-1)[:1], x.view(-1)])[1:].view(x.shape) for x in given[:2]]
        tensors += tensors[:2]
        labels = [*kinds, *(f"{kind}, not aligned" for kind in list(kinds)[:2])]
        parts, finish = engine(given, True)
        transfer = Transfer(parts)
        transfer.wait()
        found = list(finish(iter(transfer.parts()), 1.0))
        arrays = [x.double().numpy() for x in tensors]
        batch, owners = kernel.batch_of(arrays)
        marks = [np.zeros(len(x), np.uint8) for x in owners]
        truth = kernel.measure(batch, touched=marks).records
        truth["zero_rows"] = [int((mark == 0).sum()) for mark in marks]
        for at, label in enumerate(labels):
            error, ok = _compared(found[at], truth[at])
            text = f"{name} {str(dtype).removeprefix('torch.')} {label}"
            checks.append({"name": text, "max_relative_error": error, "ok": bool(ok)})
    return checks


def _compared(seen: Seen, truth: np.void) -> tuple[float, bool]:
    """The largest relative error, and whether everything is as near as it should be."""
    found, whole = seen.record, seen.whole
    found["zero_rows"] = 0 if seen.touched is None else np.count_nonzero(~seen.touched)
    if not whole and (truth["nan"] or truth["pos_inf"]):  # of the rest a sample tells
        ok = all(not truth[kind] or found[kind] >= 1 for kind in ("nan", "pos_inf"))
        return 0.0, ok and found["zero_rows"] == truth["zero_rows"]
    spread = float(truth["norm"]) / np.sqrt(float(truth["count"]))
    errors = {name: _relative(found[name], truth[name], 0.0) for name in NORMS}
    exact: tuple[str, ...] = ("count", "zero_rows")
    if whole:
        errors |= {name: _relative(found[name], truth[name], spread) for name in ("mean", "std")}
        exact = EXACT
    worst = max(errors.values())
    equal = all(found[name] == truth[name] for name in exact)
    return worst, equal and worst <= (TOLERANCE if whole else SUMMED)


def _relative(found: float, truth: float, floor: float) -> float:
    return 0.0 if found == truth else float(abs(found - truth) / max(abs(truth), floor))


# -- time ------------------------------------------------------------------------------------------


def timed(engines: dict[str, Engine], device: torch.device) -> dict[str, dict[str, float]]:
    """Milliseconds and GB/s of each way to look at the gradients of one step."""
    figures: dict[str, dict[str, float]] = {}
    for dtype in TYPES[:2]:
        shapes = SMALL if device.type == "cpu" else GPT2
        tensors = [(torch.randn(shape, device=device) * 1e-3).to(dtype) for shape in shapes]
        size = sum(tensor.nbytes for tensor in tensors)
        label = str(dtype).removeprefix("torch.")
        for what, action in _ways(engines, tensors):
            seconds = _seconds(action, device)
            figures[f"{label} {what}"] = {"ms": seconds * 1e3, "GB/s": size / seconds / 1e9}
    return figures


def _ways(
    engines: dict[str, Engine], tensors: list[Tensor]
) -> Iterator[tuple[str, Callable[[], object]]]:
    flat = torch.cat([tensor.view(-1) for tensor in tensors])
    yield "floor: one read", flat.sum
    del flat
    yield "torch._foreach_norm", lambda: torch._foreach_norm(tensors)
    for name, engine in engines.items():
        for rows, what in ((False, "gradients"), (True, "gradients, rows")):
            yield f"{name}: {what}", partial(_measured, tensors, engine, rows=rows)


def _measured(tensors: list[Tensor], engine: Engine, *, rows: bool) -> Transfer:
    return Transfer(engine(tensors, rows)[0])


def _seconds(action: Callable[[], object], device: torch.device) -> float:
    """Median of several, the device's queue empty before and after."""
    wait = torch.accelerator.synchronize if device.type != "cpu" else lambda: None
    times = []
    for _ in range(22 if device.type != "cpu" else 3):
        wait()
        start = time.perf_counter()
        action()
        wait()
        times.append(time.perf_counter() - start)
    return float(np.median(times[2:]))  # the first ones compile and claim memory


def _name(device: torch.device) -> str:
    if device.type == "cpu":
        return "CPU, through Triton's interpreter"
    module = getattr(torch, device.type)
    return str(module.get_device_name()) if hasattr(module, "get_device_name") else str(device)
