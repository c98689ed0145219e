"""The costliest attacks, through the program: a sentence, 1 GiB, 20 seconds of processor time."""

import json
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from tests.checkpoints.files import safetensors_bytes, text, torch_zip, zip_bytes

MEASURED = """
import resource, subprocess, sys
command = [sys.executable, "-m", "gradwatch", "weights", sys.argv[1]]
done = subprocess.run(command, capture_output=True)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(done.returncode, used.ru_maxrss // 1024, int(used.ru_utime + used.ru_stime))
sys.stderr.write(done.stderr.decode("utf-8", "replace")[-2000:])
"""

COSTLY = {
    "a header of 15 MB of keys": lambda: safetensors_bytes(
        b"{" + b",".join(b'"%d":{}' % i for i in range(900_000)) + b"}"
    ),
    "a header of 15 MB of words": lambda: safetensors_bytes(
        b'{"a":["' + b'","'.join(b"%d" % i for i in range(1_500_000)) + b'"]}'
    ),
    "a directory of 60,000 members": lambda: zip_bytes(
        [(f"archive/data/{i}", b"") for i in range(60_000)]
    ),
    "four million instructions": lambda: torch_zip(b"\x80\x02" + b"]" * 4_100_000 + b"."),
    "strings kept in a memo": lambda: torch_zip(
        b"\x80\x02" + b"".join(text("x" * 200) + b"\x94" for _ in range(250_000)) + b"."
    ),
    "memory asked for by repetition": lambda: torch_zip(
        b"\x80\x02" + (b"(" + b"N" * 1000 + b"l") * 3900 + b"."
    ),
}


@pytest.mark.parametrize("name", COSTLY)
def test_costly_files_are_refused_in_little_memory(tmp_path, name) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(COSTLY[name]())
    code, megabytes, _, said = cost(path)
    assert code == 3, said
    assert said.startswith("gradwatch: "), said
    assert megabytes < 1024


def cost(path: Path) -> tuple[int, int, int, str]:
    """Exit code, MiB, seconds of processor time, and what `weights` says to stderr."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, str(path)], capture_output=True, text=True, timeout=240,
        check=False,
    )  # fmt: skip
    code, megabytes, seconds = map(int, done.stdout.split())
    return code, megabytes, seconds, done.stderr


def experts(folder: Path, count: int) -> Path:
    """A mixture of experts: many tensors of one element."""
    header = {
        f"model.layers.{i // 100}.experts.{i % 100}.w": {
            "dtype": "F32", "shape": [1], "data_offsets": [4 * i, 4 * i + 4]
        }
        for i in range(count)
    }  # fmt: skip
    data = np.random.default_rng(0).standard_normal(count).astype(np.float32).tobytes()
    (folder / "m.safetensors").write_bytes(safetensors_bytes(header, data))
    return folder / "m.safetensors"


def members(folder: Path, count: int) -> Path:
    np.savez(folder / "m.npz", **{f"a{i}": np.full(1, i, np.float32) for i in range(count)})
    return folder / "m.npz"


def views(folder: Path, count: int, *, far: bool) -> Path:
    """Two elements far apart, or nearly all, of one storage; again and again."""
    flat = torch.randn(4_000_000)
    torch.save(
        {
            f"v{i}": flat.as_strided((2,), (3_999_000 - i,)) if far else flat[i : i + 3_900_000]
            for i in range(count)
        },
        folder / "m.pt",
    )
    return folder / "m.pt"


def sparse(folder: Path, size: int) -> Path:
    """A distributed checkpoint that takes long to describe, and a file of holes beside it."""
    with warnings.catch_warnings(action="ignore"):
        dcp.save({"w": torch.ones(2)}, checkpoint_id=folder, no_dist=True)
    (folder / ".metadata").write_bytes(
        b"\x80\x02" + b"]q\x00](h\x00h\x00eq\x00h\x00" * 300_000 + b"."
    )
    (folder / "__1_0.distcp").touch()
    os.truncate(folder / "__1_0.distcp", size)
    return folder


def links(folder: Path, count: int) -> Path:
    torch.save([[[]] * 1000] * 400, folder / "0.bin")
    for i in range(1, count):
        (folder / f"{i}.bin").symlink_to("0.bin")
    table = {f"t{i}": f"{i}.bin" for i in range(count)}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": table}))
    return folder


LARGE = {
    "experts": (lambda folder: experts(folder, 100_000), 0),
    "members": (lambda folder: members(folder, 20_000), 0),
    "views far apart": (lambda folder: views(folder, 20_000, far=True), 1),
    "views over one another": (lambda folder: views(folder, 20_000, far=False), 1),
    "a file of holes": (lambda folder: sparse(folder, 1 << 40), 3),
    "links to one shard": (lambda folder: links(folder, 9_000), 3),
}


@pytest.mark.security
@pytest.mark.parametrize("name", LARGE)
def test_a_small_file_cannot_cost_more_than_the_budget(tmp_path, name) -> None:
    make, expected = LARGE[name]
    code, megabytes, seconds, said = cost(make(tmp_path))
    assert code == expected, said
    assert megabytes < (600 if name == "experts" else 1024)
    assert seconds <= 20


def test_many_tensors_take_little_memory_each(tmp_path) -> None:
    code, megabytes, seconds, said = cost(experts(tmp_path, 4_000))
    assert code == 0, said
    assert megabytes < 140  # 33 KB for each would be as much again
    assert seconds <= 20


CALLER = """
from gradwatch.isolated import WORKER, IsolatedProcess, command
worker = IsolatedProcess(lambda pipe: command(WORKER, pipe))
print(worker.pid, flush=True)
worker.ask(eval, ("sum(iter(int, 1))",))
"""


def test_a_child_at_work_ends_with_its_caller() -> None:
    with subprocess.Popen([sys.executable, "-c", CALLER], stdout=subprocess.PIPE) as caller:
        child = int(caller.stdout.readline())
        time.sleep(0.5)  # it adds up zeros, for ever, and lets no other thread of its own run
        caller.kill()
        caller.stdout.close()
    patience = time.monotonic() + 20
    while alive(child) and time.monotonic() < patience:
        time.sleep(0.05)
    assert not alive(child)


def alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
