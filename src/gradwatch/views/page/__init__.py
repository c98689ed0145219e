"""The report, the player and the live page: one bundle, with the data inside or fetched."""

from gradwatch.views.page.assets import asset, policy
from gradwatch.views.page.html import live_shell, player, report

__all__ = ["asset", "live_shell", "player", "policy", "report"]
