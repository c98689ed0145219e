"""Folders: a sharded index, a single file of weights, a distributed checkpoint."""

from dataclasses import replace
from pathlib import Path

from gradwatch.checkpoints.index import Checksum, FileId, Index, Tensor
from gradwatch.checkpoints.limits import MAX_FILES, MAX_HEADER, MAX_TENSORS
from gradwatch.checkpoints.readers import safetensors
from gradwatch.checkpoints.readers.files import inside, names_in, opened
from gradwatch.checkpoints.readers.parts import in_order
from gradwatch.checkpoints.readers.strict_json import parse
from gradwatch.errors import GradwatchError

INDEX_SUFFIX = ".index.json"
_PREFERRED = ("model.safetensors", "adapter_model.safetensors", "pytorch_model.bin")
_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".npz")
_NOT_WEIGHTS = (
    "training_args.bin",
    "optimizer.pt",
    "scheduler.pt",
    "optimizer.bin",
    "rng_state.pth",
)


def has_weights(names: list[str]) -> bool:
    """Whether a folder with these files is itself a checkpoint."""
    return any(n.endswith((INDEX_SUFFIX, *_SUFFIXES)) and n not in _NOT_WEIGHTS for n in names)


def main_file(folder: Path) -> str:
    """The name in the folder that stands for it: an index, or the one file of weights."""
    names = names_in(folder, MAX_FILES)
    indices = [name for name in names if name.endswith(INDEX_SUFFIX)]
    for name in (*sorted(indices, key=lambda n: "safetensors" not in n), *_PREFERRED):
        if name in names:
            return name
    weights = [n for n in names if n.endswith(_SUFFIXES) and n not in _NOT_WEIGHTS]
    if len(weights) == 1:
        return weights[0]
    if not weights:
        raise GradwatchError(
            f"{folder} holds no checkpoint that is known here: no safetensors, .pt, .pth, .bin or "
            ".npz file, no index and no .metadata of torch.distributed.checkpoint."
        )
    raise GradwatchError(
        f"{folder} holds {len(weights)} files of weights and no index "
        f"({', '.join(weights[:4])} …); name one of them."
    )


def weight_map(path: Path) -> dict[str, str]:
    """Name of tensor → name of file, from an index."""
    with opened(path) as file:
        if file.size > MAX_HEADER:
            raise GradwatchError(f"{path} has {file.size} bytes; at most {MAX_HEADER} are read.")
        found = parse(file.read(0, file.size), str(path)).get("weight_map")
    if (
        not isinstance(found, dict)
        or not found
        or len(found) > MAX_TENSORS
        or not all(isinstance(n, str) and not n.endswith(INDEX_SUFFIX) for n in found.values())
    ):
        raise GradwatchError(f"{path} has no usable weight_map (tensor → file).")
    if len(set(found.values())) > MAX_FILES:
        raise GradwatchError(f"{path} names more than {MAX_FILES} files.")
    return found


def read_sharded(path: Path) -> Index:
    """The index of shards in safetensors form; what index and shards say must agree."""
    table = weight_map(path)
    folder = path.parent
    identities: list[FileId] = []
    tensors: dict[str, Tensor] = {}
    left_out: dict[str, str] = {}
    for number, name in enumerate(sorted(set(table.values()))):
        with opened(inside(folder, name)) as file:
            head = file.read(0, min(file.size, 16))
            if not safetensors.looks_like(head, file.size):
                raise GradwatchError(f"{folder / name} is no safetensors file.")
            found, skipped = safetensors.tensors_of(file, number)
            identities.append(file.identity)
        for tensor in found:
            _belongs(tensor, name, table, path)
            tensors[tensor.name] = tensor
        left_out |= skipped
    missing = set(table) - set(tensors) - set(left_out)
    if missing:
        raise GradwatchError(
            f"{path} names {len(missing)} tensors that no shard holds, "
            f"among them {min(missing)[:80]!r}."
        )
    ordered = tuple(tensors[name] for name in in_order(tensors))
    return Index(str(path), "safetensors, sharded", tuple(identities), ordered, left_out=left_out)


def _belongs(tensor: Tensor, file: str, table: dict[str, str], path: Path) -> None:
    if table.get(tensor.name) != file:
        raise GradwatchError(
            f"{path}: shard {file!r} holds {tensor.name[:80]!r}, which the index "
            f"{'puts elsewhere' if tensor.name in table else 'does not know'}."
        )


def join(path: Path, parts: list[Index], table: dict[str, str]) -> Index:
    """One index of several: file numbers moved up, names looked up in the weight map."""
    tensors: dict[str, Tensor] = {}
    checksums: list[Checksum] = []
    files: list[FileId] = []
    foreign: dict[str, None] = {}
    for part in parts:
        first = len(files)
        for tensor in part.tensors:
            pieces = tuple(replace(piece, file=piece.file + first) for piece in tensor.pieces)
            if tensor.name in tensors:
                raise GradwatchError(f"{path}: two shards hold {tensor.name[:80]!r}.")
            tensors[tensor.name] = replace(tensor, pieces=pieces)
        checksums += [replace(item, file=item.file + first) for item in part.checksums]
        files += part.files
        foreign |= dict.fromkeys(part.foreign)
    left_out = {name: reason for part in parts for name, reason in part.left_out.items()}
    known = {name for tensor in tensors.values() for name in (tensor.name, *tensor.aliases)}
    missing = set(table) - known - set(left_out)
    if missing:
        raise GradwatchError(
            f"{path} names {len(missing)} tensors that no shard holds, "
            f"among them {min(missing)[:80]!r}."
        )
    return Index(
        str(path),
        "torch zip, sharded",
        tuple(files),
        tuple(tensors.values()),
        tuple(checksums),
        left_out,
        tuple(foreign),
    )
