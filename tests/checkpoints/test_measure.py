"""What is measured equals a naive float64 computation, however the file is cut."""

import numpy as np
import pytest
from tests.checkpoints.files import bfloat16, write_safetensors

from gradwatch.checkpoints import ScanOptions, limits, scan
from gradwatch.checkpoints.measure import evenly_spread, measure_tensors
from gradwatch.checkpoints.readers import open_index
from gradwatch.checkpoints.scanning import measure_checkpoints

RNG = np.random.default_rng(1)
WIDE = RNG.standard_normal((97, 33)).astype(np.float32) * 1e-3
WIDE[5] = 0
WIDE[:, 7] = 0
TENSORS = {
    "f32": ("float32", WIDE),
    "f64": ("float64", WIDE.astype(np.float64) * 1e200),
    "f16": ("float16", WIDE.astype(np.float16)),
    "bf16": ("bfloat16", bfloat16(WIDE)),
    "e4m3": ("float8_e4m3fn", RNG.integers(0, 0x7F, (50, 40), np.uint8)),
    "e5m2": ("float8_e5m2", RNG.integers(0, 0x7C, (50, 40), np.uint8)),
    "i8": ("int8", RNG.integers(-128, 128, (40, 9)).astype(np.int8)),
    "u8": ("uint8", RNG.integers(0, 256, 300).astype(np.uint8)),
    "i64": ("int64", RNG.integers(-(2**40), 2**40, (3, 50))),
    "flag": ("bool", RNG.integers(0, 2, 77).astype(np.uint8)),
    "cube": ("float32", RNG.standard_normal((4, 5, 6)).astype(np.float32)),
}


@pytest.fixture(autouse=True)
def same_numbers_in_any_order():
    global RNG
    RNG = np.random.default_rng(1)


def value_of(kind: str, bits: np.ndarray) -> np.ndarray:
    """The numbers, by another way than the code under test: through torch."""
    import torch

    views = {"bfloat16": torch.int16, "float8_e4m3fn": torch.uint8, "float8_e5m2": torch.uint8}
    if kind in views:
        raw = bits.view(np.int16) if kind == "bfloat16" else bits
        return torch.from_numpy(raw.copy()).view(getattr(torch, kind)).double().numpy()
    return bits.astype(np.float64)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_safetensors(tmp_path_factory.mktemp("c") / "m.safetensors", TENSORS)


def check_against_numpy(run) -> None:
    for name, (kind, bits) in TENSORS.items():
        x = value_of(kind, bits)
        scale = np.abs(x).max()
        y = x / scale
        m = y.mean()
        exact = {
            "weight_count": x.size,
            "weight_mean": m * scale,
            "weight_std": y.std() * scale,
            "weight_skewness": ((y - m) ** 3).mean() / y.std() ** 3,
            "weight_kurtosis": ((y - m) ** 4).mean() / y.std() ** 4 - 3,
            "weight_norm": np.linalg.norm(y) * scale,
            "weight_abs_max": scale,
            "weight_abs_mean": np.abs(y).mean() * scale,
            "weight_min": x.min(),
            "weight_max": x.max(),
            "weight_zero_fraction": (x == 0).mean(),
        }
        if x.ndim > 1:
            flat = x.reshape(len(x), -1)
            exact["weight_zero_rows"] = (flat == 0).all(axis=1).sum()
        for stat, truth in exact.items():
            got = run.column(stat, name)[0]
            tolerance = 1e-4 if "ness" in stat or "kurt" in stat else 1e-6
            assert got == pytest.approx(truth, rel=tolerance, abs=1e-6 * scale), (name, stat)
        histogram = run.histograms("weight", name)[0]
        assert histogram.count == x.size
        exponents = np.floor(np.log2(x[x > 0])).astype(int)
        for exponent in np.unique(exponents):
            place = exponent - histogram.first_exponent
            assert histogram.positive[place] == (exponents == exponent).sum(), name


def test_equals_numpy(path) -> None:
    check_against_numpy(scan(path))


@pytest.fixture
def tiny_blocks(monkeypatch):
    """Blocks of 100 elements, tasks of 2000 bytes: every seam is crossed."""
    monkeypatch.setattr(limits, "BLOCK", 100)
    monkeypatch.setattr(limits, "TASK_BYTES", 2000)


def test_equals_numpy_in_tiny_blocks(path, tiny_blocks) -> None:
    check_against_numpy(scan(path))


