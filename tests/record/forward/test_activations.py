"""Activations and their functions against the tensors themselves, on sick and healthy models."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.record.forward.driving import Driven, Rows, hook_count
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from gradwatch.run import EventKind
from gradwatch.stats import Family, State

torch.set_num_threads(1)


def drive(model: nn.Module, loss_of: Any, **options: Any) -> list[Rows]:
    driven = Driven(model)
    rows = driven.train(loss_of, Family.ACT, **options)
    driven.forward.detach()
    return rows


def assert_describes(row: dict[str, Any], *tensors: Tensor) -> None:
    """The row against float64 statistics of all the tensors together."""
    values = torch.cat([tensor.detach().double().reshape(-1) for tensor in tensors]).numpy()
    finite = values[np.isfinite(values)]
    assert row["state"] == State.MEASURED
    assert row["act_count"] == values.size
    assert row["act_nonfinite"] == values.size - finite.size
    assert row["act_mean"] == pytest.approx(finite.mean(), rel=1e-6, abs=1e-8)
    assert row["act_std"] == pytest.approx(finite.std(), rel=1e-6)
    assert row["act_abs_max"] == pytest.approx(np.abs(finite).max())
    assert row["act_zero_fraction"] == pytest.approx((values == 0).mean())


class Net(nn.Module):
    """Functional activations between the layers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.norm, self.b = nn.Linear(6, 40), nn.BatchNorm1d(40), nn.Linear(40, 30)
        self.c, self.d = nn.Linear(30, 20), nn.Linear(20, 3)
        self.seen: dict[str, Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.norm(self._keep("a", self.a(x))))
        self._keep("relu", h)
        h = torch.tanh(self._keep("b", self.b(F.dropout(h, 0.0))))
        self._keep("tanh", h)
        h = torch.sigmoid(self.c(h.view(-1, 30)))
        self._keep("sigmoid", h)
        return self.d(h)

    def _keep(self, name: str, tensor: Tensor) -> Tensor:
        self.seen[name] = tensor.detach().clone()
        return tensor


def share(mask: Tensor) -> float:
    return float(mask.double().mean())


def squared(data: Tensor) -> Any:
    return lambda model: model(data).pow(2).mean()


@pytest.mark.parametrize("scale", [1.0, 30.0], ids=["healthy", "saturated"])
def test_layers_and_the_activation_functions_they_feed(scale: float) -> None:
    model = Net()
    with torch.no_grad():
        for layer in (model.b, model.c):
            layer.weight.mul_(scale)
    (rows,) = drive(model, squared(torch.randn(64, 6)))
    assert list(rows) == ["a", "norm", "b", "c", "d"]
    assert_describes(rows["a"], model.seen["a"])
    assert_describes(rows["b"], model.seen["b"])
    relu, tanh, sigmoid = (model.seen[name].double() for name in ("relu", "tanh", "sigmoid"))
    assert rows["norm"]["act_gate_zero_fraction"] == pytest.approx(share(relu == 0))
    assert rows["b"]["act_flat_fraction"] == pytest.approx(share(tanh.abs() > 0.97))
    flat = share((sigmoid < 0.03) | (sigmoid > 0.97))
    assert rows["c"]["act_flat_fraction"] == pytest.approx(flat, abs=1e-6)
    assert (rows["b"]["act_flat_fraction"] > 0.5) == (scale > 1)
    for layer, stat in (("a", "act_gate_zero_fraction"), ("d", "act_flat_fraction")):
        assert np.isnan(rows[layer][stat])


@pytest.mark.parametrize("inplace", [False, True])
def test_activation_modules_count_for_the_layer_before(inplace: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 5, 3), nn.ReLU(inplace), nn.Flatten(), nn.Linear(80, 2))
    data = torch.randn(7, 3, 6, 6)
    (rows,) = drive(model, squared(data))
    with torch.no_grad():
        before = model[0](data)
    assert_describes(rows["0"], before)
    assert_describes(rows["1"], before.relu())
    assert rows["0"]["act_gate_zero_fraction"] == pytest.approx(share(before <= 0))
    assert rows["0"]["subject"].module == "Conv2d"


def test_a_dead_layer_feeds_a_relu_of_zeros() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    with torch.no_grad():
        model[0].bias.fill_(-1000.0)
    (rows,) = drive(model, squared(torch.randn(16, 4)))
    assert rows["0"]["act_gate_zero_fraction"] == 1.0


