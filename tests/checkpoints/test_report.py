"""What would become of tensors in narrower types, against torch's own casts."""

import numpy as np
import pytest
from tests.checkpoints.files import floats

from gradwatch.checkpoints import scan
from gradwatch.checkpoints.report import as_dict
from gradwatch.checks.tensors import checkpoint_of

RNG = np.random.default_rng(3)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "m.safetensors"


def test_casts_are_counted_as_torch_casts(path) -> None:
    import torch

    x = (RNG.standard_normal((100, 100)) * 10.0 ** RNG.integers(-9, 3, (100, 100))).astype(
        np.float32
    )
    floats(path, w=x)
    (tensor,) = as_dict(checkpoint_of(scan(path)))["tensors"]
    for name, normal_least in (("float16", 2.0**-14), ("float8_e4m3fn", 2.0**-6)):
        small = np.abs(x) < normal_least
        got = tensor["casts"][name]
        both = got["subnormal_fraction"] + got["vanishing_fraction"]
        assert both == pytest.approx(small.mean(), abs=1e-12)
        cast = torch.from_numpy(x).to(getattr(torch, name)).double().numpy()
        lost = np.mean((cast == 0) & (x != 0))
        assert got["vanishing_fraction"] == pytest.approx(lost, abs=0.001)
    assert tensor["casts"]["float16"]["headroom"] == pytest.approx(65504 / np.abs(x).max())


def test_a_norm_that_is_no_number_is_missing_with_its_reason(tmp_path) -> None:
    np.savez(tmp_path / "m.npz", large=np.array([1.7e308, -1.7e308, 3.0]), usual=np.array([3.0, 4]))
    large, usual = as_dict(checkpoint_of(scan(tmp_path / "m.npz")))["tensors"]
    assert large["norm"] is None
    assert "64 bits" in large["missing"]["norm"]
    assert usual["norm"] == 5.0
    assert "missing" not in usual
