"""`examine`: a measured checkpoint with what the checks say about it."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from gradwatch.checkpoints.as_run import run_of
from gradwatch.checkpoints.casts import Cast, casts, overall
from gradwatch.checkpoints.checks import Patient, look
from gradwatch.checkpoints.joining import Measured
from gradwatch.checkpoints.scanning import Checkpoint, Means, Paths, measure_all, spectra
from gradwatch.checkpoints.spectrum import Spectrum
from gradwatch.errors import GradwatchError
from gradwatch.finding import Finding, Skipped
from gradwatch.run import Run

FORMAT = 1
"""Number of the JSON's form; it grows when a field changes its meaning or goes."""


@dataclass(frozen=True)
class Examination:
    """The run of all checkpoints, and the findings about the last of them."""

    run: Run
    checkpoints: tuple[Checkpoint, ...]
    findings: tuple[Finding, ...]
    skipped: tuple[Skipped, ...]
    spectra: dict[str, Spectrum] | None = None

    @property
    def last(self) -> Checkpoint:
        return self.checkpoints[-1]

    def to_dict(self) -> dict[str, Any]:
        """Plain data: of every tensor name, shape, type and what was measured."""
        index = self.last.index
        return {
            "format": FORMAT,
            "path": index.path,
            "kind": index.format,
            "files": len(index.files),
            "bytes": index.bytes,
            "steps": [checkpoint.step for checkpoint in self.checkpoints],
            "tensors": [self._tensor(measured) for measured in self.last.tensors],
            "casts": casts_dict(overall(self.last.tensors)),
            "left_out": dict(index.left_out),
            "notes": list(index.notes),
            "findings": [finding.to_dict() for finding in self.findings],
            "skipped": [{"check": s.check, "reason": s.reason} for s in self.skipped],
        }

    def _tensor(self, measured: Measured) -> dict[str, Any]:
        found = tensor_dict(measured)
        if self.spectra is not None:
            spectrum = self.spectra.get(measured.name)
            found["spectrum"] = None if spectrum is None else spectrum_dict(spectrum)
        return found


def examine(path: Paths, *, spectrum: bool = False, means: Means | None = None) -> Examination:
    """Measure the checkpoints and look at the last one; `spectrum` adds singular values."""
    means = means or Means()
    checkpoints = measure_all(path, means, full=True)
    last = checkpoints[-1]
    if not last.tensors:
        raise GradwatchError(f"{last.index.path} holds no tensor that can be measured.")
    found = spectra(last.index, means) if spectrum else None
    findings, skipped = look(Patient(last.step, last.index, last.tensors, found))
    run = run_of([(c.step, c.index, c.tensors) for c in checkpoints])
    return Examination(run, tuple(checkpoints), findings, skipped, found)


def tensor_dict(measured: Measured) -> dict[str, Any]:
    """What was measured of one tensor."""
    tensor, moments = measured.tensor, measured.moments
    first = measured.first_bad
    found: dict[str, Any] = {
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
        "zero_fraction": measured.zero_fraction,
        "norm": float(moments["norm"]),
        "abs_mean": float(moments["abs_mean"]),
        "abs_max": float(moments["abs_max"]),
        "skewness": float(moments["skewness"]),
        "kurtosis": float(moments["kurtosis"]),
        "nan": int(moments["nan"]),
        "inf": measured.bad - int(moments["nan"]),
        "first_nonfinite": None
        if first is None
        else [int(i) for i in np.unravel_index(first, tensor.shape)],
        "row_spread": measured.spread,
        "casts": casts_dict(casts(measured)),
    }
    if len(tensor.shape) >= 2:
        found["zero_rows"] = int(moments["zero_rows"])
    if measured.columns is not None:
        found["zero_columns"] = int((~measured.columns.alive).sum())
        found["rows_exact"] = measured.columns.exact
    return found


def casts_dict(found: tuple[Cast, ...]) -> dict[str, dict[str, float]]:
    """By target: headroom, subnormal and vanishing shares."""
    return {
        cast.target: {
            "headroom": cast.headroom,
            "subnormal_fraction": cast.subnormal_fraction,
            "vanishing_fraction": cast.vanishing_fraction,
        }
        for cast in found
    }


def spectrum_dict(spectrum: Spectrum) -> dict[str, Any]:
    """The singular values (the largest 64) and what they say."""
    return {
        "exact": spectrum.exact,
        "full_rank": spectrum.full_rank,
        "effective_rank": spectrum.effective_rank,
        "stable_rank": spectrum.stable_rank,
        "rank_90": spectrum.rank_90,
        "tail_exponent": spectrum.tail_exponent,
        "singular_values": list(spectrum.values),
    }
