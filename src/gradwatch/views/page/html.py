"""The few lines of markup around the bundle."""

from collections.abc import Mapping
from html import escape
from typing import Any

from gradwatch.text import plain, shortened
from gradwatch.views.model import for_html
from gradwatch.views.page.assets import asset, policy

NO_SCRIPT = "<noscript>This page draws itself with a script; please allow it.</noscript>"


def report(model: Mapping[str, Any]) -> str:
    """One file, everything inside, no network."""
    return _alone(model, "report", "")


def player(model: Mapping[str, Any], scheme: str) -> str:
    """The animation as a page of its own."""
    return _alone(model, "player", scheme)


def live_shell() -> str:
    """The live page before it has fetched anything: script and style come from the same server."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        "<title>gradwatch</title>\n"
        '<link rel="icon" href="data:,">\n<link rel="stylesheet" href="page.css">\n'
        '</head>\n<body data-mode="live">\n<div id="page"></div>\n'
        f'{NO_SCRIPT}\n<script src="page.js"></script>\n</body>\n</html>\n'
    )


def _alone(model: Mapping[str, Any], mode: str, scheme: str) -> str:
    title = shortened(plain(str(model["run"]["name"])), 80)
    heading = f"{title}: {model['health']['state']}"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy())}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n'
        f"<title>{escape(heading)}</title>\n"
        f'<link rel="icon" href="data:,">\n<style>{asset("page.css")}</style>\n</head>\n'
        f'<body data-mode="{mode}" data-scheme="{escape(scheme)}">\n<div id="page"></div>\n'
        f"{NO_SCRIPT}\n{for_html(model)}\n<script>{asset('page.js')}</script>\n</body>\n</html>\n"
    )
