"""Which part of a saved object is the model, and what its tensors are called."""

from collections.abc import Iterable, Mapping
from typing import TypeVar

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
_WRAPPERS = ("module.", "_orig_mod.", "_fsdp_wrapped_module.")


def model_part(found: Mapping[str, _Kind]) -> tuple[dict[str, _Kind], dict[str, str]]:
    """The tensors of the model, and for the rest why it is left out."""
    groups: dict[str, int] = {}
    for name in found:
        head = name.partition(".")[0]
        groups[head] = groups.get(head, 0) + 1
    others = {head for head in groups if head.startswith(_OTHERS)}
    model = next((head for head in _MODELS if head in groups and f"{head}" not in found), None)
    beside = set(groups) - others - {model}
    if model is None or any(groups[head] > 1 for head in beside):
        kept, left = dict(found), others if others != set(groups) else set()
        kept = {name: value for name, value in found.items() if name.partition(".")[0] not in left}
    else:
        left = set(groups) - {model}
        kept = {
            name[len(model) + 1 :]: value
            for name, value in found.items()
            if name.partition(".")[0] == model
        }
    reasons = {head: f"{groups[head]} tensors beside the model are not examined" for head in left}
    return _unwrapped(kept), reasons


def _unwrapped(found: dict[str, _Kind]) -> dict[str, _Kind]:
    """Names without what DataParallel, torch.compile and FSDP put around them."""
    shorter = {_bare(name): value for name, value in found.items()}
    return shorter if len(shorter) == len(found) and "" not in shorter else found


def _bare(name: str) -> str:
    for wrapper in _WRAPPERS:
        if name.startswith(wrapper):
            name = name[len(wrapper) :]
        name = name.replace(f".{wrapper}", ".") if wrapper != "module." else name
    return name


def natural(name: str) -> list[tuple[int, int, str]]:
    """A key for sorting that puts `layers.2` before `layers.10`."""
    return [
        (0, int(word), "") if word.isascii() and word.isdigit() and len(word) < 10 else (1, 0, word)
        for word in name.split(".")
    ]


def in_order(names: Iterable[str]) -> list[str]:
    """Sorted as a person would."""
    return sorted(names, key=natural)
