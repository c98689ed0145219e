"""`.pt`, `.pth` and `.bin`: torch's zip archives and its older stream, read without unpickling."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from gradwatch.checkpoints.index import Checksum, Index, Piece, Tensor
from gradwatch.checkpoints.limits import MAX_PICKLE
from gradwatch.checkpoints.readers import archives
from gradwatch.checkpoints.readers.files import OpenFile, opened
from gradwatch.checkpoints.readers.opcodes import Machine
from gradwatch.checkpoints.readers.parts import model_part
from gradwatch.checkpoints.readers.torch_values import (
    KNOWN,
    NotMeasured,
    View,
    named_values,
    view_of,
)
from gradwatch.errors import GradwatchError

LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
LEGACY_HEAD = b"\x80\x02\x8a\x0a" + LEGACY_MAGIC.to_bytes(10, "little")
_LEGACY_STORAGES = 1_000_000

Place = Callable[[View], int]
"""Where in the file a storage's bytes begin."""


def read_zip(path: Path) -> Index:
    """The index of an archive of `torch.save`."""
    with opened(path) as file:
        found, machine, place, checksums, notes = zip_contents(file)
        return _index(path, file, "torch zip", found, machine, place, checksums, notes)


def zip_contents(
    file: OpenFile,
) -> tuple[Any, Machine, Place, tuple[Checksum, ...], tuple[str, ...]]:
    """What the archive's pickle stands for, and where its storages are."""
    path = file.identity.path
    members = archives.members(file)  # TorchScript deflates its code
    roots = [name[: -len("data.pkl")] for name in members if name.endswith("/data.pkl")]
    if len(roots) != 1:
        raise GradwatchError(
            f"{path} is a zip archive without the one data.pkl that torch.save writes."
        )
    root = roots[0]
    if f"{root}constants.pkl" in members or any(n.startswith(f"{root}code/") for n in members):
        raise GradwatchError(
            f"{path} is a TorchScript program, which is never loaded here. "
            "Save its state_dict() with torch.save or safetensors and examine that."
        )
    packed = next((m.name for m in members.values() if m.method != archives.STORED), None)
    if packed is not None:
        raise GradwatchError(
            f"{path} has a compressed member {packed[:80]!r}; torch.save compresses nothing, "
            "so it is not read."
        )
    order = members.get(f"{root}byteorder")
    if order is not None and file.read(order.offset, min(order.length, 16)) != b"little":
        raise GradwatchError(f"{path} was written on a big-endian machine; it is not read.")
    member = members[f"{root}data.pkl"]
    if member.length > MAX_PICKLE:
        raise GradwatchError(
            f"{path} describes its tensors in {member.length} bytes; at most {MAX_PICKLE} are read."
        )
    machine = Machine(file.read(member.offset, member.length), f"The pickle in {path}")
    found = machine.load()

    def place(view: View) -> int:
        storage = members.get(f"{root}data/{view.storage}")
        if storage is None or storage.length != view.storage_count * view.element.size:
            has = "is missing" if storage is None else f"has {storage.length} bytes"
            raise GradwatchError(
                f"{path}: storage {view.storage[:80]!r} {has}; "
                f"{view.storage_count} elements of {view.element} were expected."
            )
        return file.begin + storage.offset

    unsigned = all(m.crc == 0 for m in members.values())
    notes = ("The file was saved without checksums.",) if unsigned else ()
    checksums = (
        ()
        if unsigned
        else tuple(
            Checksum(0, file.begin + m.offset, m.length, m.crc, m.name) for m in members.values()
        )
    )
    return found, machine, place, checksums, notes


def read_legacy(path: Path) -> Index:
    """The index of the stream `torch.save` wrote before version 1.6."""
    with opened(path) as file:
        data = file.read(0, min(file.size, MAX_PICKLE))
        machine = Machine(data, f"The pickle in {path}")
        magic, protocol, system = machine.load(), machine.load(), machine.load()
        if magic != LEGACY_MAGIC or protocol != 1001:
            raise GradwatchError(f"{path} begins like an old torch file but is none.")
        if ("little_endian", True) not in getattr(system, "pairs", []):
            raise GradwatchError(f"{path} was written on a big-endian machine; it is not read.")
        found, keys = machine.load(), machine.load()
        if not isinstance(keys, list) or len(keys) > _LEGACY_STORAGES:
            raise GradwatchError(f"{path}: the list of storages is not usable.")
        views = _views(found, str(path))[0]
        places = _legacy_places(file, machine.position, keys, views)

        def place(view: View) -> int:
            if view.storage not in places:
                raise GradwatchError(f"{path}: storage {view.storage[:80]!r} is missing.")
            return places[view.storage]

        return _index(path, file, "torch stream", found, machine, place, (), ())


def _legacy_places(
    file: OpenFile, position: int, keys: list[Any], views: dict[tuple[str, ...], View]
) -> dict[str, int]:
    """Walk over the storages: eight bytes of length in elements, then the elements."""
    path = file.identity.path
    sizes = {view.storage: view for view in views.values()}
    places: dict[str, int] = {}
    for key in keys:
        view = sizes.get(key) if isinstance(key, str) else None
        if view is None:
            raise GradwatchError(
                f"{path}: it stores something whose element type is not known; resave the file "
                "with a newer torch, or as safetensors."
            )
        count = int.from_bytes(file.read(position, 8), "little")
        if count != view.storage_count or key in places:
            raise GradwatchError(f"{path}: storage {key[:80]!r} is described in two ways.")
        places[key] = position + 8
        position += 8 + count * view.element.size
    if position != file.size:
        raise GradwatchError(f"{path} has {file.size} bytes, but its storages end at {position}.")
    return places


def _views(found: Any, path: str) -> tuple[dict[tuple[str, ...], View], dict[tuple[str, ...], str]]:
    """The tensors by the words that lead to them, and those that are not measured."""
    views: dict[tuple[str, ...], View] = {}
    left_out: dict[tuple[str, ...], str] = {}
    for words, call in named_values(found, path):
        words = words or ("tensor",)
        name = ".".join(words)
        if words in views or words in left_out:
            raise GradwatchError(f"{path}: the name {name[:80]!r} stands in it twice.")
        try:
            views[words] = view_of(call, name, path)
        except NotMeasured as reason:
            left_out[words] = str(reason)
    return views, left_out


def _index(
    path: Path,
    file: OpenFile,
    kind: str,
    found: Any,
    machine: Machine,
    place: Place,
    checksums: tuple[Checksum, ...],
    notes: tuple[str, ...],
) -> Index:
    views, left_out = _views(found, str(path))
    kept, beside = model_part(views)
    return Index(
        str(path),
        kind,
        (file.identity,),
        tied({name: (view, place(view)) for name, view in kept.items()}),
        checksums,
        {**{".".join(words): reason for words, reason in left_out.items()}, **beside},
        tuple(name for name in machine.foreign if name not in KNOWN),
        notes,
    )


def tied(places: dict[str, tuple[View, int]]) -> tuple[Tensor, ...]:
    """Tensors by name; several names of one window become one tensor with aliases."""
    names: dict[tuple[View, int], list[str]] = {}
    for name, key in places.items():
        names.setdefault(key, []).append(name)
    return tuple(
        Tensor(
            listed[0],
            view.shape,
            view.element,
            (piece_of(view, begin, 0, (0,) * len(view.shape)),),
            tuple(listed[1:]),
            view.note,
        )
        for (view, begin), listed in names.items()
    )


def piece_of(view: View, begin: int, file: int, start: tuple[int, ...]) -> Piece:
    return Piece(file, begin + view.offset * view.element.size, view.shape, view.strides, start)
