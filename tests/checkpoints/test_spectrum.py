"""Singular values, exact and of large matrices, against numpy's decomposition."""

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


def test_the_spectrum_equals_a_singular_value_decomposition(path) -> None:
    x = (RNG.standard_normal((90, 70)) * 0.05).astype(np.float32)
    floats(path, tall__weight=x, wide__weight=x.T)
    for tensor in as_dict(checkpoint_of(scan(path, spectrum=True)))["tensors"]:
        exact = np.linalg.svd(x.astype(np.float64), compute_uv=False)
        shares = exact**2 / (exact**2).sum()
        got = tensor["spectrum"]
        np.testing.assert_allclose(got["singular_values"], exact[:64], rtol=1e-5)
        assert got["effective_rank"] == pytest.approx(np.exp(-(shares * np.log(shares)).sum()))
        assert got["stable_rank"] == pytest.approx((exact**2).sum() / exact[0] ** 2, rel=1e-5)
        assert got["rank_90"] == np.searchsorted(np.cumsum(shares), 0.9) + 1


def test_large_matrices_get_the_largest_singular_values(path, monkeypatch) -> None:
    from gradwatch.checkpoints import spectrum

    monkeypatch.setattr(spectrum, "EXACT", 100)
    left, _ = np.linalg.qr(RNG.standard_normal((400, 300)))
    right, _ = np.linalg.qr(RNG.standard_normal((300, 300)))
    values = 1 / np.arange(1, 301)
    floats(path, fc__weight=left * values @ right)
    (tensor,) = as_dict(checkpoint_of(scan(path, spectrum=True)))["tensors"]
    got = tensor["spectrum"]
    assert not got["exact"]
    np.testing.assert_allclose(got["singular_values"][:16], values[:16], rtol=0.01)
    assert got["stable_rank"] == pytest.approx((values**2).sum(), rel=0.01)
