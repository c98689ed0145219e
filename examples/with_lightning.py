"""Lightning under gradwatch: one callback.

    python examples/with_lightning.py

Added for gradwatch: the import of `GradwatchLightningCallback` and the line with `callbacks`.
Lightning calls `training_step`, not `forward`: the input of the first layer stands for the inputs.
"""

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from gradwatch.integrations.lightning import GradwatchLightningCallback


class Classifier(LightningModule):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 3))

    def training_step(self, batch: list[torch.Tensor], at: int) -> torch.Tensor:
        return nn.functional.cross_entropy(self.body(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main() -> None:
    torch.manual_seed(0)
    inputs = torch.randn(512, 20)
    data = TensorDataset(inputs, inputs[:, :3].argmax(dim=1))
    trainer = Trainer(
        max_steps=100,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        gradient_clip_val=1.0,
        callbacks=[GradwatchLightningCallback()],
    )
    trainer.fit(Classifier(), DataLoader(data, batch_size=32, shuffle=True))


if __name__ == "__main__":
    main()
