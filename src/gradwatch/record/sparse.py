"""Sparse gradients too large to be made dense: the entries are measured, the zeros are added."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import gradwatch.kernel as kernel
from gradwatch.record.placement import local
from gradwatch.record.tracks import KINDS, gather


def sparse_record(gradient: Tensor) -> tuple[np.void, NDArray[np.int64]] | None:
    """The record of the whole tensor and the rows that are not zero; None for other layouts.

    Exact: the statistics of the entries, summed where they repeat, merged with those of the zeros.
    """
    gradient = local(gradient).detach()
    if gradient.layout is not torch.sparse_coo or not gradient.is_cpu:
        return None
    if gradient.dtype not in KINDS:
        return None
    whole = gradient.coalesce()
    values = whole.values()
    held = gather([values.reshape(-1)])
    (entries,) = kernel.measure(held.batch).records
    zeros = np.zeros((), kernel.MOMENTS)
    zeros["count"] = zeros["zeros"] = whole.numel() - values.numel()
    zeros["skewness"] = zeros["kurtosis"] = np.nan
    parts = [part for part in (entries, zeros) if part["count"]] or [zeros]
    record = kernel.merge(np.array(parts, kernel.MOMENTS))
    other = (values.reshape(values.shape[0], -1) != 0).any(1)
    rows = np.unique(whole.indices()[0][other].numpy())
    if whole.dim() > 1:
        record["zero_rows"] = whole.shape[0] - len(rows)
    return record, rows
