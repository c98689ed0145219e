"""The animation as text: one block per moment, a bar per layer; for logs and plain terminals."""

from collections.abc import Iterator
from typing import Any

from gradwatch.text import number, plain, shortened
from gradwatch.views.animation.moments import Film, Moment, level
from gradwatch.views.model.cells import Code

BAR = 40
WORDS: dict[int, str] = {
    Code.NONFINITE: "nan/inf",
    Code.NO_GRADIENT: "no gradient",
    Code.ZERO: "0",
}


def strip(model: dict[str, Any], film: Film) -> Iterator[str]:
    """Heading, then each moment."""
    low, high = number(film.scale.low), number(film.scale.high)
    yield f"{plain(model['run']['name'])}: {model['health']['state']}, {model['health']['line']}\n"
    yield f"{film.title}, log scale: empty bar {low}, full bar {high}\n"
    for moment in film.moments:
        yield f"\n=== step {moment.step} ===\n"
        yield from _lines(model, film, moment)


def _lines(model: dict[str, Any], film: Film, moment: Moment) -> Iterator[str]:
    for index, node in enumerate(model["flow"]["nodes"]):
        code = moment.codes[index]
        at = level(code)
        words = ", ".join(sorted(moment.marks[index]))
        if at is not None:
            bar = "█" * round(at * BAR)
            told = number(float(film.scale.low * (film.scale.high / film.scale.low) ** at))
        else:
            bar = "!" * BAR if code == Code.NONFINITE else ""
            told = WORDS.get(code, "")
        yield f"{shortened(node['name'], 24):<24} |{bar:<{BAR}}| {told:<9} {words}".rstrip() + "\n"
