"""The built script and style, and the policy that lets a page use these and nothing else."""

import base64
import hashlib
from functools import cache
from importlib import resources


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
