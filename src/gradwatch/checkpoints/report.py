"""`examine`: a measured checkpoint with what the checks say about it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from gradwatch.checkpoints.checks import findings_for
from gradwatch.checkpoints.measure import Cast, TensorStats, casts, overall_casts
from gradwatch.checkpoints.parallel import ScanOptions
from gradwatch.checkpoints.scanning import Checkpoint, Paths, measure_checkpoints, run_of
from gradwatch.checkpoints.spectrum import spectra
from gradwatch.errors import GradwatchError
from gradwatch.finding import Finding, Skipped
from gradwatch.run import Run

FORMAT = 1
"""Number of the JSON's form; it grows when a field changes its meaning or goes."""


@dataclass(frozen=True)
class CheckpointReport:
    """The run of all checkpoints, and the findings about the last of them."""

    run: Run
    last: Checkpoint
    findings: tuple[Finding, ...]
    skipped: tuple[Skipped, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data: of every tensor name, shape, type and what was measured."""
        index = self.last.index
        return {
            "format": FORMAT,
            "path": index.path,
            "kind": index.format,
            "files": len(index.files),
            "bytes": index.bytes,
            "steps": self.run.steps.tolist(),
            "tensors": [self._tensor(stats) for stats in self.last.tensors],
            "casts": _as_data(overall_casts(self.last.tensors)),
            "left_out": dict(index.left_out),
            "notes": list(index.notes),
            "findings": [finding.to_dict() for finding in self.findings],
            "skipped": [{"check": s.check, "reason": s.reason} for s in self.skipped],
        }

    def _tensor(self, stats: TensorStats) -> dict[str, Any]:
        data = tensor_dict(stats)
        if self.last.spectra is not None:
            spectrum = self.last.spectra.get(stats.name)
            data["spectrum"] = None if spectrum is None else asdict(spectrum)
        return data


def examine(
    path: Paths, *, spectrum: bool = False, options: ScanOptions | None = None
) -> CheckpointReport:
    """Measure the checkpoints and look at the last one; `spectrum` adds singular values."""
    options = options or ScanOptions()
    checkpoints = measure_checkpoints(path, options)
    last = checkpoints[-1]
    if not last.tensors:
        raise GradwatchError(f"{last.index.path} holds no tensor that can be measured.")
    if spectrum:
        last = replace(last, spectra=spectra(last.index, options))
    findings, skipped = findings_for(last)
    return CheckpointReport(run_of(checkpoints), last, findings, skipped)


def tensor_dict(stats: TensorStats) -> dict[str, Any]:
    """What was measured of one tensor."""
    tensor, moments = stats.tensor, stats.moments
    data: dict[str, Any] = {
        "name": tensor.name,
        "shape": list(tensor.shape),
        "dtype": str(tensor.element),
        "count": tensor.count,
        "bytes": tensor.bytes,
        "aliases": list(tensor.aliases),
        "note": tensor.note,
        "mean": float(moments["mean"]),
        "std_dev": float(moments["std"]),
        "min": float(moments["min"]),
        "max": float(moments["max"]),
        "zero_fraction": stats.zero_fraction,
        "norm": float(moments["norm"]),
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
    if len(tensor.shape) >= 2:
        data["zero_rows"] = int(moments["zero_rows"])
    if stats.columns is not None:
        data["zero_columns"] = int((~stats.columns.alive).sum())
        data["rows_exact"] = stats.columns.exact
    return data


def _as_data(by_type: Mapping[str, Cast]) -> dict[str, dict[str, float]]:
    return {target: asdict(cast) for target, cast in by_type.items()}
