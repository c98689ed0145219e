"""What torch loads of a file against what we read of it: mutants of real files, one by one.

    python -m tests.checkpoints.readers.as_torch SEED COUNT FOLDER

Mutants keep the form of a file (opcodes whole, checksums and lengths right) and change its meaning.
A mutant passes if torch refuses it, if we refuse it, or if both give the same tensors bit for bit;
a tensor that we list as left out counts as refused. The answer is JSON: what differed, and how many
were read by both, so that a test sees that not all were refused.
"""

import json
import pickletools
import random
import resource
import struct
import sys
import warnings
import zipfile
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tests.checkpoints.files import zip_bytes

from gradwatch.checkpoints.index import Index, TensorEntry
from gradwatch.checkpoints.readers import torch_files, verified
from gradwatch.checkpoints.readers.claims import MODELS
from gradwatch.errors import GradwatchError

Members = list[tuple[str, bytes]]
Ops = list[bytes]
MEMORY = 6 << 30


class Labelled(torch.Tensor):
    """A subclass with attributes, which torch saves as `_rebuild_from_type_v2`."""


def structures() -> dict[str, Any]:
    """Everything a checkpoint may be made of; small, and different in every element."""
    torch.manual_seed(0)
    flat = torch.arange(24, dtype=torch.float32)
    parameter = torch.nn.Parameter(torch.randn(2, 3))
    setattr(parameter, "label", "a")  # noqa: B010 - torch's type has no such attribute
    shared = torch.randn(2, 2)
    deep: Any = torch.randn(2)
    for level in range(4):
        deep = {f"d{level}": deep, level: [torch.ones(1) * level]}
    return {
        "plain": {"a.weight": torch.randn(4, 3), "a.bias": torch.zeros(4), "n": 3, "s": "text"},
        "ordered": torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3)).state_dict(),
        "views": {
            "t": flat.view(4, 6).t(), "cut": flat[3:9], "steps": flat[::2], "one": flat[5],
            "wide": flat[:4].expand(3, 4), "none": flat[:0],
        },
        "types": {
            str(kind): torch.arange(5).to(kind)
            for kind in (torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32,
                         torch.int16, torch.int8, torch.uint8, torch.bool, torch.uint16,
                         torch.uint32, torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64)
        },
        "parameters": {"p": torch.nn.Parameter(torch.ones(3)), "with": parameter},
        "tied": {"x": shared, "y": shared, "part": shared[0]},
        "nested": {"model": {"w": torch.randn(2, 2)}, "optimizer": {"state": {0: torch.ones(2)}}},
        "deep": deep,
        "lists": [torch.ones(2), (torch.zeros(1), [torch.ones(3)]), {"k": torch.ones(1)}],
        "kinds": {
            "sparse": torch.eye(2).to_sparse(), "meta": torch.ones(2, device="meta"),
            "bits": (torch.ones(2) + 1j).conj(), "minus": torch._neg_view(torch.ones(2)),
            "set": {1, 2}, "counter": Counter({"a": 1}), "bytes": b"abc", "dtype": torch.float32,
            "array": bytearray(b"x"), "size": torch.Size([1, 2]), 5: torch.ones(1), 1.5: "f",
        },
        "lone": torch.randn(3, 2),
        "dict of dicts": OrderedDict(a=OrderedDict(b=torch.ones(2)), c={"b": torch.zeros(2)}),
    }  # fmt: skip


# -- mutants ---------------------------------------------------------------------------------------


def zip_members(path: Path) -> Members:
    """Name and bytes of each member, in order."""
    with zipfile.ZipFile(path) as archive:
        return [(info.filename, archive.read(info)) for info in archive.infolist()]


def opcodes(pickle: bytes) -> Ops:
    """The instructions of a pickle, each with its argument."""
    begins = [at for _, _, at in pickletools.genops(pickle)]
    return [pickle[a:b] for a, b in zip(begins, [*begins[1:], len(pickle)], strict=True)]


def mutated_ops(ops: Ops, pool: Ops, random_: random.Random) -> bytes:
    """One to three changes of whole instructions."""
    ops = list(ops)
    for _ in range(random_.choice((1, 1, 2, 3))):
        at = random_.randrange(1, len(ops))
        random_.choice(CHANGES)(ops, at, pool, random_)
    return b"".join(ops)


def _drop(ops: Ops, at: int, pool: Ops, random_: random.Random) -> None:
    del ops[at]


