"""Hugging Face Trainer under gradwatch: one callback.

    python examples/trainer.py

Added for gradwatch: the import of `GradwatchTrainerCallback` and the line with `callbacks`.
"""

import torch
from torch import nn
from transformers import Trainer, TrainingArguments

from gradwatch.integrations.transformers import GradwatchTrainerCallback


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 3))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.body(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def examples(count: int = 512) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(count, 20, generator=generator)
    labels = inputs[:, :3].argmax(dim=1)
    return [{"x": x, "labels": y} for x, y in zip(inputs, labels, strict=True)]


def main() -> None:
    Trainer(
        Classifier(),
        TrainingArguments(
            "trainer-output",
            max_steps=200,
            learning_rate=3e-3,
            per_device_train_batch_size=32,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            use_cpu=True,
        ),
        train_dataset=examples(),
        callbacks=[GradwatchTrainerCallback()],
    ).train()


if __name__ == "__main__":
    main()
