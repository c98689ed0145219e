"""Which part of a saved object is the model, and what its tensors are called."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TypeVar

from gradwatch.checkpoints.index import Index

_Kind = TypeVar("_Kind")

_MODELS = (
    "state_dict",
    "model_state_dict",
    "model",
    "module",
    "network",
    "net",
    "weights",
    "params",
)
_OTHERS = (
    "optimizer",
    "optim",
    "optimizer_state",
    "optimizer_states",
    "scheduler",
    "scaler",
    "ema",
)
_WRAPPERS = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})


def model_part(
    found: Mapping[tuple[str, ...], _Kind],
) -> tuple[dict[str, _Kind], dict[str, str]]:
    """The tensors of the model by dotted name, and for the rest why it is left out.

    A path has one word per level of nesting: `("model", "fc.weight")`. A state dict that lies open
    at the top is taken as it is, whatever its names begin with.
    """
    nested = Counter(path[0] for path in found if len(path) > 1)
    open_names = [path[0] for path in found if len(path) == 1]
    left = {head for head in nested if head.startswith(_OTHERS)}
    model = next((head for head in _MODELS if head in nested), None)
    beside = [head for head in nested if head != model and head not in left and nested[head] > 1]
    if model is None or beside or any("." in name for name in open_names):
        if len(left) == len(nested) and not open_names:
            left = set()  # nothing else is there
        kept = {".".join(path): item for path, item in found.items() if path[0] not in left}
    else:
        left = {path[0] for path in found if path[0] != model}
        kept = {".".join(path[1:]): item for path, item in found.items() if path[0] == model}
    return kept, _reasons(left, Counter(path[0] for path in found))


def flat_model_part(found: Mapping[str, _Kind]) -> tuple[dict[str, _Kind], dict[str, str]]:
    """The same where nesting was flattened into dotted names, as distributed checkpoints do."""
    heads = Counter(name.partition(".")[0] for name in found)
    left = {head for head in heads if head.startswith(_OTHERS)}
    rest = set(heads) - left
    if not rest:
        left, rest = set(), set(heads)
    kept = {name: item for name, item in found.items() if name.partition(".")[0] in rest}
    if len(rest) == 1 and rest <= set(_MODELS) and all("." in name for name in kept):
        kept = {name.partition(".")[2]: item for name, item in kept.items()}
    return kept, _reasons(left, heads)


def _reasons(left: Iterable[str], counts: Mapping[str, int]) -> dict[str, str]:
    return {head: f"{counts[head]} tensors beside the model are not examined" for head in left}


def unwrapped(index: Index) -> Index:
    """Names without what DataParallel, torch.compile and FSDP put around them, if still unique."""
    names = [name for tensor in index.tensors for name in (tensor.name, *tensor.aliases)]
    bare = {name: _bare(name) for name in names}
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


def _bare(name: str) -> str:
    words = name.split(".")
    kept = [word for word in words if word not in _WRAPPERS]
    return ".".join(kept)


def natural(name: str) -> list[tuple[int, int, str]]:
    """A key for sorting that puts `layers.2` before `layers.10`."""
    return [
        (0, int(word), "") if word.isascii() and word.isdigit() and len(word) < 10 else (1, 0, word)
        for word in name.split(".")
    ]


def in_order(names: Iterable[str]) -> list[str]:
    """Sorted as a person would."""
    return sorted(names, key=natural)
