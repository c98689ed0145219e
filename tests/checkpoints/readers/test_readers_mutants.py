"""Thousands of damaged files: each is read or refused with a sentence, nothing else."""

import random
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.checkpoints.files import floats

from gradwatch.checkpoints import ScanOptions
from gradwatch.checkpoints.index import Index
from gradwatch.checkpoints.measure import measure_tensors
from gradwatch.checkpoints.readers import (
    archives,
    distributed,
    numpy_files,
    open_index,
    safetensors,
    torch_files,
    verified,
)
from gradwatch.checkpoints.readers.files import OpenFile, opened
from gradwatch.checkpoints.readers.pickles import PickleMachine
from gradwatch.errors import GradwatchError

Reader = Callable[[Path], Index]


def of_file(read: Callable[[OpenFile], Index]) -> Reader:
    """A reader of open files as one of paths."""

    def read_path(path: Path) -> Index:
        with opened(path) as file:
            return read(file)

    return read_path


def read_npz(file: OpenFile) -> Index:
    return numpy_files.read_npz(file, archives.members(file))


def originals(folder: Path) -> dict[str, tuple[Path, Reader]]:
    """Small real files of every kind, and the reader that the front door would choose."""
    generator = torch.Generator().manual_seed(0)
    state = {
        "a.weight": torch.randn(4, 3, generator=generator),
        "a.bias": torch.nn.Parameter(torch.zeros(4)),
        "b": torch.ones(5).bfloat16(),
        "turned": torch.ones(3, 2).t(),
        "n": {"x": torch.tensor(3), "list": [torch.ones(2), {"y": 1.5}]},
    }
    torch.save(state, folder / "zip.pt")
    torch.save(state, folder / "stream.pt", _use_new_zipfile_serialization=False)
    arrays = {"w": np.arange(12.0).reshape(3, 4), "h": np.ones(3, np.float16)}
    np.savez(folder / "a.npz", **arrays)
    np.savez_compressed(folder / "b.npz", **arrays)
    np.save(folder / "c.npy", arrays["w"])
    floats(folder / "d.safetensors", w=np.ones((3, 4)), b=np.ones(7))
    import torch.distributed.checkpoint as dcp

    with warnings.catch_warnings(action="ignore"):
        dcp.save({"w": torch.ones(4, 2)}, checkpoint_id=folder / "dcp", no_dist=True)
    (folder / "i.index.json").write_text(
        '{"weight_map": {"w": "d.safetensors", "b": "d.safetensors"}}'
    )
    return {
        "zip": (folder / "zip.pt", torch_files.read_zip),
        "stream": (folder / "stream.pt", torch_files.read_stream),
        "npz": (folder / "a.npz", of_file(read_npz)),
        "deflated": (folder / "b.npz", of_file(read_npz)),
        "npy": (folder / "c.npy", of_file(numpy_files.read_npy)),
        "safetensors": (folder / "d.safetensors", of_file(safetensors.read)),
        "metadata": (folder / "dcp/.metadata", lambda path: distributed.read(path.parent)),
        "pieces": (folder / "dcp/__0_0.distcp", lambda path: distributed.read(path.parent)),
        "index": (folder / "i.index.json", open_index),
    }  # fmt: skip


def mutated(raw: bytes, rng: random.Random) -> bytes:
    """1–16 flips, an insertion, a deletion, a swap, a cut, a zeroed stretch or a number's edge."""
    data = bytearray(raw)
    kind = rng.randrange(7)
    at = rng.randrange(len(data))
    length = rng.randrange(1, 33)
    if kind == 0:
        for _ in range(rng.randrange(1, 17)):
            data[rng.randrange(len(data))] = rng.randrange(256)
    elif kind == 1:
        data[at:at] = rng.randbytes(length)
    elif kind == 2:
        del data[at : at + length]
    elif kind == 3:
        other = rng.randrange(len(data))
        data[at : at + 8], data[other : other + 8] = data[other : other + 8], data[at : at + 8]
    elif kind == 4:
        del data[at:]
    elif kind == 5:
        data[at : at + length] = bytes(len(data[at : at + length]))
    else:
        edge = rng.choice([0, 1, 0x7F, 0x80, 0xFF])
        data[at : at + 4] = bytes([edge]) * len(data[at : at + 4])
    return bytes(data)


def torment(folder: Path, count: int, seed: int) -> dict[str, int]:
    """Read `count` mutants; returns how many of each kind were read and refused."""
    rng = random.Random(seed)
    kinds = originals(folder)
    raws = {name: path.read_bytes() for name, (path, _) in kinds.items()}
    seen, sentences = {"read": 0, "refused": 0}, 0
    for number in range(count):
        name = rng.choice(list(kinds))
        path, reader = kinds[name]
        mutant = mutated(raws[name], rng)
        path.write_bytes(mutant)
        try:
            index = verified(reader(path))
            measure_tensors(index, ScanOptions(workers=0), full=True, hashed=False)
            seen["read"] += 1
        except GradwatchError as refusal:
            sentences += str(refusal).endswith(".")
            seen["refused"] += 1
        except Exception as error:  # kept, so that it can be looked at
            (folder / "failure").write_bytes(mutant)
            raise AssertionError(f"{name}, mutant {number}: {error!r}") from error
        finally:
            path.write_bytes(raws[name])
    assert sentences == seen["refused"]
    return seen


def test_the_originals_are_read(tmp_path) -> None:
    for path, reader in originals(tmp_path).values():
        assert verified(reader(path)).tensors


def test_two_thousand_mutants(tmp_path) -> None:
    seen = torment(tmp_path, 2000, seed=1)
    assert seen["read"] + seen["refused"] == 2000
    assert min(seen.values()) > 100


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_hundred_thousand_mutants(tmp_path) -> None:
    seen = torment(tmp_path, 100_000, seed=2)
    assert seen["read"] + seen["refused"] == 100_000


def pickles(folder: Path) -> list[bytes]:
    """The bare pickles of real files, so that mutants reach the stack machine."""
    kinds = originals(folder)
    archive = kinds["zip"][0].read_bytes()
    begin = archive.index(b"\x80\x02}")
    stream = kinds["stream"][0].read_bytes()
    return [
        archive[begin : archive.index(b"u.", begin) + 2],
        stream[stream.index(b"\x80\x02}q\x00(X\x08") :][:900],
        kinds["metadata"][0].read_bytes(),
    ]


def test_twenty_thousand_mutants_of_bare_pickles(tmp_path) -> None:
    rng, raws = random.Random(3), pickles(tmp_path)
    ends = {"read": 0, "refused": 0}
    for _ in range(20_000):
        try:
            saved = PickleMachine(mutated(rng.choice(raws), rng), "The pickle").load()
            list(torch_files.tensor_calls(saved, "it"))
            ends["read"] += 1
        except GradwatchError:
            ends["refused"] += 1
    assert min(ends.values()) > 1000
