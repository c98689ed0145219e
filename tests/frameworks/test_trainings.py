"""Real trainings by the frameworks, against the plain loop that sees the same batches."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.frameworks.training import BATCH, CLIP, STEPS, data, model, truth
from torch import nn

import gradwatch


def compare(path: Path, expected: dict[str, list[float]], prefix: str = "") -> gradwatch.Run:
    """The recorded raw norms are those of the plain loop, step by step."""
    run = gradwatch.open_run(path)
    steps = len(expected["loss"])
    for name, norms in expected.items():
        if name in ("clip", "loss"):
            continue
        got = run.column("grad_norm", prefix + name)[:steps]
        assert got.tolist() == pytest.approx(norms, rel=1e-4), name
    if expected["clip"]:
        factor = run.scalars["clip_factor"][:steps].tolist()
        assert factor == pytest.approx(expected["clip"], rel=1e-3)
        assert min(factor) < 0.9  # the case would show nothing without clipping
    return run


class Rows(torch.utils.data.Dataset):  # type: ignore[type-arg]
    def __init__(self) -> None:
        self.inputs, self.targets = data()

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, at: int) -> dict[str, torch.Tensor]:
        return {"x": self.inputs[at], "labels": self.targets[at]}


# -- Hugging Face Trainer -------------------------------------------------------------------------


class ForTrainer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = model()

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        out = self.net(x)
        return {"loss": nn.functional.mse_loss(out, labels), "logits": out}


def hugging_face(tmp_path: Path, callback: Any, *, steps: int = STEPS, **arguments: Any) -> Any:
    from transformers import Trainer, TrainingArguments

    class InOrder(Trainer):
        def _get_train_sampler(self, *_: Any, **__: Any) -> Any:
            return torch.utils.data.SequentialSampler(self.train_dataset)

    given: dict[str, Any] = {"max_grad_norm": CLIP, "logging_steps": 1, **arguments}
    net = ForTrainer()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    constant = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    settings = TrainingArguments(
        output_dir=str(tmp_path / "out"),
        per_device_train_batch_size=BATCH,
        max_steps=steps,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        **given,
    )
    trainer = InOrder(
        net,
        settings,
        train_dataset=Rows(),
        eval_dataset=Rows(),
        callbacks=[callback],
        optimizers=(optimizer, constant),
    )
    trainer.train(resume_from_checkpoint=given.get("resume"))
    return trainer


def test_trainer_gives_raw_gradients_and_the_clip_factor(tmp_path: Path) -> None:
    from gradwatch.integrations.transformers import GradwatchTrainerCallback

    callback = GradwatchTrainerCallback(run=tmp_path / "run")
    hugging_face(tmp_path, callback, save_strategy="no")
    run = compare(tmp_path / "run", truth(CLIP), "net.")
    expected = truth(CLIP)["loss"]
    logged = run.scalars["loss"]
    logged = logged[~torch.isnan(torch.tensor(logged)).numpy()]
    assert logged.tolist() == pytest.approx(expected, rel=1e-3)


def test_trainer_counts_accumulated_steps_once_and_keeps_validation_apart(tmp_path: Path) -> None:
    from gradwatch.integrations.transformers import GradwatchTrainerCallback

    callback = GradwatchTrainerCallback(run=tmp_path / "run")
    hugging_face(
        tmp_path,
        callback,
        steps=STEPS // 2,
        gradient_accumulation_steps=2,
        max_grad_norm=0.0,
        eval_strategy="steps",
        eval_steps=2,
        save_strategy="no",
    )
    run = compare(tmp_path / "run", truth(None, accumulate=2), "net.")
    assert run.scalars["backwards"][0] == 2
    assert "val_loss" in run.scalars


def test_trainer_resumes_at_its_own_step(tmp_path: Path) -> None:
    from gradwatch.integrations.transformers import GradwatchTrainerCallback

    first = GradwatchTrainerCallback(run=tmp_path / "run")
    hugging_face(tmp_path, first, steps=6, save_strategy="steps", save_steps=6)
    second = GradwatchTrainerCallback(run=tmp_path / "run")
    net = ForTrainer()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    from transformers import TrainerControl, TrainerState

    state = TrainerState(global_step=6)
    second.on_train_begin(None, state, TrainerControl(), model=net, optimizer=optimizer)
    net(torch.zeros(2, 6), torch.zeros(2, 2))["loss"].backward()
    optimizer.step()
    second.on_train_end(None, state, TrainerControl())
    run = gradwatch.open_run(tmp_path / "run")
    assert run.steps.tolist()[:7] == list(range(7))


# -- Lightning ------------------------------------------------------------------------------------


def lightning_module(manual: bool) -> Any:
    from lightning.pytorch import LightningModule

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = model()
            self.automatic_optimization = not manual

        def training_step(self, batch: Any, at: int) -> torch.Tensor:
            loss = nn.functional.mse_loss(self.net(batch["x"]), batch["labels"])
            if manual:
                optimizer = self.optimizers()
                optimizer.zero_grad()
                self.manual_backward(loss)
                self.clip_gradients(optimizer, CLIP, "norm")
                optimizer.step()
            return loss

        def validation_step(self, batch: Any, at: int) -> None:
            loss = nn.functional.mse_loss(self.net(batch["x"]), batch["labels"])
            self.log("val_loss", loss)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.05)

    return Module()


@pytest.mark.parametrize("manual", [False, True], ids=["automatic", "manual"])
def test_lightning_gives_raw_gradients(tmp_path: Path, manual: bool) -> None:
    from lightning.pytorch import Trainer

    from gradwatch.integrations.lightning import GradwatchLightningCallback

    loader = torch.utils.data.DataLoader(Rows(), batch_size=BATCH)
    clipping = {} if manual else {"gradient_clip_val": CLIP}
    trainer = Trainer(
        max_steps=STEPS,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=str(tmp_path),
        callbacks=[GradwatchLightningCallback(run=tmp_path / "run")],
        **clipping,
    )
    trainer.fit(lightning_module(manual), loader, loader)
    expected = truth(CLIP)
    run = compare(tmp_path / "run", expected, "net.")
    assert run.scalars["loss"][:STEPS].tolist() == pytest.approx(expected["loss"], rel=1e-4)
    assert "val_loss" in run.scalars


# -- Accelerate -----------------------------------------------------------------------------------


def test_accelerate_counts_real_steps_and_knows_the_clipping(tmp_path: Path) -> None:
    from accelerate import Accelerator

    from gradwatch.integrations.accelerate import watch

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    loader = torch.utils.data.DataLoader(Rows(), batch_size=BATCH)
    net = model()
    net, optimizer, loader = accelerator.prepare(
        net, torch.optim.SGD(net.parameters(), lr=0.05), loader
    )
    watcher = watch(accelerator, net, optimizer, run=tmp_path / "run")
    for batch in loader:
        with accelerator.accumulate(net):
            loss = nn.functional.mse_loss(net(batch["x"]), batch["labels"])
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(net.parameters(), CLIP)
            optimizer.step()
            optimizer.zero_grad()
    watcher.close()
    compare(tmp_path / "run", truth(CLIP, accumulate=2))
