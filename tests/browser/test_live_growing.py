"""A growing run in a real browser: its server reads what is new of it, not all again."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.browser.test_live import enter
from tests.server.visiting import listening
from tests.store.trial import sealing_at
from tests.views.samples import network
from tests.views.stored import Stored

from gradwatch.server import runs as served_runs
from gradwatch.store.isolation import Decoder

pytestmark = pytest.mark.browser


def test_what_was_logged_is_decoded_once_however_often_the_run_grows(
    tab: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: Counter[bytes] = Counter()
    call = Decoder.__call__

    def counted(self: Decoder, function: Callable[..., Any], file: bytes, *more: Any) -> Any:
        if "name" in more[2] and "value" in more[2]:  # a file of logged numbers
            decoded[b"".join([file, *more[1].values()])] += 1
        return call(self, function, file, *more)

    monkeypatch.setattr(Decoder, "__call__", counted)
    monkeypatch.setattr(served_runs, "REST", 0.0)
    monkeypatch.setattr(served_runs, "CACHED", 0)  # as if the run were longer than any cache

    def sealed() -> int:
        return len(list(tmp_path.glob("one/*/scalars/*.parquet")))

    with sealing_at(1 << 9), listening(tmp_path) as (host, keys, tokens):
        writing = Stored(network(4, 90), tmp_path / "one", "one")
        writing.upto(30)
        tab.until(lambda: sealed() == 1)
        page = enter(tab, host, keys, tokens)
        page.click("table.runs a")
        page.wait_for_selector("#loss .plot canvas")
        assert len(decoded) == 1
        for number, steps in enumerate((60, 90), start=2):
            writing.upto(steps)
            tab.until(lambda number=number: sealed() == number)
            tab.until(lambda steps=steps: f"{steps} steps" in page.inner_text("#health-line"))
        writing.finish()
        page.wait_for_selector(".live.complete")
        tab.quiet()
    assert len(decoded) >= 3
    assert set(decoded.values()) == {1}
