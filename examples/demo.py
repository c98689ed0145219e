"""Trains a small network that has a real fault, lets gradwatch watch, and shows what it found.

The fault: a hand-written normalisation without an ε. It works until a batch holds an example whose
features are all equal; then 0/0 makes a NaN, the NaN reaches the loss, and the next step writes it
into every weight. Nothing crashes, the loss just reads `nan` from some step on.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import torch
from torch import nn

import gradwatch

FOLDER = Path("demo")
BAD_STEP = 137
STEPS = 200


class Norm(nn.Module):
    """Standardises each example, and forgets the ε."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        centred = x - x.mean(dim=-1, keepdim=True)
        return centred / centred.pow(2).mean(dim=-1, keepdim=True).sqrt()


class Block(nn.Module):
    """A residual block."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x)))


def network() -> nn.Module:
    model = nn.Sequential()
    model.add_module("norm", Norm())
    model.add_module("stem", nn.Linear(16, 32))
    for number in range(4):
        model.add_module(f"block{number}", Block(32))
    model.add_module("head", nn.Linear(32, 4))
    return model


def batches(seed: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Four noisy clusters; one example of the bad step has the same value everywhere."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(4, 16, generator=generator)
    made = []
    for step in range(STEPS):
        labels = torch.randint(4, (32,), generator=generator)
        inputs = centres[labels] + torch.randn(32, 16, generator=generator)
        if step == BAD_STEP:
            inputs[7] = 0.25
        made.append((inputs, labels))
    return made


def train() -> Path:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    watcher = gradwatch.watch(model, optimizer, run=FOLDER / "run")
    for inputs, labels in batches(seed=0):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        watcher.log(loss=loss)
        optimizer.step()
    watcher.close()
    return Path(watcher.run_dir)


def gradwatch_command(*arguments: str) -> None:
    """Run the command line as a person would, and show it."""
    print(f"\n$ gradwatch {' '.join(arguments)}", flush=True)
    done = subprocess.run([sys.executable, "-m", "gradwatch", *arguments], check=False)
    if done.returncode not in (0, 1):  # 1 says that something was found
        sys.exit(done.returncode)


def main() -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)  # ours alone: made by the last demo
    print(f"Training {STEPS} steps; the fault strikes at step {BAD_STEP} …", flush=True)
    run = str(train())
    gradwatch_command("show", run)
    gradwatch_command("diagnose", run)
    gradwatch_command("analyze", run, "--flow")
    gradwatch_command("report", run, "-o", str(FOLDER / "report.html"))
    gradwatch_command("animate", run, "-o", str(FOLDER / "flow.gif"))
    print(
        f"\nOpen {FOLDER / 'report.html'} in a browser, or watch runs live: "
        f"gradwatch serve {FOLDER}"
    )


if __name__ == "__main__":
    main()
