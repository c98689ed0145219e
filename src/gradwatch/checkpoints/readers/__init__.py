"""From a path to an index: recognised by content, never by what it is called."""

from pathlib import Path

from gradwatch.checkpoints.index import Index
from gradwatch.checkpoints.readers import archives, child, folders, numpy_files, safetensors
from gradwatch.checkpoints.readers.distributed import METADATA
from gradwatch.checkpoints.readers.files import inside, opened
from gradwatch.checkpoints.readers.parts import unwrapped
from gradwatch.checkpoints.readers.sizes import verified
from gradwatch.checkpoints.readers.torch_files import LEGACY_HEAD
from gradwatch.errors import GradwatchError

__all__ = ["open_index"]


def open_index(path: Path | str) -> Index:
    """What the checkpoint holds and where; raises GradwatchError with a sentence."""
    return unwrapped(verified(_read(Path(path))))


def _read(path: Path) -> Index:
    try:
        folder = path.is_dir()
    except (OSError, ValueError):
        folder = False
    if folder and (path / METADATA).exists():
        return child.read("distributed", path)
    if folder:
        return _read_file(inside(path, folders.main_file(path)))
    return _read_file(path)


def _read_file(path: Path) -> Index:
    if path.name.endswith(folders.INDEX_SUFFIX):
        return _read_sharded(path)
    with opened(path) as file:
        head = file.read(0, min(file.size, 16))
        size = file.size
    if safetensors.looks_like(head, size):
        return safetensors.read(path)
    if archives.looks_like(head):
        if numpy_files.is_npz(path):
            return numpy_files.read_npz(path)
        return child.read("zip", path)
    if head.startswith(numpy_files.MAGIC):
        return numpy_files.read_npy(path)
    if head.startswith(LEGACY_HEAD[: len(head)]) and len(head) >= 14:
        return child.read("stream", path)
    raise GradwatchError(
        f"{path} is no checkpoint that is known here. Known by their first bytes: safetensors, "
        "torch's .pt/.pth/.bin, .npz and .npy; it may be empty, cut short or of another kind."
    )


def _read_sharded(path: Path) -> Index:
    table = folders.weight_map(path)
    first = inside(path.parent, min(table.values()))
    with opened(first) as file:
        safe = safetensors.looks_like(file.read(0, min(file.size, 16)), file.size)
    if safe:
        return folders.read_sharded(path)
    return joined(path, table)


def joined(path: Path, table: dict[str, str]) -> Index:
    """Shards in torch's own form (`pytorch_model.bin.index.json`), each read by the child."""
    parts = [_read_file(inside(path.parent, name)) for name in sorted(set(table.values()))]
    return folders.join(path, parts, table)
