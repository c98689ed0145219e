"""The kernels as compilers leave them, for devices that are not here: no spills, wide loads."""

import re
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed"),
]
TARGETS = {"sm_80": ("cuda", 80, 32), "sm_90": ("cuda", 90, 32), "gfx942": ("hip", "gfx942", 64)}
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
NAMES = {torch.float32: "*fp32", torch.float64: "*fp64", torch.int32: "*i32", torch.int64: "*i64"}
MOST_REGISTERS = 128
READERS = ("measure", "step", "look")
"""Kernels that read whole tensors: aligned ones 16 bytes at once."""


def compiled(target: str, dtype: torch.dtype) -> Iterator[tuple[str, dict[str, Any], Any]]:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from gradwatch.record.device.triton_engine import rehearse
    from gradwatch.record.device.triton_launch import options

    wanted: dict[str, tuple[Any, list[str], dict[str, Any]]] = {}

    def note(kernel: Any, grid: Any, *arguments: Any, **constants: Any) -> None:
        types = [NAMES[a.dtype] if isinstance(a, torch.Tensor) else _integer(a) for a in arguments]
        wanted[f"{kernel.__name__} {types} {constants}"] = kernel, types, constants

    rehearse(note, [dtype])
    for kernel, types, constants in wanted.values():
        names = [name for name in kernel.arg_names if name not in constants]
        signature = dict(zip(names, types, strict=True)) | dict.fromkeys(constants, "constexpr")
        places = {name: place for place, name in enumerate(kernel.arg_names)}
        sixteen = {(places[n],): [["tt.divisibility", 16]] for n in names if "*" in signature[n]}
        ordered = {name: signature[name] for name in kernel.arg_names}
        source = ASTSource(fn=kernel, signature=ordered, constexprs=constants, attrs=sixteen)
        chosen = options(kernel, TARGETS[target][0])
        made = triton.compile(source, target=GPUTarget(*TARGETS[target]), options=chosen)
        yield kernel.__name__, constants, made


def _integer(number: int) -> str:
    return "i64" if number >= 1 << 31 else "i32"


def nvidia(assembly: dict[str, Any], folder: Path) -> tuple[int, int, bool]:
    """Bytes spilled, registers, and whether 16 bytes are loaded at once."""
    import triton

    made = folder / "kernel.cubin"
    made.write_bytes(assembly["cubin"])
    reader = Path(str(triton.__file__)).parent / "backends/nvidia/bin/cuobjdump"
    done = subprocess.run([reader, "-res-usage", made], capture_output=True, text=True, check=True)
    ((registers, stack, local),) = re.findall(r"REG:(\d+) STACK:(\d+) .*LOCAL:(\d+)", done.stdout)
    wide = re.search(r"ld\.global[\w.]*\.v4\.b32", assembly["ptx"])
    return int(stack) + int(local), int(registers), wide is not None


def amd(assembly: dict[str, Any]) -> tuple[int, int, bool]:
    text = assembly["amdgcn"]
    spilled = sum(int(n) for n in re.findall(r"\.[sv]gpr_spill_count: *(\d+)", text))
    (registers,) = re.findall(r"\.vgpr_count: *(\d+)", text)
    return spilled, int(registers), "load_dwordx4" in text


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("target", TARGETS)
def test_nothing_is_spilled_and_loads_are_wide(
    target: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    wrong = []
    on_nvidia = target.startswith("sm")
    for name, constants, made in compiled(target, dtype):
        if on_nvidia:
            spilled, registers, wide = nvidia(made.asm, tmp_path)
        else:
            spilled, registers, wide = amd(made.asm)
        reads = name in READERS and constants["ALIGNED"] and not constants.get("PICKED")
        # AMD has no limit to set: weights that are not aligned, which nobody has, take 136 there.
        few = registers <= MOST_REGISTERS or (not on_nvidia and not constants.get("ALIGNED", True))
        if spilled or not few or (reads and not wide):
            wrong.append(f"{name} {constants}: {spilled} spilled, {registers}, wide {wide}")
    assert wrong == []
