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
    from gradwatch.record.device.triton_engine import options, variants
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    for kernel, arguments, constants in variants([dtype]):
        names = [name for name in kernel.arg_names if name not in constants]
        types = [NAMES[a] if a in NAMES else ("i64" if a > 1 << 31 else "i32") for a in arguments]
        signature = dict(zip(names, types, strict=True)) | dict.fromkeys(constants, "constexpr")
        places = {name: place for place, name in enumerate(kernel.arg_names)}
        sixteen = {(places[n],): [["tt.divisibility", 16]] for n in names if "*" in signature[n]}
        ordered = {name: signature[name] for name in kernel.arg_names}
        source = ASTSource(fn=kernel, signature=ordered, constexprs=constants, attrs=sixteen)
        chosen = options(kernel, nvidia=target.startswith("sm"))
        made = triton.compile(source, target=GPUTarget(*TARGETS[target]), options=chosen)
        yield kernel.__name__, constants, made


def nvidia(assembly: dict[str, Any], target: str, folder: Path) -> tuple[int, int, bool]:
    """Bytes spilled, registers, and whether 16 bytes are loaded at once."""
    import triton

    source = folder / "kernel.ptx"
    source.write_text(assembly["ptx"])
    assembler = Path(str(triton.__file__)).parent / "backends/nvidia/bin/ptxas"
    command = [assembler, "-v", f"--gpu-name={target}{'a' if target == 'sm_90' else ''}", source]
    done = subprocess.run(
        [*command, "-o", folder / "kernel.cubin"], capture_output=True, text=True, check=True
    )
    spilled = sum(int(n) for n in re.findall(r"(\d+) bytes spill", done.stderr))
    (registers,) = re.findall(r"Used (\d+) registers", done.stderr)
    return spilled, int(registers), bool(re.search(r"ld\.global[\w.]*\.v4\.b32", assembly["ptx"]))


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
    for name, constants, made in compiled(target, dtype):
        if target.startswith("sm"):
            spilled, registers, wide = nvidia(made.asm, target, tmp_path)
        else:
            spilled, registers, wide = amd(made.asm)
        what = f"{name} {constants}"
        assert spilled == 0, what
        assert registers <= MOST_REGISTERS, f"{registers} of {what}"
        if name in READERS and constants["ALIGNED"] and not constants.get("PICKED"):
            assert wide, what
