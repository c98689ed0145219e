"""What moved between two checkpoints, against plain numpy."""

import json

import numpy as np
import pytest
from tests.checkpoints.files import bfloat16, floats, write_safetensors

from gradwatch.checkpoints import ScanOptions, drift
from gradwatch.errors import GradwatchError
from gradwatch.finding import Severity

RNG = np.random.default_rng(5)


@pytest.fixture(autouse=True)
def same_numbers_in_any_order():
    global RNG
    RNG = np.random.default_rng(5)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("workers", [0, 2])
def test_numbers_equal_numpy(tmp_path, workers) -> None:
    a = normal(40, 30)
    b = a + 0.1 * normal(40, 30)
    a[0], b[1] = 0, 0
    before = floats(tmp_path / "a.safetensors", fc__weight=a, still__weight=a, fc__bias=a[2])
    after = floats(tmp_path / "b.safetensors", fc__weight=b, still__weight=a, fc__bias=b[2])
    result = drift(before, after, options=ScanOptions(workers=workers))
    by_name = {tensor["name"]: tensor for tensor in result.to_dict()["tensors"]}
    got = by_name["fc.weight"]
    x, y = a.astype(np.float64), b.astype(np.float64)
    change = np.linalg.norm(y - x) / np.linalg.norm(x)
    assert got["relative_change"] == pytest.approx(change, rel=1e-9)
    cosine = (x * y).sum() / np.linalg.norm(x) / np.linalg.norm(y)
    assert got["cosine"] == pytest.approx(cosine, rel=1e-9)
    assert got["sign_flip_fraction"] == np.mean(np.sign(x) * np.sign(y) < 0)
    assert got["changed_fraction"] == np.mean(x != y)
    assert got["zero_fraction_before"] == np.mean(x == 0)
    assert got["zero_fraction_after"] == np.mean(y == 0)
    assert not by_name["still.weight"]["moved"]
    (finding,) = result.findings
    assert (finding.check, finding.layers) == ("not-updated", ("still",))
    assert finding.severity is Severity.WARNING
    assert "1 of 2 weight matrices did not change by a bit" in finding.message


def test_a_bias_that_stands_still_is_no_fault(tmp_path) -> None:
    before = floats(tmp_path / "a.safetensors", w=normal(3, 3), b=np.zeros(3))
    after = floats(tmp_path / "b.safetensors", w=normal(3, 3), b=np.zeros(3))
    assert drift(before, after).findings == ()


def test_nothing_moved_is_critical(tmp_path) -> None:
    path = floats(tmp_path / "a.safetensors", w=normal(3, 3))
    (finding,) = drift(path, path).findings
    assert finding.severity is Severity.CRITICAL


def test_a_nan_on_both_sides_is_no_movement(tmp_path) -> None:
    x = normal(3, 3)
    x[1, 1] = np.nan
    path = floats(tmp_path / "a.safetensors", w=x)
    (tensor,) = drift(path, path).tensors
    assert not tensor.moved
    assert tensor.sums.nonfinite == 1


def test_renamed_missing_reshaped_and_new_tensors_are_told_apart(tmp_path) -> None:
    w, v, same = normal(4, 4), normal(5, 5), normal(6, 6)
    before = floats(
        tmp_path / "a.safetensors",
        fc__weight=w, head__weight=v, old__weight=same, gone=normal(2), vocab=normal(10, 3),
    )  # fmt: skip
    after = floats(
        tmp_path / "b.safetensors",
        model__fc__weight=w + 1, head__weight=v + 1, entirely__other=same, vocab=normal(12, 3),
        extra=normal(7),
    )  # fmt: skip
    result = drift(before, after)
    assert result.renamed == {"fc.weight": "model.fc.weight", "old.weight": "entirely.other"}
    assert result.missing == ("gone",)
    assert result.added == ("extra",)
    assert result.reshaped == {"vocab": ((10, 3), (12, 3))}
    moved = {tensor.name: tensor.moved for tensor in result.tensors}
    assert moved == {"fc.weight": True, "head.weight": True, "old.weight": False}


def test_types_may_differ(tmp_path) -> None:
    x = normal(20, 20)
    before = floats(tmp_path / "a.safetensors", w=x)
    after = write_safetensors(tmp_path / "b.safetensors", {"w": ("bfloat16", bfloat16(x))})
    (tensor,) = drift(before, after).tensors
    assert tensor.dtype_after == "bfloat16"
    assert 0 < tensor.sums.relative_change < 0.01


def test_an_adapter_against_its_base(tmp_path) -> None:
    w, up, down = normal(8, 6), normal(8, 2), normal(2, 6)
    base = floats(tmp_path / "base.safetensors", layers__0__q__weight=w, layers__1__q__weight=w)
    (tmp_path / "adapter").mkdir()
    prefix = "base_model__model__layers"
    floats(
        tmp_path / "adapter/adapter_model.safetensors",
        **{
            f"{prefix}__0__q__lora_A__weight": down,
            f"{prefix}__0__q__lora_B__weight": up,
            f"{prefix}__1__q__lora_A__weight": down,
            f"{prefix}__1__q__lora_B__weight": np.zeros((8, 2)),
        },
    )
    (tmp_path / "adapter/adapter_config.json").write_text(json.dumps({"lora_alpha": 8, "r": 2}))
    result = drift(base, tmp_path / "adapter")
    first, second = result.tensors
    x = w.astype(np.float64)
    change = 4.0 * up.astype(np.float64) @ down.astype(np.float64)
    y = x + change
    exact = np.linalg.norm(change) / np.linalg.norm(x)
    assert first.sums.relative_change == pytest.approx(exact, rel=1e-6)
    cosine = (x * y).sum() / np.linalg.norm(x) / np.linalg.norm(y)
    assert first.sums.cosine == pytest.approx(cosine, rel=1e-6)
    assert first.to_dict()["sign_flip_fraction"] is None
    assert not second.moved
    assert result.findings[0].layers == ("layers.1.q",)


def test_an_adapter_that_does_not_fit_is_refused(tmp_path) -> None:
    base = floats(tmp_path / "base.safetensors", q__weight=normal(8, 6))
    other = floats(
        tmp_path / "adapter.safetensors",
        q__lora_A__weight=normal(2, 6),
        q__lora_B__weight=normal(8, 3),
    )
    with pytest.raises(GradwatchError, match="do not fit"):
        drift(base, other)
