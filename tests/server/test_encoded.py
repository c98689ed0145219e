"""Answers as bytes: how many are kept."""

import pytest

from gradwatch.server import encoded
from gradwatch.server.encoded import AnswerCache, EncodedView, ViewRequest


def test_answers_are_kept_by_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoded, "KEPT", 1000)
    cache = AnswerCache()
    small, large = EncodedView({"run": b"x" * 100}), EncodedView({"run": b"x" * 450})
    for first in range(5):  # 200 bytes each, joined ones counted
        cache.keep("preview", "mark", ViewRequest(first), small)
    assert all(cache.get("preview", "mark", ViewRequest(first)) for first in range(5))
    cache.keep("preview", "mark", ViewRequest(9), large)
    kept = [first for first in range(10) if cache.get("preview", "mark", ViewRequest(first))]
    assert kept == [9]
    cache.keep("preview", "mark", ViewRequest(1), small)
    cache.keep("preview", "mark", ViewRequest(2), small)
    assert cache.get("preview", "mark", ViewRequest(9)) is None
    cache.keep("preview", "mark", ViewRequest(3), EncodedView({"run": b"x" * 9000}))
    assert cache.get("preview", "mark", ViewRequest(3)), "the newest is kept whatever it takes"