def _again(ops: Ops, at: int, pool: Ops, random_: random.Random) -> None:
    ops.insert(at, ops[at])


def _swap(ops: Ops, at: int, pool: Ops, random_: random.Random) -> None:
    other = random_.randrange(1, len(ops))
    ops[at], ops[other] = ops[other], ops[at]


def _other(ops: Ops, at: int, pool: Ops, random_: random.Random) -> None:
    """Another instruction of the same kind: a name for a name, a number for a number."""
    like = [op for op in pool if op[:1] == ops[at][:1]]
    ops[at] = random_.choice(like or pool)


def _foreign(ops: Ops, at: int, pool: Ops, random_: random.Random) -> None:
    ops.insert(at, random_.choice(pool))


def _number(ops: Ops, at: int, pool: Ops, random_: random.Random) -> None:
    numbers = [n for n, op in enumerate(ops) if op[:1] in (b"K", b"M", b"J", b"\x8a")]
    if numbers:
        value = random_.choice((0, 1, 2, 3, 4, 5, 6, 7, 12, 23, 24, 25, 255, 65536, -1, -2))
        ops[random_.choice(numbers)] = b"J" + struct.pack("<i", value)


def _span(ops: Ops, at: int, pool: Ops, random_: random.Random) -> None:
    """A stretch once more, somewhere else: keys twice, tensors twice."""
    length = random_.randrange(1, 30)
    ops[at:at] = ops[(start := random_.randrange(1, len(ops))) : start + length]


CHANGES: list[Callable[[Ops, int, Ops, random.Random], None]] = [
    _drop, _again, _swap, _other, _other, _foreign, _foreign, _number, _number, _number, _span,
]  # fmt: skip


def mutated_members(members: Members, random_: random.Random) -> bytes:
    """A change of the archive itself."""
    members = list(members)
    at = random_.randrange(len(members))
    name, data = members[at]
    root, _, rest = name.partition("/")
    kind = random_.randrange(9)
    if kind == 0:
        members[at] = (f"{root}/{rest.upper()}", data)
    elif kind == 1:
        twin = (f"{root}/{rest.swapcase()}", bytes(255 - b for b in data))
        members.insert(random_.randrange(len(members) + 1), twin)
    elif kind == 2:
        random_.shuffle(members)
    elif kind == 3:
        members[at] = (name, data[: random_.randrange(len(data) + 1)])
    elif kind == 4:
        members[at] = (name, data + b"\0" * random_.randrange(9))
    elif kind == 5:
        members.insert(random_.randrange(len(members) + 1), (f"other/{rest}", data))
    elif kind == 6:
        members[at] = (f"{root.upper()}/{rest}", data)
    elif kind == 7:
        members.insert(0, (f"{root}/BYTEORDER", b"big"))
    else:
        return random_.randbytes(random_.randrange(40)) + zip_bytes(members)
    return zip_bytes(members)


def mutants(folder: Path, seed: int) -> Iterator[tuple[str, Callable[[Path], Index], bytes]]:
    """(what it came from, our reader, the bytes): the originals, then mutants for ever."""
    random_ = random.Random(seed)
    zips, streams, pool = {}, {}, list[bytes]()
    for name, value in structures().items():
        path = folder / "original.pt"
        torch.save(value, path)
        zips[name] = zip_members(path)
        (pickle,) = (data for member, data in zips[name] if member.endswith("/data.pkl"))
        pool += opcodes(pickle)
        torch.save(value, path, _use_new_zipfile_serialization=False)
        streams[name] = path.read_bytes()
    calls = ("builtins\nset", "builtins\ncomplex", "torch\nTensor", "torch\nFloatTensor")
    pool = [
        *sorted(set(pool)),
        *(bytes([code]) for code in b"02(t]}\x8fNbR\x81"),
        *(f"c{name}\n".encode() for name in calls),
    ]
    for name, members in zips.items():
        yield name, torch_files.read_zip, zip_bytes(members)
        yield name, torch_files.read_stream, streams[name]
    while True:
        name = random_.choice(list(zips))
        members = zips[name]
        kind = random_.randrange(10)
        if kind == 0:
            yield name, torch_files.read_zip, mutated_members(members, random_)
        elif kind == 1:
            yield name, torch_files.read_stream, _mutated_stream(streams[name], pool, random_)
        else:
            changed = [
                (member, mutated_ops(opcodes(data), pool, random_))
                if member.endswith("/data.pkl")
                else (member, data)
                for member, data in members
            ]
            yield name, torch_files.read_zip, zip_bytes(changed)


