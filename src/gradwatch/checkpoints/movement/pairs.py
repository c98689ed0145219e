"""Which tensor of one checkpoint is which of the other."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gradwatch.checkpoints.index import Tensor


@dataclass
class Pairing:
    """Tensors found in both, and what has no partner."""

    same: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    renamed: dict[str, str] = field(default_factory=dict)
    """Name before → name after."""
    reshaped: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    added: list[str] = field(default_factory=list)


def paired(
    before: Mapping[str, Tensor],
    after: Mapping[str, Tensor],
    marks: Mapping[str, int] | None = None,
) -> Pairing:
    """By name; then by the end of the name; then by equal bits (`marks` of what is left)."""
    found = Pairing()
    rest_before, rest_after = dict(before), dict(after)
    for name in before:
        if name in after:
            _match(found, rest_before.pop(name), rest_after.pop(name))
    for old, new in _by_ending(rest_before, rest_after).items():
        found.renamed[old] = new
        _match(found, rest_before.pop(old), rest_after.pop(new))
    for old, new in _by_marks(rest_before, rest_after, marks or {}).items():
        found.renamed[old] = new
        _match(found, rest_before.pop(old), rest_after.pop(new))
    found.missing, found.added = list(rest_before), list(rest_after)
    order = {name: number for number, name in enumerate(before)}
    found.same.sort(key=lambda pair: order[pair[0].name])
    return found


def _match(found: Pairing, old: Tensor, new: Tensor) -> None:
    if old.shape == new.shape:
        found.same.append((old, new))
    else:
        found.reshaped[old.name] = (old.shape, new.shape)


def _by_ending(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> dict[str, str]:
    """A prefix was added or taken away: one name ends with the other, in a single way."""
    endings: dict[str, list[str]] = {}
    for name in after:
        for ending in _endings(name):
            endings.setdefault(ending, []).append(name)
    found: dict[str, str] = {}
    for old in before:
        for ending in _endings(old):
            partners = [new for new in endings.get(ending, ()) if new == ending or old == ending]
            if len(partners) == 1 and partners[0] not in found.values():
                found[old] = partners[0]
                break
    return found


def _endings(name: str) -> list[str]:
    """The name, and what is left of it without its first one to four words."""
    words = name.split(".")
    return [".".join(words[start:]) for start in range(min(5, len(words)))]


def _by_marks(
    before: Mapping[str, Tensor], after: Mapping[str, Tensor], marks: Mapping[str, int]
) -> dict[str, str]:
    """`marks` has the names of both sides, those after with a leading newline."""
    places: dict[tuple[int, tuple[int, ...]], list[str]] = {}
    for new, tensor in after.items():
        if f"\n{new}" in marks:
            places.setdefault((marks[f"\n{new}"], tensor.shape), []).append(new)
    found: dict[str, str] = {}
    for old, tensor in before.items():
        partners = places.get((marks.get(old, -1), tensor.shape), [])
        if len(partners) == 1 and partners[0] not in found.values():
            found[old] = partners[0]
    return found
