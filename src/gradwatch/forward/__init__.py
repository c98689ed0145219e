"""Sending a chosen few numbers and the findings on to a service people already look at."""

from gradwatch.forward.outbox import Outbox, open_outbox
from gradwatch.forward.services import SERVICES

__all__ = ["SERVICES", "Outbox", "open_outbox"]
