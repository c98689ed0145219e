"""A measured checkpoint as plain data: what `gradwatch weights --json` writes of it."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from math import isinf
from typing import Any

from gradwatch.checkpoints.measure import OVERFLOW, Cast, TensorStats, casts, overall_casts
from gradwatch.checkpoints.scanning import Checkpoint

FORMAT = 1
"""Number of the JSON's form; it grows when a field changes its meaning or goes."""


def as_dict(checkpoint: Checkpoint, steps: Sequence[int] = ()) -> dict[str, Any]:
    """Of every tensor name, shape, type and what was measured; `steps` are all that were read."""
    index = checkpoint.index
    return {
        "format": FORMAT,
        "path": index.path,
        "kind": index.format,
        "files": len(index.files),
        "bytes": index.bytes,
        "steps": list(steps),
        "tensors": [_tensor(checkpoint, *item) for item in checkpoint.by_name.items()],
        "casts": _as_data(overall_casts(checkpoint.tensors)),
        "left_out": dict(index.left_out),
        "notes": list(index.notes),
    }


def _tensor(checkpoint: Checkpoint, name: str, stats: TensorStats) -> dict[str, Any]:
    """What was measured of one tensor, under one of its names."""
    tensor, moments = stats.tensor, stats.moments
    overflow = isinf(moments["norm"])
    data: dict[str, Any] = {
        "name": name,
        "shape": list(tensor.shape),
        "dtype": str(tensor.element),
        "count": tensor.count,
        "bytes": tensor.bytes,
        "tied_to": [other for other in tensor.names if other != name],
        "mean": float(moments["mean"]),
        "std_dev": float(moments["std"]),
        "min": float(moments["min"]),
        "max": float(moments["max"]),
        "zero_fraction": stats.zero_fraction,
        "norm": None if overflow else float(moments["norm"]),
        "abs_mean": float(moments["abs_mean"]),
        "abs_max": float(moments["abs_max"]),
        "skewness": float(moments["skewness"]),
        "kurtosis": float(moments["kurtosis"]),
        "nan": int(moments["nan"]),
        "inf": stats.nonfinite - int(moments["nan"]),
        "first_nonfinite": stats.first_position,
        "row_spread": stats.row_spread,
        "casts": _as_data(casts(stats)),
    }
    if overflow:
        data["missing"] = {"norm": OVERFLOW}
    if len(tensor.shape) >= 2:
        data["zero_rows"] = int(moments["zero_rows"])
    if stats.columns is not None:
        data["zero_columns"] = int((~stats.columns.alive).sum())
        data["rows_exact"] = stats.columns.exact
    if checkpoint.spectra is not None:
        spectrum = checkpoint.spectra.get(stats.name)
        data["spectrum"] = None if spectrum is None else asdict(spectrum)
    return data


def _as_data(by_type: Mapping[str, Cast]) -> dict[str, dict[str, float]]:
    return {target: asdict(cast) for target, cast in by_type.items()}
