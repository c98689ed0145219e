"""Runs made by hand, in a line: for tests of analyses, checks and views."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from gradwatch.graph import Graph
from gradwatch.run import Event, MemorySource, Run, Subject
from gradwatch.stats import Kind, Stat, State


def make_run(
    series: Mapping[str, Any] | None = None,
    *,
    names: Sequence[str] = (),
    layers: Sequence[str] = (),
    subjects: Sequence[Subject] = (),
    scalars: Mapping[str, ArrayLike] | None = None,
    states: Mapping[str, Any] | None = None,
    steps: Sequence[int] | None = None,
    events: Sequence[Event] = (),
    graph: Graph | None = None,
    info: Mapping[str, Any] | None = None,
) -> Run:
    """`series={"grad_norm": [step][name]}`; a NaN without a state given counts as not sampled."""
    values = {Stat(stat): np.asarray(table, float) for stat, table in (series or {}).items()}
    tables = [*values.values(), *(np.asarray(s, float) for s in (scalars or {}).values())]
    length = len(tables[0]) if tables else 0
    if not subjects:
        subjects = (
            *(
                Subject(Kind.PARAMETER, n, n.rpartition(".")[0] or n, (4, 4), "float32", 16, 0)
                for n in names
            ),
            *(Subject(Kind.LAYER, layer, layer) for layer in layers),
        )
    given = {Stat(stat): np.asarray(table, np.uint8) for stat, table in (states or {}).items()}
    for stat, table in values.items():
        given.setdefault(
            stat, np.where(np.isnan(table), State.NOT_SAMPLED, State.MEASURED).astype(np.uint8)
        )
    return Run(
        MemorySource(
            np.arange(length) if steps is None else np.asarray(steps, np.int64),
            tuple(subjects),
            values,
            given,
            scalars={k: np.asarray(v, float) for k, v in (scalars or {}).items()},
            events=tuple(events),
            graph=graph,
            info=dict(info or {}),
        )
    )
