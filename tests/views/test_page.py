"""The committed bundle and the markup around it."""

import base64
import hashlib
import re
import zlib

import pytest
from tests.views.samples import Told, network

from gradwatch.views.model import build, to_json
from gradwatch.views.page import asset, live_shell, policy, report


def test_the_policy_allows_exactly_the_blocks_of_the_page() -> None:
    page = report(build(network(2, 3), Told()))
    for element, directive in (("script", "script-src"), ("style", "style-src")):
        found = re.search(rf"<{element}>(.*?)</{element}>", page, re.DOTALL)
        assert found is not None
        digest = base64.b64encode(hashlib.sha256(found[1].encode()).digest()).decode()
        assert f"{directive} 'sha256-{digest}'" in policy()
    assert "unsafe" not in policy()
    assert "default-src 'none'" in policy()


def test_the_bundle_asks_nobody_for_anything() -> None:
    known = ("http://www.w3.org/",)  # names of markup languages, never fetched
    for name in ("page.js", "page.css"):
        text = asset(name)
        for address in re.findall(r"https?://[\w./-]+", text):
            assert address.startswith(known), address
        assert "</script" not in text.lower()
        assert "</style" not in text.lower()
    for word in ("eval(", "document.write", "new Function", "insertAdjacentHTML"):
        assert word not in asset("page.js")


def test_the_live_page_has_no_inline_script() -> None:
    assert re.findall(r"<script[^>]*>(.*?)</script>", live_shell()) == [""]
    assert "style=" not in live_shell()


def test_very_large_models_are_deflated_and_hold_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build(network(3, 20), Told())
    assert f">{to_json(model)}</script>" in report(model)
    monkeypatch.setattr("gradwatch.views.page.READABLE", 1000)
    found = re.search(r'id="model" data-packed="deflate-raw">([\w+/=]*)</script>', report(model))
    assert found is not None
    assert zlib.decompress(base64.b64decode(found[1]), -15).decode() == to_json(model)


def test_5000_layers_stay_under_two_megabytes() -> None:
    names = [f"blocks.{i // 10}.part{i % 10}" for i in range(5000)]
    assert len(report(build(network(names=names, steps=100), Told()))) < 2_000_000


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def full(colour: str) -> str:
    return "#" + "".join(2 * c for c in colour[1:]) if len(colour) == 4 else colour


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_words_can_be_read_on_their_ground(theme: str) -> None:
    blocks = re.findall(r":root(\[data-theme=\"?dark\"?\])?\{(--paper.*?)\}", asset("page.css"))
    found = next(block for mark, block in blocks if bool(mark) == (theme == "dark"))
    colours = dict(re.findall(r"--([\w-]+):\s*(#[0-9a-f]{3,6})", found))
    for ground in ("paper", "panel"):
        for ink in ("ink", "ink-soft", "good", "note", "warn", "bad", "line"):
            pair = sorted(
                (luminance(full(colours[ink])), luminance(full(colours[ground]))), reverse=True
            )
            assert (pair[0] + 0.05) / (pair[1] + 0.05) >= 4.5, (ink, ground)
