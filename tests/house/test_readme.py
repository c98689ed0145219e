"""The README tells the truth: its help is the real one, its code runs, its links lead somewhere."""

import re
from pathlib import Path

import pytest
import torch
from tests.house.readme import README, ROOT, checks, part, shown

import gradwatch

TEXT = README.read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


def test_the_help_is_the_real_one() -> None:
    assert part(TEXT, "help") == shown("--help"), "renew it: python -m tests.house.readme"


def test_every_check_is_listed() -> None:
    assert part(TEXT, "checks") == checks(), "renew it: python -m tests.house.readme"


def test_the_code_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    names = {
        "model": model,
        "optimizer": torch.optim.Adam(model.parameters()),
        "loader": [(torch.randn(8, 4), torch.randn(8, 1)) for _ in range(20)],
        "loss_function": torch.nn.functional.mse_loss,
        "gradwatch": gradwatch,
    }
    recording, reading = BLOCKS
    exec(recording, names)
    (made,) = Path("runs").iterdir()
    made.rename("runs/example")
    exec(reading, names)
    assert names["run"].names == ("0.weight", "0.bias", "2.weight", "2.bias")
    assert len(names["flow"].critical_paths[0].layers) == 2


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\(([^)#]+)\)", TEXT))))
def test_links_lead_somewhere(link: str) -> None:
    assert (ROOT / link).exists()


def test_the_demo_names_its_fault() -> None:
    said = part(TEXT, "diagnose")
    assert "NaN or Inf first appears at step 137, in the forward pass in norm" in said
