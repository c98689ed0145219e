"""What files claim about their tensors: names and shapes, checked; which are the model's."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from gradwatch.checkpoints.index import Index
from gradwatch.checkpoints.limits import MAX_COUNT, MAX_DIMS, MAX_NAME
from gradwatch.errors import GradwatchError

_Item = TypeVar("_Item")

MODELS = (
    "state_dict", "model_state_dict", "model", "module", "network", "net", "weights", "params",
)  # fmt: skip
_NOT_MODELS = ("optim", "scheduler", "scaler", "ema")  # what their names begin with
_WRAPPERS = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})


def checked_name(name: str, path: str) -> str:
    """A tensor's name, refused if it is empty or longer than names are."""
    if not name or len(name) > MAX_NAME:
        raise GradwatchError(
            f"{path} has a tensor whose name has {len(name)} characters; "
            f"names of 1 to {MAX_NAME} are read."
        )
    return name


def checked_shape(shape: Any, name: str, path: str) -> tuple[int, ...]:
    """A shape whose product cannot overflow anything, checked before memory is taken for it."""
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


def in_order(names: Iterable[str]) -> list[str]:
    """Sorted as a person would: `layers.2` before `layers.10`."""
    return sorted(names, key=_numbers_by_size)


def _numbers_by_size(name: str) -> list[tuple[int, int, str]]:
    return [
        (0, int(word), "") if word.isascii() and word.isdigit() and len(word) < 10 else (1, 0, word)
        for word in name.split(".")
    ]


def model_part(
    tensors: Mapping[tuple[str, ...], _Item],
) -> tuple[dict[str, _Item], dict[str, str]]:
    """The tensors of the model by dotted name, and for the rest why it is left out.

    A path has one word per level of nesting: `("model", "fc.weight")`. A state dict that lies open
    at the top is taken as it is, whatever its names begin with.
    """
    nested = Counter(path[0] for path in tensors if len(path) > 1)
    open_names = [path[0] for path in tensors if len(path) == 1]
    left_out = {head for head in nested if head.startswith(_NOT_MODELS)}
    model = next((head for head in MODELS if head in nested), None)
    beside = [n for n in nested if n != model and n not in left_out and nested[n] > 1]
    if model is None or beside or any("." in name for name in open_names):
        if len(left_out) == len(nested) and not open_names:
            left_out = set()  # nothing else is there
        kept = {".".join(path): item for path, item in tensors.items() if path[0] not in left_out}
    else:
        left_out = {path[0] for path in tensors if path[0] != model}
        kept = {".".join(path[1:]): item for path, item in tensors.items() if path[0] == model}
    return kept, _reasons(left_out, Counter(path[0] for path in tensors))


def flat_model_part(tensors: Mapping[str, _Item]) -> tuple[dict[str, _Item], dict[str, str]]:
    """The same where nesting was flattened into dotted names, as distributed checkpoints do."""
    counts = Counter(name.partition(".")[0] for name in tensors)
    left_out = {head for head in counts if head.startswith(_NOT_MODELS)}
    if len(left_out) == len(counts):
        left_out = set()  # nothing else is there
    heads = set(counts) - left_out
    kept = {name: item for name, item in tensors.items() if name.partition(".")[0] in heads}
    if len(heads) == 1 and heads <= set(MODELS) and all("." in name for name in kept):
        kept = {name.partition(".")[2]: item for name, item in kept.items()}
    return kept, _reasons(left_out, counts)


def _reasons(left_out: set[str], counts: Mapping[str, int]) -> dict[str, str]:
    return {
        head: f"{count} tensors beside the model are not examined"
        for head, count in counts.items()
        if head in left_out
    }


def unwrapped(index: Index) -> Index:
    """Names without what DataParallel, torch.compile and FSDP put around them, if still unique."""
    names = [name for tensor in index.tensors for name in (tensor.name, *tensor.aliases)]
    bare = {
        name: ".".join(word for word in name.split(".") if word not in _WRAPPERS) for name in names
    }
    if all(name.startswith("module.") for name in bare.values()):
        bare = {name: short.removeprefix("module.") for name, short in bare.items()}
    if len(set(bare.values())) != len(names) or "" in bare.values():
        return index
    return replace(
        index,
        tensors=tuple(
            replace(t, name=bare[t.name], aliases=tuple(bare[alias] for alias in t.aliases))
            for t in index.tensors
        ),
    )