def test_nan_and_inf_are_counted_beside_the_rest() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1))
    data = torch.randn(16, 4)
    data[3, 1], data[5, 0] = float("nan"), float("inf")
    with torch.no_grad():
        expected = model[0](data)
    (rows,) = drive(model, squared(data))
    assert_describes(rows["0"], expected)
    assert rows["0"]["act_nonfinite"] == 16


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_precisions(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 1)).to(dtype)
    data = torch.randn(16, 4, dtype=dtype)
    (rows,) = drive(model, squared(data))
    with torch.no_grad():
        assert_describes(rows["0"], model[0](data))
        flat = share(model[1](model[0](data)).abs().double() > 0.97)
    assert rows["0"]["act_flat_fraction"] == pytest.approx(flat, abs=1e-6)


def test_calls_of_one_step_are_merged() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1))
    parts = [torch.randn(5, 4), 3 * torch.randn(9, 4)]
    (rows,) = drive(model, lambda m: m(parts[0]).mean() + m(parts[1]).mean())
    with torch.no_grad():
        assert_describes(rows["0"], *(model[0](part) for part in parts))


@pytest.mark.parametrize("graph", [True, False], ids=["with gradients", "without"])
def test_a_forward_without_a_backward_is_dropped(graph: bool) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    model[0].requires_grad_(False)  # its output has no node of its own
    data = torch.randn(16, 4)

    def validate(step: int) -> None:
        with torch.set_grad_enabled(graph):
            model(100 * data)

    (rows,) = drive(model, squared(data), before=validate)
    with torch.no_grad():
        assert_describes(rows["0"], model[0](data))
        assert_describes(rows["2"], model(data))


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("reentrant", [None, False, True], ids=["plain", "later", "reentrant"])
def test_every_micro_batch_of_a_step_counts(frozen: bool, reentrant: bool | None) -> None:
    """Of those with a backward; where checkpoints run layers only within it, the first of each."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4))
    model[0].requires_grad_(not frozen)
    driven = Driven(model)
    driven.arm()
    batches = [torch.randn(3, 6, requires_grad=True) for _ in range(4)]
    if reentrant is not True:
        model(torch.randn(3, 6))  # a forward without a backward does not count
    for batch in batches:
        if reentrant is None:
            output = model(batch)
        else:
            output = checkpoint(model, batch, use_reentrant=reentrant)
        output.sum().backward()
        driven.forward.backward()
    rows = driven.rows(driven.collect(), Family.ACT)
    seen = batches[:1] if reentrant else batches
    with torch.no_grad():
        assert_describes(rows["0"], *(model[0](batch) for batch in seen))
        assert_describes(rows["2"], *(model(batch) for batch in seen))


def test_a_call_that_no_backward_came_through_does_not_count() -> None:
    """A generator whose output was detached for the first backward of a step."""
    torch.manual_seed(0)
    made, judged = nn.Linear(4, 4), nn.Linear(4, 1)
    model = nn.ModuleDict({"made": made, "judged": judged})
    driven = Driven(model)
    driven.arm()
    first, second = torch.randn(3, 4), torch.randn(3, 4)
    judged(made(first).detach()).sum().backward()
    driven.forward.backward()
    judged(made(second)).sum().backward()
    driven.forward.backward()
    rows = driven.rows(driven.collect(), Family.ACT)
    with torch.no_grad():
        assert_describes(rows["made"], made(second))
        assert_describes(rows["judged"], judged(made(first)), judged(made(second)))


# -- attention and softmax -------------------------------------------------------------------------


def entropy(weights: Tensor, visible: Tensor) -> float:
    """Mean over rows that can see more than one key of −Σ p ln p / ln n, in float64."""
    p = weights.detach().double()
    rows = -(p * p.clamp_min(1e-300).log()).sum(-1)
    count = visible.sum(-1).expand(rows.shape)
    return float((rows / count.double().log())[count > 1].mean())


class Attending(nn.Module):
    """One head-split attention in three ways of writing it."""

    def __init__(self, how: str, causal: bool, sharpness: float) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.how, self.causal = how, causal
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)
        with torch.no_grad():
            self.qkv.weight.mul_(sharpness)

    def parts(self, x: Tensor) -> Tensor:
        return self.qkv(x).view(*x.shape[:2], 3, 2, 4).permute(2, 0, 3, 1, 4)

    def visible(self, n: int) -> Tensor:
        full = torch.ones(n, n, dtype=torch.bool)
        return full.tril() if self.causal else full

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.parts(x)
        if self.how == "sdpa":
            y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        else:
            y = self.weights(q, k) @ v
        return self.out(y.transpose(1, 2).reshape(x.shape))

    def weights(self, q: Tensor, k: Tensor) -> Tensor:
        logits = q @ k.mT / 2.0
        return logits.masked_fill(~self.visible(q.shape[2]), float("-inf")).softmax(-1)


@pytest.mark.parametrize("how", ["sdpa", "softmax"])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("sharpness", [1.0, 12.0], ids=["healthy", "collapsed"])
def test_attention_entropy(how: str, causal: bool, sharpness: float) -> None:
    model = Attending(how, causal, sharpness)
    data = torch.randn(3, 10, 8)
    (rows,) = drive(model, squared(data))
    with torch.no_grad():
        q, k, _ = model.parts(data)
        expected = entropy(model.weights(q, k), model.visible(10))
    assert rows["qkv"]["act_entropy"] == pytest.approx(expected, abs=1e-3)
    assert (expected < 0.5) == (sharpness > 1)


def test_attention_with_an_additive_mask_and_more_rows_than_are_read() -> None:
    torch.manual_seed(0)
    mask = torch.zeros(70, 70).masked_fill(torch.ones(70, 70).triu(1).bool(), float("-inf"))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            q = self.q(x)[:, None]
            return F.scaled_dot_product_attention(q, q, q, attn_mask=mask)

    model = nn.Sequential(Model(), nn.Flatten(0, 2), nn.Linear(8, 1))
    data = torch.randn(2, 70, 8)
    (rows,) = drive(model, squared(data))
    with torch.no_grad():
        q = model[0].q(data)
        weights = (q @ q.mT / 8**0.5 + mask).softmax(-1)
        picked = [(i + 1) * 70 // 16 - 1 for i in range(16)]
        expected = entropy(weights[:, picked], torch.ones(70, 70).tril().bool()[picked])
    assert rows["0.q"]["act_entropy"] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("weights", [True, False])
def test_multihead_attention(weights: bool) -> None:
    torch.manual_seed(0)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.attention(x, x, x, need_weights=weights)[0]

    model, data = Model(), torch.randn(3, 9, 8)
    (rows,) = drive(model, squared(data))
    with torch.no_grad():
        _, shares = model.attention(data, data, data, average_attn_weights=False)
    expected = entropy(shares, torch.ones(9, 9))
    assert rows["attention"]["act_entropy"] == pytest.approx(expected, abs=1e-5)
    assert rows["attention"]["act_count"] == data.numel()


# -- where one must not look -----------------------------------------------------------------------


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpoint_is_never_run_again_by_us(reentrant: bool) -> None:
    calls = [0]

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

        def inner(self, x: Tensor) -> Tensor:
            calls[0] += 1
            return F.relu(self.b(torch.tanh(x)))

        def forward(self, x: Tensor) -> Tensor:
            x = checkpoint(self.inner, self.a(x), use_reentrant=reentrant)
            return self.c(x)

    torch.manual_seed(0)
    model, data = Model(), torch.randn(6, 4)
    (rows,) = drive(model, squared(data))
    assert calls[0] == 2  # forward, and once in the backward: as without us
    with torch.no_grad():
        assert_describes(rows["b"], model.b(torch.tanh(model.a(data))))
    assert np.isnan(rows["b"]["act_gate_zero_fraction"])


def test_saved_tensor_hooks_of_the_user_are_not_set_off() -> None:
    unpacked = [0]

    def unpack(tensor: Tensor) -> Tensor:
        unpacked[0] += 1
        return tensor

    model = Net()
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, unpack):
        loss = squared(torch.randn(8, 6))
        alone = loss(model)
        alone.backward()
        expected, unpacked[0] = unpacked[0], 0
        (rows,) = drive(model, loss)
    assert unpacked[0] == expected
    assert np.isnan(rows["norm"]["act_gate_zero_fraction"])
    assert rows["a"]["act_count"] == 8 * 40


def test_a_result_changed_in_place_is_left_alone() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            h = self.a(x).relu()
            with torch.no_grad():
                shifted = h.detach().clone()
            return self.b(h.mul(2).add_(1)) + shifted.sum() * 0

    model = Model()
    (rows,) = drive(model, squared(torch.randn(8, 4)))
    assert not np.isnan(rows["a"]["act_gate_zero_fraction"])


# -- what is not recorded --------------------------------------------------------------------------


def test_a_compiled_model_says_so_once() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    fast: Any = torch.compile(model, backend="eager")
    driven = Driven(fast)
    for _ in range(2):
        driven.arm()
        fast(torch.randn(2, 4)).sum().backward()
        assert driven.rows(driven.collect(), Family.ACT) == {}
    (event,) = driven.kept.events
    assert event.kind is EventKind.NOT_RECORDED
    assert event.data["why"] == "compiled"
    assert hook_count(model) == 0
    driven.forward.detach()
