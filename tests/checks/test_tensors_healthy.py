"""Fifteen healthy checkpoints trained here, five kinds of model in three types: no false alarm."""

import functools

import pytest

from gradwatch.checkpoints import scan
from gradwatch.diagnosis import diagnose
from gradwatch.finding import Severity

torch = pytest.importorskip("torch")
nn = torch.nn
save_file = pytest.importorskip("safetensors.torch").save_file

KINDS = ("mlp", "cnn", "gpt", "lstm", "vit")
TYPES = (torch.float32, torch.bfloat16, torch.float16)


class Gpt(nn.Module):
    """Two blocks, tied output layer, positions: counts upwards modulo 50."""

    def __init__(self) -> None:
        super().__init__()
        self.wte = nn.Embedding(50, 32)
        self.wpe = nn.Embedding(24, 32)
        layer = nn.TransformerEncoderLayer(
            32, 4, 64, dropout=0.0, batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(32)
        self.head = nn.Linear(32, 50, bias=False)
        self.head.weight = self.wte.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        length = tokens.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        x = self.wte(tokens) + self.wpe(torch.arange(length))
        return self.head(self.norm(self.blocks(x, mask=mask, is_causal=True)))


class Lstm(nn.Module):
    """Adds up a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 32, num_layers=2, batch_first=True)
        self.out = nn.Linear(32, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.lstm(x)[0][:, -1])


class Vit(nn.Module):
    """Patches of an image, two blocks, mean."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, 32, 4, 4)
        self.positions = nn.Parameter(torch.randn(1, 9, 32) * 0.02)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2)
        self.out = nn.Linear(32, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2) + self.positions
        return self.out(self.blocks(tokens).mean(dim=1))


def images(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Which quarter of a noisy image is bright."""
    x, y = torch.randn(count, 1, 12, 12) * 0.5, torch.randint(4, (count,))
    for quarter in range(4):
        rows, columns = divmod(quarter, 2)
        part = x[y == quarter]
        part[:, :, 6 * rows : 6 * rows + 6, 6 * columns : 6 * columns + 6] += 1
        x[y == quarter] = part
    return x, y


def batch(kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    if kind == "gpt":
        start, step = torch.randint(50, (16, 1)), torch.randint(1, 4, (16, 1))
        tokens = (start + step * torch.arange(21)) % 50
        return tokens[:, :-1], tokens[:, 1:]
    if kind == "lstm":
        x = torch.randn(32, 8, 4) * 0.5
        return x, x.sum(dim=1)
    x, y = images(64)
    return (x.flatten(1), y) if kind == "mlp" else (x, y)


def model_of(kind: str) -> nn.Module:
    if kind == "mlp":
        return nn.Sequential(
            nn.Linear(144, 64), nn.ReLU(), nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 4)
        )
    if kind == "cnn":
        return nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
            nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(128, 4),
        )  # fmt: skip
    return {"gpt": Gpt, "lstm": Lstm, "vit": Vit}[kind]()


@functools.cache
def trained(kind: str) -> nn.Module:
    """Trained until the loss is at most 60 % of what it was."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = model_of(kind)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    losses = []
    for _ in range(150):
        x, y = batch(kind)
        out = model(x)
        if kind == "lstm":
            loss = nn.functional.mse_loss(out, y)
        else:
            loss = nn.functional.cross_entropy(out.flatten(0, -2), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-10:]) < 0.6 * sum(losses[:10]), losses[-1]
    return model


@pytest.mark.parametrize("dtype", TYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))
@pytest.mark.parametrize("kind", KINDS)
def test_a_healthy_checkpoint_raises_no_alarm(tmp_path, kind, dtype) -> None:
    state = {
        name: tensor.to(dtype) if tensor.is_floating_point() else tensor
        for name, tensor in trained(kind).state_dict().items()
    }
    if dtype is torch.bfloat16:
        path = tmp_path / "m.pt"
        torch.save(state, path)
    else:
        path = tmp_path / "m.safetensors"
        save_file({name: tensor.contiguous().clone() for name, tensor in state.items()}, path)
    run = scan(path, spectrum=True)
    found = diagnose(run)
    alarms = [f for f in found.findings if f.severity > Severity.INFO]
    assert alarms == [], [f"{f.check}: {f.message}" for f in alarms]
    assert found.healthy
    assert len(run.names) >= 5
