"""Counts what a device would do: launches and bytes.

Tensors are on torch's "meta" device: they have shapes and no memory, so a model of seven billion
parameters costs nothing. A reduction that is asked for another type first writes a copy in it, as
CUDA does (`make_reduction` in ATen's ReduceOpsUtils.h).
"""

import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

META = torch.device("meta")
FREE = {"view", "as_strided", "detach", "unbind", "slice", "select", "unsqueeze", "expand", "t"}
FREE |= {"transpose", "permute", "alias", "squeeze", "split", "_unsafe_view", "_reshape_alias"}
FREE |= {"split_with_sizes", "empty", "empty_like", "empty_strided", "new_empty", "lift_fresh"}
WAITS = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "bincount"}
GATHERS = {"take", "index_select", "index", "gather"}
MADE = {"zeros", "ones", "full", "arange", "zeros_like", "ones_like", "full_like", "fill_", "zero_"}


class Counting(TorchDispatchMode):
    """Everything that is done on the meta device while this is entered."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.launches: Counter[str] = Counter()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name.removeprefix("aten::")
        assert name not in WAITS, name
        given = list(_tensors((args, kwargs)))
        made = func(*args, **kwargs)
        outs = [one for one in _tensors(made) if one.is_meta]
        if name.removesuffix("_copy") not in FREE and any(one.is_meta for one in (*given, *outs)):
            self._count(name, args, given, outs)
        return made

    def _count(self, name: str, args: Any, given: list[Tensor], outs: list[Tensor]) -> None:
        self.launches[name] += _kernels(name, args)
        read = {
            (one.untyped_storage()._cdata, one.storage_offset(), one.shape, one.stride()): one
            for one in given[name in GATHERS :]
        }
        if name not in MADE:
            self.bytes += sum(_touched(one) for one in read.values())
        if name in GATHERS:
            self.bytes += sum(_touched(one) for one in outs)
        self.bytes += sum(_touched(one) for one in outs)
        if name in ("sum", "linalg_vector_norm") and _converts(given[0], outs[0]):
            copy = given[0].numel() * outs[0].itemsize
            self.launches["converted"] += 1
            self.bytes += 2 * copy


def _converts(given: Tensor, made: Tensor) -> bool:
    halves = (torch.float16, torch.bfloat16)
    return given.dtype != made.dtype and not (given.dtype in halves and made.dtype is torch.float32)


def _kernels(name: str, args: Any) -> int:
    if name in ("cat", "stack"):
        if len({one.dtype for one in args[0]}) > 1:
            return len(args[0])
        # CatArrayBatchedCopy takes fewer inputs at once where some have gaps.
        whole = all(one.is_contiguous() for one in args[0])
        return math.ceil(len(args[0]) / (128 if whole else 64))
    return _foreach_kernels(args[0]) if name == "_foreach_norm" else 1


def _foreach_kernels(tensors: list[Tensor]) -> int:
    """multi_tensor_apply: chunks of 65,536 elements, at most 320 of them and 110 tensors at once;
    before them one that clears the results, behind them one that takes roots."""
    launches = blocks = many = 0
    for one in tensors:
        many += 1
        chunks = math.ceil(one.numel() / 65536)
        for chunk in range(chunks):
            blocks += 1
            last = chunk == chunks - 1
            if blocks == 320 or (many == 110 and last):
                launches, blocks, many = launches + 1, 0, int(not last)
    return launches + (blocks > 0) + 2


def _touched(tensor: Tensor) -> int:
    """Bytes of memory; what is broadcast is read once."""
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    return math.prod(size for size, stride in sizes if stride) * tensor.itemsize


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple, dict)):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _tensors(one)


# -- models ----------------------------------------------------------------------------------------


def gpt2() -> list[tuple[int, ...]]:
    """124 M: 148 tensors."""
    w = 768
    layer: list[tuple[int, ...]] = [(w,), (w,), (w,), (w,), (3 * w, w), (3 * w,), (w, w), (w,)]
    layer += [(4 * w, w), (4 * w,), (w, 4 * w), (w,)]
    return [(50257, w), (1024, w), *layer * 12, (w,), (w,)]


def llama(ranks: int = 1) -> list[tuple[int, ...]]:
    """7 B: 291 tensors, or what one of several ranks holds of them."""
    w, inner = 4096, 11008
    layer = [(w,), (w,), *[(w, w)] * 4, (inner, w), (inner, w), (w, inner)]
    whole = [(32000, w), *layer * 32, (w,), (32000, w)]
    return [(shape[0] // ranks, *shape[1:]) for shape in whole]
