"""The view model: what is shown, thinned, with titles and units. All views draw from it."""

from gradwatch.views.model.build import FORMAT, build, diagnosed
from gradwatch.views.model.cells import Code, Scale, decoded
from gradwatch.views.model.encode import for_html, to_json
from gradwatch.views.model.titles import HEAT_CHOICE, Shown, shown

__all__ = [
    "FORMAT",
    "HEAT_CHOICE",
    "Code",
    "Scale",
    "Shown",
    "build",
    "decoded",
    "diagnosed",
    "for_html",
    "shown",
    "to_json",
]
