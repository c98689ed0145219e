"""What `unused-input` finds, and what it leaves alone."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.checks.shapes import Severity, only, said
from tests.checks.training import trained
from torch import Tensor, nn

from gradwatch.run import Run

NAME = "unused-input"


class Towers(nn.Module):
    """Two inputs, the second of which is used as `way` says."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.image, self.text = nn.Linear(6, 8), nn.Linear(6, 8)
        self.off = nn.Hardtanh(0.0, 1e-30)
        self.memory = nn.GRU(8, 8)
        self.attention = nn.MultiheadAttention(8, 2)
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, image: Tensor, text: Tensor, extra: Tensor | None = None) -> Tensor:
        hidden = self.norm(torch.relu(self.image(image)))
        match self.way:
            case "detached":
                hidden = hidden + self.text(text).detach()
            case "tower":
                hidden = hidden + self.text(text)
            case "zeros":
                hidden = hidden + self.off(text).sum() + torch.ones(8)
            case "mask":
                hidden = hidden * text.mean(1, keepdim=True)
            case "state":
                hidden = self.memory(hidden[None], text[None].repeat(1, 1, 2)[..., :8])[0][0]
            case "attention mask":
                hidden = self.attention(hidden, hidden, hidden, attn_mask=text @ text.T)[0]
            case "lengths":
                hidden = hidden * float(text.sum())
            case "joined":
                hidden = hidden + self.image(torch.cat([image[:, :3], text[:, :3]], 1))
        out: Tensor = self.head(hidden)
        return out


def towers(folder: Path, way: str, *, keyword: bool = False, frozen: bool = False) -> Run:
    torch.manual_seed(0)
    model = Towers(way)
    model.text.requires_grad_(not frozen)

    def loss_of(step: int) -> Tensor:
        image, text = torch.randn(16, 6), -torch.rand(16, 6) - 0.1
        given: dict[str, Any] = {"text": text} if keyword else {}
        out = model(image, **given) if keyword else model(image, text)
        return F.cross_entropy(out, (text[:, 0] > -0.6).long())

    return trained(folder, model, loss_of, steps=20)


@pytest.mark.parametrize("keyword", [True, False])
@pytest.mark.parametrize(
    ("way", "why", "layers"),
    [
        ("forgotten", "goes into no layer and no operation", ()),
        ("zeros", "no layer but off, which gives only zeros", ("off",)),
        ("detached", "no layer but text, without a gradient", ("text",)),
    ],
)
def test_an_input_that_goes_nowhere(
    tmp_path: Path, way: str, why: str, layers: tuple[str, ...], keyword: bool
) -> None:
    finding = only(NAME, towers(tmp_path, way, keyword=keyword))
    assert finding.severity is Severity.WARNING
    assert "input number 2 (`text`)" in finding.message
    assert why in finding.message
    assert finding.layers == layers


@pytest.mark.parametrize("way", ["tower", "mask", "state", "attention mask", "lengths", "joined"])
def test_an_input_that_is_used(tmp_path: Path, way: str) -> None:
    assert not said(NAME, towers(tmp_path, way))


def test_a_frozen_tower_is_meant(tmp_path: Path) -> None:
    assert not said(NAME, towers(tmp_path, "tower", frozen=True))


class Reached(nn.Linear):
    """A layer that is handed a condition by another way than its arguments."""

    condition: Tensor

    def forward(self, given: Tensor) -> Tensor:
        return super().forward(given) * self.condition


class Conditioned(nn.Module):
    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, given: Tensor, condition: Tensor) -> Tensor:
        self.layer.condition = condition
        out: Tensor = self.layer(given)
        return out


@pytest.mark.parametrize(("kind", "expected"), [(Reached, False), (nn.Linear, True)])
def test_a_layer_of_the_users_own_may_reach_it(
    tmp_path: Path, kind: type[nn.Linear], expected: bool
) -> None:
    model = Conditioned(kind(6, 3))

    def loss_of(step: int) -> Tensor:
        return model(torch.randn(16, 6), torch.rand(16, 1)).square().mean()

    assert bool(said(NAME, trained(tmp_path, model, loss_of, steps=20))) is expected


def test_whole_numbers_and_what_was_not_given(tmp_path: Path) -> None:
    model = Towers("forgotten")

    def loss_of(step: int) -> Tensor:
        return model(torch.randn(16, 6), torch.randint(5, (16, 6)), None).square().mean()

    assert not said(NAME, trained(tmp_path, model, loss_of, steps=20))
