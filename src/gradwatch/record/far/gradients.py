"""Everything there is to know of gradients on accelerators, sent off together."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import gradwatch.kernel as kernel
from gradwatch.kernel import SKETCH_WIDTH
from gradwatch.record.far.alike import Alike, alike
from gradwatch.record.far.arithmetic import moments_of, records_of
from gradwatch.record.far.bins import bins, bins_of, histogram_of
from gradwatch.record.far.marks import Place, Sketcher, turned
from gradwatch.record.far.rows import FarRows, touched
from gradwatch.record.far.transfer import Load, Parts
from gradwatch.record.far.trying import tried
from gradwatch.record.far.verdict import shift_to_raw
from gradwatch.record.measuring import Measured, cosine
from gradwatch.record.placement import local
from gradwatch.record.row_memory import RowMemory
from gradwatch.record.rows import blank, moment_rows
from gradwatch.record.verdict import Verdict
from gradwatch.record.ward import Ward
from gradwatch.run import Histogram
from gradwatch.stats import Family, State

_KEPT = 256
"""Layouts of sketches of one ward; there are more only where gradients come and go."""


class Memory:
    """What is remembered on devices of one set of tensors."""

    def __init__(self, ward: Ward) -> None:
        self.rows = FarRows(
            {
                index: (local(parameter).device, count)
                for index, (parameter, count) in enumerate(
                    zip(ward.parameters(), ward.memory.rows, strict=True)
                )
                if parameter is not None and count
            }
        )
        self._sketchers: dict[tuple[object, ...], Sketcher] = {}

    def rows_for(self, present: dict[int, tuple[torch.device, int]]) -> FarRows:
        """The memory of rows; begun anew where a tensor has become another."""
        known = self.rows.rows
        if any(known.get(index) != place for index, place in present.items()):
            self.rows = FarRows(known | present)
        return self.rows

    def sketch(self, ward: Ward, group: Alike) -> tuple[Sketcher, Tensor, Tensor]:
        """Who sketches the group, the sums of whole groups of elements, and those outside."""
        sketcher = self._sketcher(ward, group)
        whole, edge = sketcher.sums(group)
        return sketcher, turned(whole), edge

    def _sketcher(self, ward: Ward, group: Alike) -> Sketcher:
        device, count = group.matrix.device, group.matrix.shape[1]
        key = device, count, *group.indices
        if key not in self._sketchers:
            if len(self._sketchers) == _KEPT:
                self._sketchers.clear()
            places = [
                Place(int(ward.seeds[i]), int(ward.offsets[i]), int(ward.wholes[i]), count)
                for i in group.indices
            ]
            self._sketchers[key] = Sketcher(places, device)
        return self._sketchers[key]


@dataclass(frozen=True)
class _Group:
    """Where the numbers of a group lie in the transfer."""

    indices: list[int]
    widths: list[int]
    sums: slice
    bins: slice | None
    outside: slice | None
    sketcher: Sketcher | None


@dataclass(frozen=True)
class Sent:
    """What is under way; `records` and the others read it when it is here."""

    total: int
    groups: list[_Group]
    rows: FarRows
    marks: slice
    turned: slice
    factor: slice
    last_sketch: NDArray[np.float32]
    """The ward's, as it was when this was sent: it may have got other tensors since."""

    def measured(
        self,
        arrived: Parts,
        states: NDArray[np.uint8],
        verdict: Verdict,
        multiplier: float,
        cosines: bool,
    ) -> Measured:
        """The rows, as the kernel would have given them."""
        states = states.copy()
        if not verdict.undoable:
            states[states == State.MEASURED] = State.CLIPPED
        records = self.records(arrived)
        records["zero_rows"], dead, untouched = self.row_counts(arrived)
        rows = moment_rows(Family.GRAD, records, states, multiplier)
        rows["grad_dead_rows"], rows["grad_untouched_rows"] = dead, untouched
        sketch = self.sketches(arrived)
        if sketch is not None:
            sketch *= np.float32(multiplier)
            rows["grad_sketch"] = sketch
            if cosines:
                rows["grad_cosine"] = cosine(sketch, self.last_sketch)
            seen = ~np.isnan(sketch).all(axis=1)
            self.last_sketch[seen] = sketch[seen]
        histograms = self.histograms(arrived, records, multiplier)
        return Measured(Family.GRAD, blank(Family.GRAD, rows, states), states, histograms)

    def records(self, arrived: Parts) -> NDArray[np.void]:
        records = np.zeros(self.total, kernel.MOMENTS)
        for group in self.groups:
            records[group.indices] = records_of(group.widths, arrived[group.sums])
        return records

    def row_counts(self, arrived: Parts) -> NDArray[np.uint64]:
        """[3, tensor]: rows that are zero, that were in the whole window, that always were."""
        counts = np.zeros((3, self.total), np.uint64)
        for index, three in self.rows.counts(arrived[self.marks]).items():
            counts[:, index] = three
        return counts

    def sketches(self, arrived: Parts) -> NDArray[np.float32] | None:
        """NaN where there is no gradient; None where no sketches were asked for."""
        if self.turned.start == self.turned.stop:
            return None
        found = np.full((self.total, SKETCH_WIDTH), np.nan, np.float32)
        sketched = [group for group in self.groups if group.sketcher is not None]
        for group, buckets in zip(sketched, arrived[self.turned], strict=True):
            assert group.sketcher is not None
            assert group.outside is not None
            (outside,) = arrived[group.outside]
            table = buckets.reshape(-1, SKETCH_WIDTH)
            found[group.indices] = group.sketcher.finish(table, outside)
        return found

    def histograms(
        self, arrived: Parts, records: NDArray[np.void], multiplier: float
    ) -> Sequence[Histogram | None]:
        """In raw units; none where the device could not know what makes them raw."""
        applied = float(arrived[self.factor][0][0]) if self.factor.stop > self.factor.start else 1.0
        shift = shift_to_raw(multiplier, applied)
        found: list[Histogram | None] = [None] * self.total
        for group in self.groups:
            if group.bins is None or shift is None:
                continue
            counts, above = arrived[group.bins]
            table = bins_of(counts.reshape(len(group.indices), -1))
            for index, cut, infinite in zip(group.indices, table, above, strict=True):
                histogram = histogram_of(records[index], cut, infinite, shift)
                if histogram.count == records["count"][index]:  # none left the range of the type
                    found[index] = histogram
        return found if any(group.bins is not None for group in self.groups) else ()


