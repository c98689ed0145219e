"""The report, the player and the live page: one bundle, with the data inside or fetched.

The bundle (`static/`) is built by `frontend/build.sh`; here is the little markup around it, and the
policy that lets a page use this script and style and nothing else.
"""

import base64
import hashlib
import zlib
from functools import cache
from html import escape
from importlib import resources

from gradwatch.text import plain, shortened
from gradwatch.views.model import ViewModel, to_json

NO_SCRIPT = "<noscript>This page draws itself with a script; please allow it.</noscript>"
READABLE = 1_000_000
"""Characters of JSON up to which a report holds it as it is."""


def report(model: ViewModel, scheme: str = "") -> str:
    """One file, everything inside, no network; `scheme` names the colours it opens with."""
    return _alone(model, "report", scheme)


def player(model: ViewModel, scheme: str) -> str:
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


def _alone(model: ViewModel, mode: str, scheme: str) -> str:
    title = shortened(plain(str(model.run["name"])), 80)
    heading = f"{title}: {model.health['state']}"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy())}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n'
        f"<title>{escape(heading)}</title>\n"
        f'<link rel="icon" href="data:,">\n<style>{asset("page.css")}</style>\n</head>\n'
        f'<body data-mode="{mode}" data-scheme="{escape(scheme)}">\n<div id="page"></div>\n'
        f"{NO_SCRIPT}\n{data_element(model)}\n<script>{asset('page.js')}</script>\n</body>\n</html>\n"
    )


def data_element(model: ViewModel) -> str:
    """The element that holds the model inside a page: data, never executed.

    The tables of thousands of layers deflate to a tenth; smaller models stay readable as they are.
    """
    text = to_json(model)
    if len(text) <= READABLE:
        return f'<script type="application/json" id="model">{text}</script>'
    deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = base64.b64encode(deflate.compress(text.encode()) + deflate.flush()).decode()
    return f'<script type="text/plain" id="model" data-packed="deflate-raw">{packed}</script>'


@cache
def asset(name: str) -> str:
    """One built file, as committed by `frontend/build.sh`."""
    return (resources.files("gradwatch.views.page") / "static" / name).read_text("utf-8")


def policy() -> str:
    """Content-Security-Policy of a page on its own: two inline blocks by their hash, no network."""
    return (
        f"default-src 'none'; script-src {_hash(asset('page.js'))}; "
        f"style-src {_hash(asset('page.css'))}; img-src data:; base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
