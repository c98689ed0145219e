"""The tables behind the rows of a map: tensors, their layers, and blocks of layers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gradwatch.run import Run, block_of
from gradwatch.stats import Kind


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer: its place in forward order, its tensors, and the one that stands for it."""

    name: str
    module: str
    tensors: tuple[int, ...]
    main: int | None
    """The tensor with most elements, trained ones first: the layer's row shows it."""
    block: str


def layers(run: Run) -> tuple[Layer, ...]:
    """In forward order."""
    owned: dict[str, list[int]] = {}
    modules: dict[str, str] = {}
    for index, subject in enumerate(run.parameters):
        owned.setdefault(subject.layer, []).append(index)
        modules.setdefault(subject.layer, subject.module)
    for subject in run.by_kind[Kind.LAYER]:
        modules[subject.name] = subject.module or modules.get(subject.name, "")
    for node in run.graph.nodes:
        modules[node.layer] = modules.get(node.layer) or node.kind
    return tuple(
        Layer(
            name,
            modules.get(name, ""),
            tuple(owned.get(name, ())),
            _main(run, owned.get(name)),
            block_of(name),
        )
        for name in run.layers
    )


def _main(run: Run, tensors: Sequence[int] | None) -> int | None:
    if not tensors:
        return None
    return max(tensors, key=lambda i: (not run.parameters[i].frozen, run.parameters[i].count, -i))


def tables(run: Run, found: Sequence[Layer], badness: Sequence[float]) -> dict[str, Any]:
    """The two tables of the model that the maps' rows refer to."""
    position = {layer.name: index for index, layer in enumerate(found)}
    return {
        "layers": [
            {
                "name": layer.name,
                "module": layer.module,
                "block": layer.block,
                "tensors": list(layer.tensors),
                "main": layer.main,
                "badness": round(bad, 3),
            }
            for layer, bad in zip(found, badness, strict=True)
        ],
        "tensors": [
            {
                "name": subject.name,
                "layer": position[subject.layer],
                "shape": list(subject.shape),
                "count": subject.count,
                "dtype": subject.dtype,
                "frozen": subject.frozen,
            }
            for subject in run.parameters
        ],
    }
