"""The pictures of the gallery: the sick run and the mended one side by side, on the same axes."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
from numpy.typing import NDArray

from gradwatch.checkpoints.measure import TensorStats
from gradwatch.checks.logged import is_loss, losses
from gradwatch.checks.tensors import checkpoint_of, weights_only
from gradwatch.finding import Finding
from gradwatch.run import Histogram, Run
from gradwatch.stats import Kind, Stat
from gradwatch.text import number, shortened
from gradwatch.views.model.titles import shown

Array = NDArray[np.float64]

WIDTH = 720
LEFT, APART, PLOT_WIDTH = 62, 354, 284
TOP, BELOW, PLOT_HEIGHT = 64, 164, 108
POINTS = 160
"""Of a longer curve the lowest and the highest value of each bucket are drawn."""
NONE = "no value"
FEW = 2
"""So few values are no curve: they are drawn as dots."""
LOG_ABOVE = 5
"""Positive values that differ by more than this are shown on a log scale."""
STYLE = """<style>
text{font:11px system-ui,sans-serif;fill:#444}
.head{font-weight:600;font-size:13px}
.card{fill:#fff;stroke:#ddd}
.grid{stroke:#e4e4e4}
.since{stroke:#888;stroke-dasharray:2 3}
.sick{stroke:#c0392b;fill:none;stroke-width:1.5;stroke-linejoin:round}
.mended{stroke:#1f6fb2;fill:none;stroke-width:1.5;stroke-linejoin:round}
rect.sick,circle.sick{fill:#c0392b;stroke:none}
rect.mended,circle.mended{fill:#1f6fb2;stroke:none}
@media(prefers-color-scheme:dark){
text{fill:#c9d1d9}
.card{fill:#161b22;stroke:#30363d}
.grid{stroke:#2a3038}
.sick{stroke:#ff7b72}
.mended{stroke:#6cb6ff}
rect.sick,circle.sick{fill:#ff7b72}
rect.mended,circle.mended{fill:#6cb6ff}
}
</style>"""


@dataclass(frozen=True)
class Panel:
    """One row of the picture: a series of both runs."""

    title: str
    x: tuple[Array, Array]
    y: tuple[Array, Array]
    unit: str = "step"
    """What x counts."""
    words: tuple[str, ...] = ()
    """Names of the bars, where it is a chart of bars and x their places."""

    @property
    def points(self) -> int:
        """How many values the run has that has fewer."""
        return min(int(np.isfinite(part).sum()) for part in self.y)

    @property
    def log(self) -> bool:
        """Whether y is shown on a log scale."""
        values = np.concatenate([part[np.isfinite(part)] for part in self.y])
        positive = len(values) > 0 and not self.words and float(values.min()) > 0
        return positive and float(values.max()) > LOG_ABOVE * float(values.min())


def picture(name: str, finding: Finding, sick: Run, mended: Run) -> str:
    """The whole picture as SVG."""
    if weights_only(sick):
        panels, since = of_weights(finding, sick, mended), None
    else:
        panels, since = of_training(finding, sick, mended), finding.first_step
    height = TOP + BELOW * max(len(panels), 1) - 20
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" role="img" aria-label="{name}: sick and mended">',
        STYLE,
        f'<rect class="card" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="6"/>',
    ]
    for side, words in enumerate((f"sick: {name}", "mended")):
        parts.append(_text(LEFT + side * APART, 22, words, "head"))
    if since:
        parts.append(_text(LEFT, 38, f"dotted: step {since}, the first of the finding"))
    for row, panel in enumerate(panels):
        parts += _drawn(panel, TOP + row * BELOW, since)
    return "\n".join([*parts, "</svg>\n"])


# -- what is drawn ---------------------------------------------------------------------------------


def of_training(finding: Finding, sick: Run, mended: Run) -> list[Panel]:
    """The loss, and the first series of the evidence that both runs have."""
    logged = losses(sick.scalars)
    panels = [_series(name, None, sick, mended) for name in logged[:1]]
    found = [(item.stat, item.subject) for item in finding.evidence if not is_loss(item.stat)]
    names = [*finding.tensors, *(p.name for p in sick.parameters if p.layer in finding.layers)]
    if len(sick.ranks) > 1:
        return [*filter(None, panels), _between_ranks(sick, mended)]
    others = [(str(Stat.GRAD_NORM), (names or sick.names)[0])]
    drawable = [_series(*what, sick, mended) for what in [*found, *others]]
    panels += [p for p in drawable if p is not None and p.points > FEW][:1] or drawable[:1]
    return [panel for panel in panels if panel is not None]


def _series(stat: str, subject: str | None, sick: Run, mended: Run) -> Panel | None:
    """A scalar, or a statistic of one subject; None where a run has none."""
    title, values = stat.replace("_", " "), []
    for run in (sick, mended):
        if subject is None:
            if stat not in run.scalars:
                return None
            values.append(run.scalars[stat])
        else:
            what = shown(stat)
            if subject not in {item.name for item in run.by_kind[what.kind]}:
                return None
            title = what.title if what.kind is Kind.GROUP else f"{what.title}, {subject}"
            values.append(run.column(what.stat, subject))
    steps = (sick.steps.astype(float), mended.steps.astype(float))
    return Panel(title, steps, (values[0], values[1]))


def _between_ranks(sick: Run, mended: Run) -> Panel:
    """How far the copies of the first parameter are apart: of these only hashes are compared."""
    stat, name, apart = Stat.WEIGHT_NORM, sick.names[0], []
    for run in (sick, mended):
        copies = [rank.column(stat, name) for rank in run.ranks.values()]
        apart.append(np.asarray(np.ptp(copies, axis=0), float))
    steps = tuple(next(iter(run.ranks.values())).steps.astype(float) for run in (sick, mended))
    title = f"difference of the {shown(stat).title} between the ranks, {name}"
    return Panel(title, (steps[0], steps[1]), (apart[0], apart[1]))


def of_weights(finding: Finding, sick: Run, mended: Run) -> list[Panel]:
    """The rows of the tensor that the finding names, and how its elements are distributed."""
    named = [*(item.subject for item in finding.evidence if item.subject), *finding.tensors]
    both = [{item.name: item for item in checkpoint_of(run).tensors} for run in (sick, mended)]
    name = next((n for n in [*named, *both[0]] if n in both[0] and n in both[1]), None)
    if name is None:
        return [_readable(both)]
    pair = (both[0][name], both[1][name])
    panels = [_rows(name, pair), _histogram(name, pair)]
    return [panel for panel in panels if panel is not None]


def _readable(both: Sequence[Mapping[str, TensorStats]]) -> Panel:
    """Where the files have no tensor in common: what can be read of each."""
    names = tuple(dict.fromkeys([*both[0], *both[1]]))
    counts = [[float(t[n].tensor.count) if n in t else 0.0 for n in names] for t in both]
    places = np.arange(len(names), dtype=float)
    title = "elements of the tensors that can be read without running code"
    return Panel(title, (places, places), (np.array(counts[0]), np.array(counts[1])), "", names)


def _rows(name: str, pair: tuple[TensorStats, TensorStats]) -> Panel | None:
    rows = [item.rows.rms for item in pair if item.rows is not None and not item.nonfinite]
    if len(rows) < 2:
        return None
    places = (np.arange(len(rows[0]), dtype=float), np.arange(len(rows[1]), dtype=float))
    return Panel(f"RMS of each row, {name}", places, (rows[0], rows[1]), "row")


def _histogram(name: str, pair: tuple[TensorStats, TensorStats]) -> Panel | None:
    """Shares of the elements by power of two; zeros, NaN and Inf have bars of their own."""
    found = [item.histogram for item in pair if item.histogram is not None]
    if len(found) < 2:
        return None
    filled = [e for part in found for e, count in _bins(part).items() if count]
    low, high = min(filled, default=0), max(filled, default=0)
    words = ["0", *(f"2^{e}" for e in range(low, high + 1)), "NaN", "Inf"]
    shares = []
    for part in found:
        infinite = part.positive_inf + part.negative_inf
        counts = [_bins(part).get(e, 0) for e in range(low, high + 1)]
        counts = [part.zeros, *counts, part.nan, infinite]
        shares.append(np.array(counts, float) / max(part.count, 1))
    keep = [i for i, word in enumerate(words) if word[0] == "2" or any(s[i] for s in shares)]
    places = np.arange(len(keep), dtype=float)
    return Panel(
        f"share of the elements by size |x|, {name}",
        (places, places),
        (shares[0][keep], shares[1][keep]),
        "",
        tuple(words[i] for i in keep),
    )


def _bins(part: Histogram) -> dict[int, int]:
    both = (part.negative + part.positive).tolist()
    return {part.first_exponent + at: int(count) for at, count in enumerate(both)}


# -- drawing ---------------------------------------------------------------------------------------


def _drawn(panel: Panel, top: float, since: int | None) -> Iterator[str]:
    """Both plots of a panel, on the same axes."""
    places = np.concatenate(panel.x)
    around = 0.5 if panel.words else 0.0
    across = (float(places.min()) - around, float(places.max()) + around)
    up = _range([_level(panel, part) for part in panel.y], zero=bool(panel.words))
    yield _text(LEFT, top - 8, shortened(panel.title, 90))
    for side, kind in enumerate(("sick", "mended")):
        left = LEFT + side * APART
        yield from _axes(panel, left, top, across, up)
        if since is not None and kind == "sick" and across[0] < since <= across[1]:
            at = _at(float(since), across, left, PLOT_WIDTH)
            yield f'<path class="since" d="M{at:.1f} {top}v{PLOT_HEIGHT}"/>'
        place = (left, top, across, up)
        x, y = panel.x[side], panel.y[side]
        yield from _bars(y, kind, *place) if panel.words else _curve(panel, x, y, kind, *place)


def _axes(
    panel: Panel, left: float, top: float, across: tuple[float, float], up: tuple[float, float]
) -> Iterator[str]:
    for value in _ticks(*up, log=panel.log):
        y = top + PLOT_HEIGHT - _at(_level_of(panel, value), up, 0, PLOT_HEIGHT)
        yield f'<path class="grid" d="M{left} {y:.1f}h{PLOT_WIDTH}"/>'
        yield _text(left - 6, y + 4, _label(value), anchor="end")
    bottom = top + PLOT_HEIGHT + 15
    if panel.words:
        each = math.ceil(len(panel.words) / 6)
        marks = [(float(i), word) for i, word in enumerate(panel.words) if i % each == 0]
    else:
        marks = [(value, _label(value)) for value in _ticks(*across, log=False)]
    for at, word in marks:
        yield _text(_at(at, across, left, PLOT_WIDTH), bottom, word, anchor="middle")
    yield _text(left - 14, bottom, panel.unit, anchor="end")


def _curve(
    panel: Panel, x: Array, y: Array, kind: str, left: float, top: float,
    across: tuple[float, float], up: tuple[float, float],
) -> Iterator[str]:  # fmt: skip
    there = np.isfinite(y)
    if not there.any():
        yield _text(left + 8, top + 16, NONE)
        return
    x, y, gone = *thinned(x[there], y[there]), _lost(x, there)
    points = [
        f"{_at(a, across, left, PLOT_WIDTH):.1f},"
        f"{top + PLOT_HEIGHT - _at(_level_of(panel, b), up, 0, PLOT_HEIGHT):.1f}"
        for a, b in zip(x.tolist(), y.tolist(), strict=True)
    ]
    yield f'<polyline class="{kind}" points="{" ".join(points)}"/>'
    for x_at, y_at in (point.split(",") for point in points if len(points) <= FEW):
        yield f'<circle class="{kind}" cx="{x_at}" cy="{y_at}" r="2.5"/>'
    if gone is not None:
        yield _text(left + PLOT_WIDTH - 4, top + 14, f"{NONE} from {gone} on", anchor="end")


def _lost(x: Array, there: NDArray[np.bool_]) -> int | None:
    """The first x from which on nothing is finite any more, where that is a stretch."""
    last = int(np.flatnonzero(there)[-1]) + 1
    gaps = np.diff(np.flatnonzero(there), prepend=-1)
    return int(x[last]) if len(there) - last > max(2, int(gaps.max())) else None


def _bars(
    y: Array, kind: str, left: float, top: float, across: tuple[float, float],
    up: tuple[float, float],
) -> Iterator[str]:  # fmt: skip
    if not y.any():
        yield _text(left + 8, top + 16, NONE)
    wide = 0.8 * PLOT_WIDTH / len(y)
    for place, value in enumerate(y.tolist()):
        x = _at(place, across, left, PLOT_WIDTH) - wide / 2
        tall = max(_at(value, up, 0, PLOT_HEIGHT), 1.0 if value else 0.0)
        y_at = top + PLOT_HEIGHT - tall
        if tall:
            yield (
                f'<rect class="{kind}" x="{x:.1f}" y="{y_at:.1f}" width="{wide:.1f}" '
                f'height="{tall:.1f}"/>'
            )


def thinned(x: Array, y: Array) -> tuple[Array, Array]:
    """The lowest and the highest of each bucket, in order; buckets of one size look alike."""
    size = math.ceil(len(x) / (POINTS // 2)) if len(x) > POINTS else 1
    keep: list[int] = []
    for begin in range(0, len(x), size):
        part = y[begin : begin + size]
        keep += sorted({begin + int(part.argmin()), begin + int(part.argmax())})
    return x[keep], y[keep]


def _level_of(panel: Panel, value: float) -> float:
    return math.log10(value) if panel.log else value


def _level(panel: Panel, values: Array) -> Array:
    values = values[np.isfinite(values)]
    return np.log10(values) if panel.log else values


def _range(parts: Sequence[Array], *, zero: bool) -> tuple[float, float]:
    """A little wider than from the lowest to the highest of all, so that no line hides a border."""
    values = np.concatenate(parts)
    low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 1.0)
    if zero:
        return 0.0, 1.05 * high
    more = 0.05 * (high - low)
    flat = more <= 1e-9 * abs(high)
    return (
        (low - (abs(low) / 2 or 0.5), high + (abs(high) / 2 or 0.5))
        if flat
        else (low - more, high + more)
    )


def _at(value: float, span: tuple[float, float], begin: float, length: float) -> float:
    return begin + (value - span[0]) / (span[1] - span[0]) * length


def _ticks(low: float, high: float, *, log: bool) -> list[float]:
    """Three to six round numbers; on a log scale `low` and `high` are exponents."""
    if log:
        first, last = math.ceil(low - 1e-9), math.floor(high + 1e-9)
        if last > first:
            each = math.ceil((last - first) / 4)
            return [10.0**e for e in range(first, last + 1, each)]
        decades = range(math.floor(low), last + 1)
        fine = [m * 10.0**e for e in decades for m in (1, 2, 5)]
        return [value for value in fine if low <= math.log10(value) <= high]
    rough = (high - low) / 4
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(m * unit for m in (1, 2, 5, 10) if m * unit >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [i * step for i in range(first, last + 1)]


def _label(value: float) -> str:
    short = number(value)
    if "e" not in short:
        return f"{float(short):g}" if abs(value) < 1e4 else short
    digits, _, exponent = short.partition("e")
    return f"{float(digits):g}e{int(exponent)}"


def _text(x: float, y: float, words: str, kind: str = "", anchor: str = "") -> str:
    extra = (f' class="{kind}"' if kind else "") + (f' text-anchor="{anchor}"' if anchor else "")
    return f'<text x="{x:.1f}" y="{y:.1f}"{extra}>{escape(words)}</text>'
