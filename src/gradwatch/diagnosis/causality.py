"""Whether one fault can be the reason of another: by time, by data flow and by size.

A cause begins no later than its effect, touches the effect's layers or lies on a path to them, and
is large enough: what concerns a thousandth of the network does not hold all of it back.
"""

from collections.abc import Sequence
from functools import cached_property

from gradwatch.finding import Finding, Severity
from gradwatch.run import Run
from gradwatch.stats import Stat

ANY_TIME = frozenset({"slow-convergence", "loss-oscillation", "not-learning"})
"""Judged over the whole run, so that their first step says nothing about what came first.

What causes them must be there for at least half of the run and reach a good part of the network.
"""

GOOD_PART = 0.1
"""Share of the elements or of the layers that counts as a good part of the network."""

PASSIVE = frozenset({"no-gradient", "not-updated", "update-lost-to-rounding", "foreign-optimizer"})
"""Tensors that rest: what flows through their layer is not hindered, so only their share counts."""

_SHARES = {Stat.GRAD_DEAD_ROWS, Stat.GRAD_UNTOUCHED_ROWS, Stat.ACT_FLAT_FRACTION}


class Causality:
    """Answers for one run; sizes and paths are computed once."""

    def __init__(self, run: Run) -> None:
        self._graph = run.graph
        self._shapes = {p.name: p.shape for p in run.parameters}
        self._owners = {p.name: p.layer for p in run.parameters if not p.frozen}
        self._counts = {p.name: max(p.count, 1) for p in run.parameters}
        steps = run.steps
        self._first, self._last = (int(steps[0]), int(steps[-1])) if len(steps) else (0, 0)
        self._slack = max(5, len(steps) // 50)

    def explains(self, cause: Finding, effect: Finding, *, earlier_in_order: bool) -> bool:
        """Whether `cause` may be the reason of `effect`; the order decides within a few steps."""
        if cause.severity is Severity.INFO:  # what is hardly there explains next to nothing
            both = cause.check == "no-gradient" and effect.check == "not-updated"
            return both and effect.severity is Severity.INFO
        if any(item.stat == Stat.GRAD_UNTOUCHED_ROWS for item in cause.evidence):
            return False  # rows that the data never use are not missed by them
        if effect.check in ANY_TIME:
            middle = (self._first + self._last) / 2
            return cause.first_step <= middle + self._slack and self._reaches(cause)
        late = cause.first_step - effect.first_step
        if late > (self._slack if earlier_in_order else 0):
            return False
        return self._implies(cause, effect) and self.connected(cause.layers, effect.layers)

    def began_late(self, finding: Finding) -> bool:
        """Whether it was not there in the first twentieth of the run."""
        return finding.first_step - self._first > 0.05 * (self._last - self._first)

    def _implies(self, cause: Finding, effect: Finding) -> bool:
        """What units that still work, or zeros that nothing moves, do not bring about."""
        if cause.check == "symmetric-weights" and effect.check != "bad-init":
            return cause.severity is Severity.CRITICAL
        if effect.check == "symmetric-weights":
            return effect.severity < Severity.CRITICAL
        if effect.check == "no-gradient" and cause.check in {"dead-units", "saturation"}:
            return self._extent(cause) >= 0.9
        if effect.check == "update-ratio-too-small":  # a median: half of the weights decide it
            return not cause.layers or self._share(cause) > 0.5
        return True

    def _reaches(self, cause: Finding) -> bool:
        """Whether a fault concerns enough of the network to hold all of it back."""
        if not cause.layers:
            return True
        extent = self._extent(cause)
        if self._share(cause) * extent >= GOOD_PART:
            return True
        through = cause.check not in PASSIVE and extent >= 0.5
        return through and any(self._only_way(layer) for layer in cause.layers[:8])

    def _extent(self, finding: Finding) -> float:
        """The part of its layer that a fault concerns: of its units, rows or outputs."""
        for item in finding.evidence:
            if item.stat in _SHARES:
                shape = self._shapes.get(item.subject or "")
                return item.measured / shape[0] if shape else item.measured
        return 1.0

    def _share(self, finding: Finding) -> float:
        """Of the trainable elements, or, where whole layers are meant, of these; the larger."""
        layers, owners = set(finding.layers), self._owners
        tensors = finding.tensors or [name for name, layer in owners.items() if layer in layers]
        elements = sum(self._counts.get(name, 0) for name in tensors) / self._elements
        if finding.tensors:
            return elements
        return max(elements, len(layers) / max(len(set(owners.values())), 1))

    @cached_property
    def _elements(self) -> int:
        return max(1, sum(self._counts[name] for name in self._owners))

    def _only_way(self, layer: str) -> bool:
        """Whether no data reach the end past this layer."""
        graph = self._graph
        if graph.assumed or layer not in graph.order:
            return True
        before, after = graph.predecessors, graph.successors
        ends = {node for node in graph.order if before[node] and not after[node]}
        seen, queue = {layer}, [node for node in graph.order if after[node] and not before[node]]
        while queue:
            here = queue.pop()
            if here not in seen:
                seen.add(here)
                queue.extend(after[here])
        return not (seen & ends) - {layer}

    def connected(self, first: Sequence[str], second: Sequence[str]) -> bool:
        """Whether data or gradients can pass between the two; the whole run touches everything."""
        if not first or not second or not set(first).isdisjoint(second):
            return True
        here, there = first[0], second[0]
        graph = self._graph
        # where only the order of layers is known, each feeds the next: all are connected
        if graph.assumed or here not in graph.order or there not in graph.order:
            return True
        return there in graph.downstream(here) or there in graph.upstream(here)