class FarGradients:
    """Measures gradients where they are, and remembers there what needs remembering."""

    def __init__(self) -> None:
        self._memories: WeakKeyDictionary[RowMemory, Memory] = WeakKeyDictionary()

    def send(
        self,
        load: Load,
        ward: Ward,
        tensors: Sequence[Tensor | None],
        *,
        factor: Tensor | None,
        void: Tensor | None,
        histograms: bool,
        sketches: bool,
    ) -> Sent:
        """`factor` makes the histograms raw; `void` says that the step will be skipped."""
        memory = self._memories.get(ward.memory)
        if memory is None:
            memory = self._memories[ward.memory] = Memory(ward)
        found, sums, marks = [], [], {}
        present: dict[int, tuple[torch.device, int]] = {}
        for group in alike(tensors, ward.offsets % SKETCH_WIDTH):
            device = group.matrix.device
            sketch = binned = sketcher = outside = None
            if sketches:
                sketch = tried("sketches", device, partial(memory.sketch, ward, group))
            if sketch is not None:
                sketcher, whole, edge = sketch
                sums.append(whole)
                outside = load.add(edge)
            if histograms:
                binned = tried("histograms", device, partial(bins, group, factor))
            counts = None if binned is None else load.add(*binned)
            widths = [piece.shape[1] for piece in group.pieces]
            place = load.add(*moments_of(group))
            found.append(_Group(list(group.indices), widths, place, counts, outside, sketcher))
            if group.rows:
                for index, line in zip(group.indices, touched(group).unbind(0), strict=True):
                    marks[index] = line
                    present[index] = group.matrix.device, group.rows
        rows = memory.rows_for(present)
        return Sent(
            len(tensors),
            found,
            rows,
            load.add(*rows.remember(marks, void)),
            load.add(*sums),
            load.add(factor) if histograms and factor is not None else load.add(),
            ward.last_sketch,
        )
