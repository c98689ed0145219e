"""A thousand hostile strings through every sink: no markup, no control, no broken file."""

import io
import random
import re
import unicodedata
from html.parser import HTMLParser
from pathlib import Path

import pytest
from rich.console import Console
from tests.making import make_run
from tests.views.samples import HOSTILE, Told, network

from gradwatch.errors import GradwatchError
from gradwatch.files import write_whole
from gradwatch.finding import Evidence, Finding, Severity, Skipped
from gradwatch.run import Event, EventKind, Run
from gradwatch.views.animation import AnimationOptions, animate
from gradwatch.views.model import build
from gradwatch.views.page import player, report
from gradwatch.views.terminal import screen

PIECES = [
    *(name for name in HOSTILE if len(name) < 100),
    "</SCRIPT>",
    "]]>",
    "--!>",
    "<style>*{}</style>",
    "\x00",
    "\x08\x08",
    "\x1b]8;;http://evil.test\x07",
    "\x1b]52;c;AAAA\x07",
    "\u2066",
    "\ufeff",
    "=cmd()",
    "../../etc/passwd",
    "%00%0d%0a",
    "\udfff",
    "𝔘𝔫𝔦",
    "層",
    "' onmouseover='x",
    "`${x}`",
]


def strings(count: int) -> list[str]:
    """Mixtures, the same ones every time."""
    chance = random.Random(7)
    made = {"".join(chance.choices(PIECES, k=chance.randint(1, 3))) for _ in range(3 * count)}
    return sorted(made)[:count]


def everywhere(text: str) -> tuple[Run, Told]:
    """A run and a diagnosis with the string in every place a name or text can be."""
    run = make_run(
        {"grad_norm": [[1.0], [2.0]]},
        names=[f"{text}.weight"],
        scalars={text: [1.0, 2.0], "loss": [1.0, 0.5]},
        events=[Event(0, EventKind.NOT_RECORDED, text, text)],
        info={"name": text, "optimizer": text, "versions": {text: text}},
    )
    finding = Finding(
        text,
        Severity.WARNING,
        (run.layers[0], text),
        0,
        1,
        text,
        (Evidence("grad_norm", run.names[0], 1, 1.0), Evidence(text, None, 1, 1.0)),
        text,
        (text,),
    )
    return run, Told((finding,), (Skipped(text, text),), healthy=False)


class Elements(HTMLParser):
    """Counts the elements a browser would make."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append(tag)


def elements(page: str) -> list[str]:
    parser = Elements()
    parser.feed(page)
    return parser.found


def test_a_thousand_strings_make_no_markup_in_any_page() -> None:
    run, told = everywhere("plain")
    expected = elements(report(build(run, told)))
    tried = strings(1000)
    assert len(tried) == 1000
    for number, text in enumerate(tried):
        run, told = everywhere(text)
        page = report(build(run, told))
        heading = page[page.index("<title>") + 7 : page.index("</title>")]
        assert "<" not in heading
        inside = re.search(r'id="model">(.*?)</script>', page)
        assert inside is not None
        assert inside[1].isascii()
        assert not set("<>&") & set(inside[1])
        page.encode()
        if number % 25 == 0:  # the parser reads the whole bundle each time
            assert elements(page) == expected
            player(build(run, told), "mono").encode()


def test_a_thousand_strings_send_nothing_to_the_terminal() -> None:
    for text in strings(1000):
        run, told = everywhere(text)
        out = io.StringIO()
        console = Console(file=out, width=80, no_color=True)
        for line in screen(build(run, told, columns=80, with_paths=False), 80):
            console.print(line, soft_wrap=True)
        drawn = out.getvalue()
        odd = {c for c in drawn if c != "\n" and unicodedata.category(c) in ("Cc", "Cf", "Cs")}
        assert not odd, (text, odd)
        drawn.encode()


def test_a_name_of_a_million_characters_is_cut_where_it_is_shown() -> None:
    run, told = everywhere("n" * 1_000_000)
    model = build(run, told, columns=80)
    report(model).encode()
    out = io.StringIO()
    for line in screen(model, 80):
        Console(file=out, width=80, no_color=True).print(line, soft_wrap=True)
    assert max(map(len, out.getvalue().splitlines())) <= 80
    assert "…" in out.getvalue()


def test_a_hundred_strings_reach_notebooks_and_text_files_harmless(tmp_path: Path) -> None:
    for text in strings(100):
        run, told = everywhere(text)
        shown = run._repr_html_()
        assert set(elements(shown)) <= {"div", "b", "table", "tr", "th", "td", "figure", "svg"} | {
            "polyline",
            "figcaption",
        }
        animate(run, told, tmp_path / "a.txt", AnimationOptions(), force=True)
        told_text = (tmp_path / "a.txt").read_text()
        assert not [c for c in told_text if c != "\n" and unicodedata.category(c) == "Cc"]


def test_secrets_of_the_machine_are_not_in_the_report() -> None:
    run = network(2, 3)
    told = dict(run.info) | {
        "path": "/home/canary",
        "host": "canary-host",
        "argv": ["--key", "canary"],
        "environment": {"TOKEN": "canary"},
    }
    secretive = make_run({"grad_norm": [[1.0]]}, names=["a"], info=told)
    assert "canary" not in report(build(secretive))


def test_a_full_disk_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    target.write_text("old")

    def full(file: io.BufferedIOBase) -> None:
        file.write(b"half")
        raise OSError(28, "No space left on device")

    with pytest.raises(GradwatchError, match="No space left"):
        write_whole(target, full, force=True)  # type: ignore[arg-type]
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_only_plain_files_are_written(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for bad in (tmp_path / "folder", Path("/dev/null"), tmp_path / "none" / "r.html"):
        with pytest.raises(GradwatchError):
            write_whole(bad, lambda file: None, force=True)
