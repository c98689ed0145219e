"""Recording and judging joined: `watch` lives here."""

from gradwatch.live.watch import watch

__all__ = ["watch"]
