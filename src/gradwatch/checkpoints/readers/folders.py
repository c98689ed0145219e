"""Folders of weights: which file stands for one, and shards that an index makes one checkpoint."""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from gradwatch.checkpoints.index import Checksum, FileId, Index, TensorEntry
from gradwatch.checkpoints.limits import (
    CPU_SECONDS,
    MAX_FILES,
    MAX_HEADER,
    MAX_TENSORS,
    STORED_PER_SECOND,
)
from gradwatch.checkpoints.readers import safetensors
from gradwatch.checkpoints.readers.claims import in_order
from gradwatch.checkpoints.readers.files import (
    inside,
    names_in,
    opened,
    parse_json,
    read_all,
    stored_bytes,
)
from gradwatch.errors import GradwatchError

INDEX_SUFFIX = ".index.json"
_PREFERRED = (
    "model.safetensors", "model.safetensors.index.json", "adapter_model.safetensors",
    "pytorch_model.bin", "pytorch_model.bin.index.json",
)  # fmt: skip
"""In the order in which transformers looks for them."""
_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".npz")
_NOT_WEIGHTS = (
    "training_args.bin", "optimizer.pt", "scheduler.pt", "optimizer.bin", "rng_state.pth",
)  # fmt: skip


def has_weights(names: list[str]) -> bool:
    """Whether a folder with these files is itself a checkpoint."""
    return any(name.endswith(INDEX_SUFFIX) or _is_weights(name) for name in names)


def _is_weights(name: str) -> bool:
    return name.endswith(_SUFFIXES) and name not in _NOT_WEIGHTS


def main_file(folder: Path) -> tuple[str, tuple[str, ...]]:
    """The name in the folder that stands for it, and what could have stood for it too."""
    names = names_in(folder, MAX_FILES)
    there = [name for name in _PREFERRED if name in names]
    other = [name for name in names if name.endswith(INDEX_SUFFIX) and name not in there]
    if there or other:
        first, *rest = *there, *other
        return first, tuple(rest)
    weights = [name for name in names if _is_weights(name)]
    if len(weights) == 1:
        return weights[0], ()
    if not weights:
        raise GradwatchError(
            f"{folder} holds no checkpoint that is known here: no safetensors, .pt, .pth, .bin or "
            ".npz file, no index and no .metadata of torch.distributed.checkpoint."
        )
    raise GradwatchError(
        f"{folder} holds {len(weights)} files of weights and no index "
        f"({', '.join(weights[:4])} …); name one of them."
    )


def read_sharded(path: Path, read_file: Callable[[Path], Index]) -> Index:
    """One index of all shards, which must hold what the weight map says.

    Shards are all safetensors, or in torch's form (`pytorch_model.bin.index.json`); those are read
    by the child, and a shard may hold tensors that the map does not name.
    """
    file_of = _weight_map(path)
    tensors: dict[str, TensorEntry] = {}
    files: list[FileId] = []
    checksums: list[Checksum] = []
    left_out: dict[str, str] = {}
    foreign: dict[str, None] = {}
    safe = True
    for name, shard_path in _shards(path, sorted(set(file_of.values()))):
        if safe:
            with opened(shard_path) as file:
                safe = safetensors.looks_like(file)
            if files and not safe:
                raise GradwatchError(f"{path.parent / name} is no safetensors file.")
        part = read_file(shard_path)
        for tensor in part.tensors:
            if safe and file_of.get(tensor.name) != name:
                raise GradwatchError(
                    f"{path}: shard {name!r} holds {tensor.name[:80]!r}, which the index "
                    f"{'puts elsewhere' if tensor.name in file_of else 'does not know'}."
                )
            if tensor.name in tensors:
                raise GradwatchError(f"{path}: two shards hold {tensor.name[:80]!r}.")
            shards = tuple(replace(p, file=p.file + len(files)) for p in tensor.shards)
            tensors[tensor.name] = replace(tensor, shards=shards)
        checksums += [replace(c, file=c.file + len(files)) for c in part.checksums]
        files += part.files
        left_out |= part.left_out
        foreign |= dict.fromkeys(part.foreign)
    names = {name for tensor in tensors.values() for name in (tensor.name, *tensor.aliases)}
    missing = set(file_of) - names - set(left_out)
    if missing:
        raise GradwatchError(
            f"{path} names {len(missing)} tensors that no shard holds, "
            f"among them {min(missing)[:80]!r}."
        )
    return Index(
        str(path),
        "safetensors, sharded" if safe else "torch zip, sharded",
        tuple(files),
        tuple(tensors[name] for name in (in_order(tensors) if safe else tensors)),
        tuple(checksums),
        left_out,
        tuple(foreign),
    )


def _shards(path: Path, names: Sequence[str]) -> Iterator[tuple[str, Path]]:
    """Name and place of each, while the time that one checkpoint may take lasts; no file twice."""
    places = {name: inside(path.parent, name) for name in names}
    allowed = CPU_SECONDS + stored_bytes(places.values()) // STORED_PER_SECOND
    begin = sum(os.times()[:4])  # of this process and of its children
    taken: dict[tuple[int, int], str] = {}
    for name, place in places.items():
        if place.exists():  # if not, whoever opens it says so
            status = place.stat()
            other = taken.setdefault((status.st_dev, status.st_ino), name)
            if other != name:
                raise GradwatchError(f"{path}: {other!r} and {name!r} are one file.")
        if sum(os.times()[:4]) - begin > allowed:
            raise GradwatchError(
                f"{path} is refused: to read what its {len(places)} shards hold takes more than "
                f"{allowed} seconds of processor time."
            )
        yield name, place


def _weight_map(path: Path) -> dict[str, str]:
    """Name of tensor → name of file, from an index."""
    file_of = parse_json(read_all(path, MAX_HEADER), str(path)).get("weight_map")
    if (
        not isinstance(file_of, dict)
        or not file_of
        or len(file_of) > MAX_TENSORS
        or not all(isinstance(n, str) and not n.endswith(INDEX_SUFFIX) for n in file_of.values())
    ):
        raise GradwatchError(f"{path} has no usable weight_map (tensor → file).")
    if len(set(file_of.values())) > MAX_FILES:
        raise GradwatchError(f"{path} names more than {MAX_FILES} files.")
    return file_of
