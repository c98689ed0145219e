"""From a path to an index: recognised by content, never by what it is called."""

from dataclasses import replace
from pathlib import Path

from gradwatch.checkpoints import limits
from gradwatch.checkpoints.index import Index, TensorEntry
from gradwatch.checkpoints.readers import archives, child, folders, numpy_files, safetensors
from gradwatch.checkpoints.readers.claims import unwrapped
from gradwatch.checkpoints.readers.distributed import METADATA
from gradwatch.checkpoints.readers.files import inside, opened, stored_bytes
from gradwatch.checkpoints.readers.torch_files import STREAM_HEAD
from gradwatch.errors import GradwatchError

__all__ = ["open_index", "verified"]


def open_index(path: Path | str) -> Index:
    """What the checkpoint holds and where; raises GradwatchError with a sentence."""
    return unwrapped(verified(_read(Path(path))))


def _read(path: Path) -> Index:
    try:
        is_folder = path.is_dir()
    except (OSError, ValueError):
        is_folder = False
    if is_folder and (path / METADATA).exists():
        return child.read("distributed", path)
    if not is_folder:
        return _read_file(path)
    name, others = folders.main_file(path)
    index = _read_file(inside(path, name))
    if others:
        note = f"{', '.join(others)} stands beside {name}, which is what transformers would load."
        index = replace(index, notes=(*index.notes, note))
    return index


def _read_file(path: Path) -> Index:
    if path.name.endswith(folders.INDEX_SUFFIX):
        return folders.read_sharded(path, _read_file)
    with opened(path) as file:
        if safetensors.looks_like(file):
            return safetensors.read(file)
        head = file.head(len(STREAM_HEAD))
        if head.startswith(numpy_files.MAGIC):
            return numpy_files.read_npy(file)
        is_archive = archives.looks_like(head)
        if is_archive:
            members = archives.members(file)
            if members and all(name.endswith(".npy") for name in members):
                return numpy_files.read_npz(file, members)
    if is_archive:
        return child.read("zip", path)
    if head == STREAM_HEAD:
        return child.read("stream", path)
    raise GradwatchError(
        f"{path} is no checkpoint that is known here. Known by their first bytes: safetensors, "
        "torch's .pt/.pth/.bin, .npz and .npy; it may be empty, cut short or of another kind."
    )


def verified(index: Index) -> Index:
    """The last gate, for every reader: shards inside their files, and all of each tensor there."""
    for tensor in index.tensors:
        for shard in tensor.shards:
            file = index.files[shard.file]
            length = shard.packed or shard.extent * tensor.element.size
            if shard.offset < 0 or shard.offset + length > file.size:
                raise GradwatchError(
                    f"{file.path}: tensor {tensor.name[:80]!r} reaches past "
                    "the end of the file; it is cut short or damaged."
                )
        if sum(shard.count for shard in tensor.shards) != tensor.count:
            raise GradwatchError(
                f"{index.path}: the parts of {tensor.name[:80]!r} do not make up its shape "
                f"{list(tensor.shape)}; a file of the checkpoint is missing or damaged."
            )
    return _within_budget(index)


def _within_budget(index: Index) -> Index:
    """Without the tensors that claim, together with those before them, far more than is stored."""
    if index.reach <= limits.FREE_CLAIMS:
        return index
    stored = stored_bytes(file.path for file in index.files)
    left = limits.FREE_CLAIMS + limits.MAX_CLAIMS * stored
    kept: list[TensorEntry] = []
    oversized: dict[str, str] = {}
    for tensor in index.tensors:
        packed = any(shard.packed for shard in tensor.shards)  # the archive's own limit holds
        if tensor.reach > left and not packed:
            oversized[tensor.name] = (
                f"its {tensor.count} elements are spread or repeated over {tensor.reach} bytes, "
                f"and all files store {stored}"
            )
            continue
        left -= 0 if packed else tensor.reach
        kept.append(tensor)
    return replace(
        index,
        tensors=tuple(kept),
        left_out={**index.left_out, **oversized},
        oversized=tuple(oversized),
    )
