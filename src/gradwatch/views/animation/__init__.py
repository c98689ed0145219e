"""Moving pictures of a run: the flow network over time, as GIF, MP4, a page that plays, or text."""

from gradwatch.views.animation.schemes import Scheme
from gradwatch.views.animation.writing import FORMATS, Wanted, animate

__all__ = ["FORMATS", "Scheme", "Wanted", "animate"]
