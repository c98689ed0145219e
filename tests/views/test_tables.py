"""Tables at any width: headings whole, names cut from the left and told apart."""

import io

import pytest
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from gradwatch.views.tables import FittedTable, fitted

LAYERS = [f"transformer.encoder.layers.{i}.self_attn.out_proj" for i in range(12)]
TITLES = ("layer", "health", "mean norm", "stability", "why")


def drawn(table: FittedTable, width: int) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width, no_color=True, highlight=False).print(table)
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    assert all(cell_len(line) <= width for line in lines)
    return lines


def layers(why: str = "") -> FittedTable:
    rows = [(name, Text("Warning", "yellow"), "0.0512", "0.71", why) for name in LAYERS]
    return FittedTable(TITLES, rows, words=("health",), prose="why", spare=("stability",))


def test_nothing_is_cut_where_there_is_room() -> None:
    lines = drawn(layers("falls"), 200)
    assert lines[0].split("  ")[0] == "layer"
    assert lines[12].split() == [LAYERS[11], "Warning", "0.0512", "0.71", "falls"]
    assert max(map(len, lines)) < 100  # and nothing is stretched


@pytest.mark.parametrize("width", range(50, 90))
def test_names_stay_different_and_headings_and_numbers_whole(width: int) -> None:
    head, *rows = drawn(layers(), width)
    assert head.split()[:4] == ["layer", "health", "mean", "norm"]
    assert "why" not in head  # nothing stands below it
    names = [row.split()[0] for row in rows]
    assert len(set(names)) == len(LAYERS)
    assert all(name.endswith("self_attn.out_proj") for name in names)
    assert all("Warning" in row and "0.0512" in row for row in rows)


def test_columns_to_spare_go_before_names_are_cut_too_short() -> None:
    assert "stability" in drawn(layers(), 80)[0]
    assert "stability" not in drawn(layers(), 44)[0]


def test_the_names_give_way_where_nothing_can_be_spared() -> None:
    rows = [(f"{layer}.weight", "1" * 20, "2" * 20) for layer in LAYERS]
    head, first, *_ = drawn(FittedTable(("layer", "a", "b"), rows), 52)
    assert head.split() == ["layer", "a", "b"]
    assert first.split() == ["…oj.weight", "1" * 20, "2" * 20]


def test_sentences_take_several_lines() -> None:
    rows = [("a.b", "the gradient falls from step to step and then it is gone " * 2)]
    lines = drawn(FittedTable(("layer", "why"), rows, prose="why"), 40)
    assert len(lines) > 3
    assert " ".join(" ".join(lines).split()).count("it is gone") == 2


def test_two_names_share_the_room() -> None:
    rows = [("a", LAYERS[0]), (LAYERS[1], "b")]
    assert drawn(FittedTable(("from", "to"), rows, names=2), 120)[1].split() == ["a", LAYERS[0]]
    first, second = drawn(FittedTable(("from", "to"), rows, names=2), 60)[1:]
    assert first.split()[1] == "…layers.0.self_attn.out_proj"
    assert second.split()[0] == "…layers.1.self_attn.out_proj"


def test_what_stands_in_a_name_is_shown_and_not_obeyed() -> None:
    rows = [("[red]a[/red]\x1b[2J", "[b]1"), ("層" * 30, "2")]
    text = "\n".join(drawn(FittedTable(("run", "size"), rows), 40))
    assert "[red]a[/red]\\x1b[2J" in text
    assert "[b]1" in text


@pytest.mark.parametrize("cells", [1, 2, 7, 30])
def test_wide_characters_count_twice(cells: int) -> None:
    assert cell_len(fitted("層" * 30, cells)) <= cells
    assert fitted("a.b", 3) == "a.b"
