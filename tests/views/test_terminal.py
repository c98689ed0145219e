"""The screen of `gradwatch show`, in characters."""

import io
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from tests.views.samples import HOSTILE, Told, network, sick_diagnosis

from gradwatch.run import Run
from gradwatch.views.model import build
from gradwatch.views.terminal import label, on_one_axis, screen, signals_table, sparkline, squeezed


def drawn(run: Run, told: Told | None = None, *, width: int = 80, **wanted: Any) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width, no_color=True, force_terminal=False)
    stats = ["grad_rms", "update_ratio", *([wanted["stat"]] if "stat" in wanted else [])]
    model = build(run, told, columns=width, stats=stats)
    for line in screen(model, width, **wanted):
        console.print(line, soft_wrap=True)
    return out.getvalue()


def test_the_first_line_says_the_health_and_the_findings_follow() -> None:
    run = network(6, 50, fading=True)
    lines = drawn(run, sick_diagnosis(run)).splitlines()
    assert lines[0].startswith("✗ sick  sample")
    assert "2 findings in " in "".join(lines[:2])
    text = "\n".join(lines)
    assert "critical vanishing-gradient  net.0  since step 7" in text
    assert "try: Add normalisation" in text


def test_every_line_fits_at_eighty_columns_and_at_forty() -> None:
    for width in (40, 80, 132):
        for run in (network(6, 300), network(names=HOSTILE, steps=40), network(60, 30)):
            for line in drawn(run, sick_diagnosis(run), width=width).splitlines():
                assert cell_len(line) <= width, line


def test_a_finding_is_wrapped_and_its_layers_are_whole_where_they_fit() -> None:
    names = [f"transformer.encoder.layers.{i}.self_attn.out_proj" for i in range(12)]
    run = network(names=names, steps=20)
    for width, layer in (
        (60, "…encoder.layers.0.self_attn.out_proj"),
        (80, names[0]),
        (200, names[0]),
    ):
        text = drawn(run, sick_diagnosis(run), width=width)
        assert f"{layer}  since step 7" in text
        assert "critical vanishing-gradient" in text
        _, _, map_lines = text.partition("log scale")
        assert (names[11] in map_lines) is (width > 60)


def test_the_map_ends_where_its_steps_end() -> None:
    for line in drawn(network(3, 20), width=200).splitlines():
        assert len(line) < 80


def test_nothing_in_a_name_reaches_the_terminal_as_a_control() -> None:
    run = network(names=HOSTILE, steps=20, broken_from=5)
    text = drawn(run, sick_diagnosis(run), width=120)
    assert not [c for c in text if c != "\n" and (ord(c) < 32 or 127 <= ord(c) < 160)]
    assert "\u202e" not in text
    assert "\\x1b[2J" in text
    text.encode()  # a lone surrogate would raise


def test_the_map_goes_from_light_to_dark_and_marks_nonfinite() -> None:
    rows = [line for line in drawn(network(6, 40, fading=True)).splitlines() if "net." in line]
    by_name = {row.split()[0]: row for row in rows}
    assert "█" in by_name["net.5"]
    assert "█" not in by_name["net.1"]
    broken = drawn(network(4, 40, broken_from=30)).splitlines()
    assert [line for line in broken if line.startswith("net.2") and line.count("!") == 10]


def test_patterns_choose_layers() -> None:
    run = network(names=["enc.attn", "enc.mlp", "head"], steps=9)
    assert "enc.mlp" not in drawn(run, layers="attn")
    assert "head" not in drawn(run, layers="enc.*")
    assert "no layer matches 'zzz'" in drawn(run, layers="zzz")


def test_deep_models_are_grouped_into_blocks_and_a_pattern_opens_one() -> None:
    names = [f"h.{i}.{part}" for i in range(20) for part in ("attn", "mlp")]
    run = network(names=names, steps=9)
    assert "h.3 (2)" in drawn(run)
    assert "h.3.attn" in drawn(run, layers="h.3.*")


def test_another_statistic_can_be_asked_for() -> None:
    assert "update / weight, log scale" in drawn(network(3, 20), stat="update_ratio")
    assert "weight_norm was not recorded" in drawn(network(3, 20), stat="weight_norm")


def test_a_curve_that_ends_early_says_where() -> None:
    lines = drawn(network(4, 100, broken_from=40)).splitlines()
    (loss,) = (line for line in lines if line.startswith("loss"))
    assert loss.endswith("(step 39)")
    (whole,) = (line for line in drawn(network(4, 100)).splitlines() if line.startswith("loss"))
    assert "step" not in whole


def test_sparklines_rise_with_the_values_and_keep_gaps() -> None:
    assert sparkline([0.0, 1.0, 2.0], 10, log=False) == "▁▄█"
    assert sparkline([1.0, None, 1.0], 10, log=True) == "▁ ▁"
    assert sparkline([None], 10, log=False) == ""
    assert "█" in sparkline([0.0] * 500 + [9.0] + [0.0] * 500, 20, log=False)


def test_labels_fill_their_cells_even_with_wide_characters() -> None:
    for name in ("層" * 30, "a", "", "x" * 99):
        assert cell_len(label(name, 17)) == 17


def test_squeezing_keeps_the_highest() -> None:
    import numpy as np

    codes = np.zeros((1, 100), np.uint8)
    codes[0, 57] = 255
    assert squeezed(codes, 10).max() == 255
    assert squeezed(codes, 10).shape == (1, 10)


def test_signals_are_listed_with_their_cadence() -> None:
    out = io.StringIO()
    Console(file=out, width=100).print(signals_table(build(network(2, 3))))
    assert "update_ratio" in out.getvalue()
    assert "every 4k steps" in out.getvalue()


def test_signs_that_are_no_level_are_explained_where_they_occur() -> None:
    assert "! NaN or Inf" in drawn(network(4, 40, broken_from=30)).splitlines()
    healthy = drawn(network(4, 40))
    assert "NaN or Inf" not in healthy
    assert "not measured" not in healthy


def test_curves_under_one_another_tell_the_same_time() -> None:
    ends_early = on_one_axis([0, 10, 20, 30, 40], [1.0, 5.0, 2.0, None, None], (0, 99), 10)
    assert ends_early == [1.0, 5.0, 2.0, None, None, *[None] * 5]
    sparse = on_one_axis([0, 40, 80], [1.0, 2.0, 3.0], (0, 99), 10)
    assert sparse == [1.0] * 4 + [2.0] * 4 + [3.0, None]
    dense = on_one_axis(range(100), [float(step) for step in range(100)], (0, 99), 10)
    assert dense == [float(10 * column + 9) for column in range(10)]
    assert on_one_axis([7], [1.0], (7, 7), 40) == [1.0]
    assert on_one_axis([], [], (0, 99), 4) == [None] * 4