def test_rows_longer_than_a_block_are_counted_right(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(limits, "BLOCK", 10)
    x = RNG.standard_normal((6, 25)).astype(np.float32)
    x[2] = 0
    x[4, :20] = 0
    run = scan(write_safetensors(tmp_path / "m.safetensors", {"w": ("float32", x)}))
    assert run.column("weight_zero_rows", "w")[0] == 1
    assert run.column("weight_norm", "w")[0] == pytest.approx(np.linalg.norm(x), rel=1e-6)


def test_reading_and_mapping_in_processes_agree_to_the_bit(path) -> None:
    alone = scan(path, workers=0)
    together = scan(path, workers=2)
    for stat in alone.series:
        np.testing.assert_array_equal(alone.series[stat], together.series[stat])


def test_rows_and_columns_are_found_in_a_sampled_tensor_too(tmp_path) -> None:
    x = RNG.standard_normal((700, 600)).astype(np.float32)
    assert x.nbytes > limits.WHOLE_BYTES
    x[11], x[:, 13] = 0, 0
    x[:, 17] *= 50
    x[23] *= 40
    x[650] = x[300]
    path = write_safetensors(tmp_path / "m.safetensors", {"w": ("float32", x)})
    (checkpoint,) = measure_checkpoints(path, ScanOptions())
    (stats,) = checkpoint.tensors
    assert np.flatnonzero(~stats.rows.alive).tolist() == [11]
    assert np.flatnonzero(~stats.columns.alive).tolist() == [13]
    assert stats.columns.rms.argmax() == 17
    assert stats.rows.rms.argmax() == 23
    assert stats.row_hashes[650] == stats.row_hashes[300]
    assert len(np.unique(stats.row_hashes)) == 699
    assert not stats.rows.exact


def test_a_column_that_lives_only_in_an_unsampled_row_is_alive(tmp_path) -> None:
    x = RNG.standard_normal((700, 600)).astype(np.float32)
    x[:, 13] = 0
    x[1, 13] = 1e-30
    path = write_safetensors(tmp_path / "m.safetensors", {"w": ("float32", x)})
    (checkpoint,) = measure_checkpoints(path, ScanOptions())
    assert checkpoint.tensors[0].columns.alive.all()
    assert 1 not in evenly_spread(700, limits.SAMPLED_ROWS)


def test_the_first_bad_element_is_named(tmp_path, tiny_blocks) -> None:
    x = np.ones((30, 20), np.float32)
    x[17, 3] = np.inf
    x[17, 5] = np.nan
    x[22, 0] = -np.inf
    path = write_safetensors(tmp_path / "m.safetensors", {"w": ("float32", x)})
    (checkpoint,) = measure_checkpoints(path, ScanOptions())
    assert checkpoint.tensors[0].first_nonfinite == 17 * 20 + 3
    assert checkpoint.tensors[0].nonfinite == 3


def test_a_tensor_in_shards_equals_the_whole(tmp_path) -> None:
    """Shards of columns, as tensor parallelism writes them, join to the whole tensor's numbers."""
    from dataclasses import replace

    x = RNG.standard_normal((10, 12)).astype(np.float32)
    x[3] = 0
    x[4, :5] = 0
    x[7, 9] = np.nan
    left, right = np.ascontiguousarray(x[:, :5]), np.ascontiguousarray(x[:, 5:])
    whole = write_safetensors(tmp_path / "whole.safetensors", {"w": ("float32", x)})
    parts = {"l": ("float32", left), "r": ("float32", right)}
    index = open_index(write_safetensors(tmp_path / "parts.safetensors", parts))
    shards = tuple(
        replace(t.shards[0], start=(0, start))
        for t, start in zip(index.tensors, (0, 5), strict=True)
    )
    joined = replace(index.tensors[0], name="w", shape=(10, 12), shards=shards)
    cut = replace(index, tensors=(joined,))
    a = measure_tensors(open_index(whole), ScanOptions(), full=True, hashed=True)[0]
    b = measure_tensors(cut, ScanOptions(), full=True, hashed=True)[0]
    assert a.content_hash == b.content_hash != 0
    assert a.first_nonfinite == b.first_nonfinite == 7 * 12 + 9
    assert int(a.moments["zero_rows"]) == int(b.moments["zero_rows"]) == 1
    assert float(a.moments["std"]) == pytest.approx(float(b.moments["std"]), rel=1e-6)
    assert b.rows is None
