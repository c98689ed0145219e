"""The tensors of GPT-2 (124 M) and of Llama 7B, and what measuring them must cost: counted from
their sizes alone, without reading one."""

from collections.abc import Sequence
from math import prod

Shape = tuple[int, ...]


def gpt2(shrunk: int = 1) -> list[Shape]:
    """148 tensors; every width divided by `shrunk`."""
    words, context, width = 50257 // shrunk, 1024 // shrunk, 768 // shrunk
    block: list[Shape] = [(width,)] * 4
    for out, inner in ((3, 1), (1, 1), (4, 1), (1, 4)):
        block += [(out * width, inner * width), (out * width,)]
    return [(words, width), (context, width), *block * 12, (width,), (width,)]


def llama(shrunk: int = 1) -> list[Shape]:
    """291 tensors of Llama 7B; every width divided by `shrunk`."""
    words, width, inner = 32000 // shrunk, 4096 // shrunk, 11008 // shrunk
    layer: list[Shape] = [(width,)] * 2 + [(width, width)] * 4
    layer += [(inner, width), (inner, width), (width, inner)]
    return [(words, width), *layer * 32, (width,), (words, width)]


def elements(shapes: Sequence[Shape]) -> int:
    return sum(map(prod, shapes))


def read_to_measure(count: int, tile: int, *, sketched: bool = False) -> int:
    """Elements: whole tiles once, the rest twice, and what a sketch takes once more.

    Of tensors larger than 65,536 that is one group of 32 of every 256 elements.
    """
    rest = count % tile
    taken = count if count <= 65_536 else -(-count // 256) * 32
    return count + rest + (taken if sketched else 0)