def _mutated_stream(raw: bytes, pool: Ops, random_: random.Random) -> bytes:
    """One pickle of the stream changed, the storages behind left as they are."""
    pickles, at = [], 0
    for _ in range(5):
        end = max(position or 0 for _, _, position in pickletools.genops(raw[at:])) + 1
        pickles.append(raw[at : at + end])
        at += end
    number = random_.choice((2, 3, 3, 3, 3, 4))
    pickles[number] = mutated_ops(opcodes(pickles[number]), pool, random_)
    return b"".join(pickles) + raw[at:]


# -- two readers -----------------------------------------------------------------------------------


def tensors_in(value: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor that torch gave, by the name we should have for it."""
    if isinstance(value, torch.Tensor):
        yield ".".join(words or ("tensor",)), value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from tensors_in(item, (*words, str(key)))
    elif isinstance(value, list | tuple | set):
        for number, item in enumerate(value):
            yield from tensors_in(item, (*words, str(number)))


def bits_of(tensor: torch.Tensor) -> bytes:
    """The elements in order, byte for byte."""
    whole = torch.clone(
        tensor.detach().resolve_conj().resolve_neg(), memory_format=torch.contiguous_format
    )
    return bytes(whole.view(-1).view(torch.uint8).numpy()) if whole.numel() else b""


def our_bits(entry: TensorEntry, raw: bytes) -> bytes:
    """The same of what we found, by a walk of its own through the file's bytes."""
    size, (shard,) = entry.element.size, entry.shards
    flat = np.frombuffer(raw, np.uint8)[shard.offset : shard.offset + max(shard.extent, 0) * size]
    if not shard.count:
        return b""
    strides = tuple(stride * size for stride in shard.strides)
    view = np.lib.stride_tricks.as_strided(
        np.array(flat), (*shard.shape, size), (*strides, 1), writeable=False
    )
    return view.tobytes()


def difference(path: Path, read: Callable[[Path], Index], given: Any) -> str:
    """What of the two readings differs; empty where nothing does."""
    raw = path.read_bytes()
    index = verified(read(path))
    ours = {name: tensor for tensor in index.tensors for name in tensor.names}
    theirs = dict(tensors_in(given))
    if not ours.keys() <= theirs.keys():  # those of the model, without the word that they share
        heads = {name.partition(".")[0] for name in theirs} & set(MODELS)
        theirs |= {name.partition(".")[2]: theirs.pop(name)
                   for name in list(theirs) if name.partition(".")[0] in heads}  # fmt: skip
    for name, tensor in theirs.items():
        if name not in ours:
            words = name.split(".")
            groups = {".".join(words[:end]) for end in range(1, len(words) + 1)} | {"tensor"}
            groups |= {f"{head}.{group}" for head in MODELS for group in groups}
            if groups.isdisjoint(index.left_out):
                return f"{name} is not listed"
            continue
        entry = ours.pop(name)
        if tuple(tensor.shape) != entry.shape or str(tensor.dtype) != f"torch.{entry.element}":
            return f"{name} is {tensor.dtype} {list(tensor.shape)}, read as {entry}"
        if bits_of(tensor) != our_bits(entry, raw):
            return f"{name} has other elements"
    return f"{min(ours)} is not there" if ours else ""


def run(seed: int, count: int, folder: Path) -> dict[str, Any]:
    """Try so many mutants."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    warnings.simplefilter("ignore")
    found: list[str] = []
    counts = Counter[str]()
    path = folder / "mutant.pt"
    made = mutants(folder, seed)
    for number in range(count):
        origin, read, raw = next(made)
        path.write_bytes(raw)
        try:
            given = torch.load(path, weights_only=True)
        except Exception:
            counts["refused by torch"] += 1
            try:  # whatever torch says, we end in a sentence
                verified(read(path))
            except GradwatchError:
                counts["refused by both"] += 1
            continue
        try:
            differs = difference(path, read, given)
        except GradwatchError:
            counts["refused by us"] += 1
            continue
        counts["read by both"] += 1
        if differs:
            found.append(f"{number} from {origin}: {differs}")
            path.replace(folder / f"differs-{seed}-{number}.pt")
    return {"found": found, **counts}


if __name__ == "__main__":
    print(json.dumps(run(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))))
