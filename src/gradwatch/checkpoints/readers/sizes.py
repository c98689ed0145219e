"""Sizes, shapes and strides that a file claims, checked before anything is allocated for them."""

import math
from collections.abc import Sequence
from typing import Any

from gradwatch.checkpoints.index import Index
from gradwatch.checkpoints.limits import MAX_COUNT, MAX_DIMS, MAX_NAME
from gradwatch.errors import GradwatchError


def checked_name(name: str, path: str) -> str:
    """A tensor's name: text of a bounded length."""
    if not name or len(name) > MAX_NAME:
        raise GradwatchError(
            f"{path} has a tensor whose name has {len(name)} characters; "
            f"names of 1 to {MAX_NAME} are read."
        )
    return name


def checked_shape(shape: Any, name: str, path: str) -> tuple[int, ...]:
    """A shape whose product cannot overflow anything."""
    if not isinstance(shape, list | tuple) or not all(type(n) is int for n in shape):
        raise GradwatchError(f"{path}: the shape of {name[:80]!r} is not a list of integers.")
    if len(shape) > MAX_DIMS or any(not 0 <= n <= MAX_COUNT for n in shape):
        raise GradwatchError(
            f"{path}: tensor {name[:80]!r} claims {len(shape)} dimensions, or one that is negative "
            f"or larger than {MAX_COUNT}; it is not read."
        )
    if math.prod(max(n, 1) for n in shape) > (MAX_COUNT if all(shape) else 1 << 32):
        raise GradwatchError(
            f"{path}: tensor {name[:80]!r} claims more elements than any file can hold; "
            "it is not read."
        )
    return tuple(shape)


def overlaps(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether two places of the view may be one element (every dense view passes)."""
    reach = 0
    for stride, size in sorted(zip(strides, shape, strict=True)):
        if size > 1:
            if stride <= reach:
                return True
            reach += stride * (size - 1)
    return False


def verified(index: Index) -> Index:
    """The last gate, for every reader: pieces inside their files, and all of each tensor there."""
    for tensor in index.tensors:
        for piece in tensor.pieces:
            size = index.files[piece.file].size
            length = piece.packed or piece.extent * tensor.element.size
            if piece.offset < 0 or piece.offset + length > size:
                raise GradwatchError(
                    f"{index.files[piece.file].path}: tensor {tensor.name[:80]!r} reaches past "
                    "the end of the file; it is cut short or damaged."
                )
        if sum(piece.count for piece in tensor.pieces) != tensor.count:
            raise GradwatchError(
                f"{index.path}: the parts of {tensor.name[:80]!r} do not make up its shape "
                f"{list(tensor.shape)}; a file of the checkpoint is missing or damaged."
            )
    return index
