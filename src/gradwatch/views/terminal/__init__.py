"""A run on the terminal: health, findings, curves, the map of layers over steps."""

from gradwatch.views.terminal.ranks import ranks_table
from gradwatch.views.terminal.screen import Wanted, screen
from gradwatch.views.terminal.signals import signals_table

__all__ = ["Wanted", "ranks_table", "screen", "signals_table"]
