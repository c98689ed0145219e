"""Names cut and guessed; parameters of the model itself have a layer without a name."""

from pathlib import Path

import pytest
import torch
from tests.checks.shapes import only
from tests.checks.training import trained
from torch import Tensor, nn

from gradwatch.finding import Finding, Severity
from gradwatch.text import cut, markup, named, nearest, plain, several, shortened

LAYER = "transformer.encoder.layers.11.self_attn.out_proj"


@pytest.mark.parametrize(
    ("width", "wanted"),
    [
        (48, LAYER),
        (47, "…encoder.layers.11.self_attn.out_proj"),
        (28, "…11.self_attn.out_proj"),
        (22, "…11.self_attn.out_proj"),
        (21, "…self_attn.out_proj"),
        (19, "…self_attn.out_proj"),
        (18, "…elf_attn.out_proj"),  # the last two parts do not fit
        (5, "…proj"),
        (1, "…"),
        (0, ""),
    ],
)
def test_names_are_cut_from_the_left_with_the_last_two_parts_whole(width: int, wanted: str) -> None:
    assert shortened(LAYER, width) == wanted


def test_what_is_cut_is_always_as_short_as_asked() -> None:
    for name in (LAYER, "a..b", "x" * 99, "a." * 50, "." * 50, "\x1b" * 20):
        for width in range(60):
            assert len(shortened(name, width)) <= width
            assert "\x1b" not in shortened(name, width)


IGNORABLE = (
    *((0xAD, 0xAD), (0x34F, 0x34F), (0x61C, 0x61C), (0x115F, 0x1160), (0x17B4, 0x17B5)),
    *((0x180B, 0x180F), (0x200B, 0x200F), (0x202A, 0x202E), (0x2060, 0x206F), (0x3164, 0x3164)),
    *((0xFE00, 0xFE0F), (0xFEFF, 0xFEFF), (0xFFA0, 0xFFA0), (0xFFF0, 0xFFF8), (0x1BCA0, 0x1BCA3)),
    *((0x1D173, 0x1D17A), (0xE0000, 0xE0FFF)),
)
"""Default_Ignorable_Code_Point of Unicode 15.0, DerivedCoreProperties.txt."""


def test_nothing_odd_or_invisible_stays_in_a_name() -> None:
    controls = [*range(32), *range(0x7F, 0xA0), 0x2028, 0x2029, 0x2800, 0xD800, 0xE000, 0x10FFFF]
    for code in (*controls, *(n for first, last in IGNORABLE for n in range(first, last + 1))):
        written = plain(f"a{chr(code)}b")
        assert written.isascii(), hex(code)
        assert written.isprintable()
        assert plain(written) == written
    assert plain("Größe α→β … – × 層") == "Größe α→β … – × 層"


def test_sentences_are_cut_at_their_end() -> None:
    assert cut("the loss rises", 8) == "the los…"
    assert cut("the loss", 8) == "the loss"
    assert markup("the <loss> rises", 9) == "the &lt;los…"
    assert markup(LAYER, 22) == "…11.self_attn.out_proj"


def test_three_names_are_like_a_word() -> None:
    known = ["dead-units", "divergence", "no-gradient", "vanishing-gradient", "input-scale"]
    assert nearest("dead-unit", known).startswith("dead-units, ")
    assert nearest("gradient", known).startswith("no-gradient, vanishing-gradient or ")
    assert nearest("nosuch", ["one"]) == "one"
    assert nearest("a", ["b\x1b[2J", "a"]) == "a or b\\x1b[2J"


def test_the_model_itself() -> None:
    assert (named(""), named("a.b")) == ("the model itself", "a.b")
    assert several(["", "a"]) == "the model itself and a"
    found = Finding("no-gradient", Severity.WARNING, ("",), 0, 9, "nothing", ())
    assert "<code>the model itself</code>" in found.html_line()


class Bare(nn.Module):
    """A weight of its own in front of a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.head = nn.Parameter(0.01 * torch.randn(6, 8)), nn.Linear(8, 2, bias=False)

    def forward(self, given: Tensor) -> Tensor:
        out: Tensor = self.head(given @ self.own)
        return out


def test_a_huge_gradient_of_the_model_itself(tmp_path: Path) -> None:
    model = Bare()

    def loss_of(step: int) -> Tensor:
        return 1e6 * (model(torch.randn(4, 6)) - 1).square().mean()

    optimizer = torch.optim.SGD(model.parameters(), lr=1e-12)
    run = trained(tmp_path, model, loss_of, steps=20, optimizer=optimizer)
    assert "in the model itself at step" in only("exploding-gradient", run).message
