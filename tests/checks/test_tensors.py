"""Each check of weights finds its fault, names the layer, and is quiet beside it."""

import numpy as np
import pytest
from tests.checkpoints.files import bfloat16, floats, write_safetensors

from gradwatch.checkpoints import scan
from gradwatch.checkpoints.limits import WHOLE_BYTES
from gradwatch.checks import WEIGHT_CHECKS
from gradwatch.diagnosis import diagnose, verdicts
from gradwatch.finding import Finding, Severity
from gradwatch.run import Run

RNG = np.random.default_rng(3)


@pytest.fixture(autouse=True)
def same_numbers_in_any_order():
    global RNG
    RNG = np.random.default_rng(3)


def normal(*shape: int) -> np.ndarray:
    return (RNG.standard_normal(shape) * 0.05).astype(np.float32)


def found(path, *, spectrum: bool = False, level: Severity = Severity.INFO) -> list[Finding]:
    result = diagnose(scan(path, spectrum=spectrum))
    return [finding for finding in result.findings if finding.severity >= level]


def only(path, **options) -> Finding:
    (finding,) = found(path, **options)
    return finding


@pytest.fixture
def path(tmp_path):
    return tmp_path / "m.safetensors"


def test_a_healthy_checkpoint_is_silent(path) -> None:
    floats(path, fc__weight=normal(64, 48), fc__bias=np.zeros(64), norm__weight=np.ones(64))
    assert found(path, spectrum=True) == []


def test_nonfinite_names_the_first_place(path) -> None:
    x = normal(40, 20)
    x[3, 4], x[5, 6] = np.nan, np.inf
    finding = only(floats(path, a__weight=normal(9, 9), b__weight=x))
    assert (finding.check, finding.severity) == ("nonfinite-weights", Severity.CRITICAL)
    assert finding.layers == ("b",)
    assert finding.message == (
        "b.weight: 1 NaN and 1 infinite of 800 elements, the first at [3, 4]"
    )
    assert finding.evidence[0].measured == 2


def test_a_mask_of_minus_infinity_is_no_fault(path) -> None:
    mask = np.where(np.tri(16) > 0, 0, -np.inf)[None, None]
    assert found(floats(path, attn__mask=mask, fc__weight=normal(20, 20))) == []


def test_constant_weights(path) -> None:
    finding = only(floats(path, a__weight=normal(9, 9), up__lora_B__weight=np.zeros((8, 4))))
    assert (finding.check, finding.layers) == ("constant-weights", ("up.lora_B",))
    assert "all 32 elements are 0" in finding.message


def test_symmetric_weights(path) -> None:
    x = np.tile(normal(1, 30), (20, 1))
    finding = only(floats(path, a__weight=x))
    assert (finding.check, finding.severity) == ("identical-units", Severity.CRITICAL)


@pytest.mark.parametrize(
    ("dead", "severity"), [(60, Severity.CRITICAL), (10, Severity.WARNING), (1, Severity.INFO)]
)
def test_dead_rows(path, dead, severity) -> None:
    x = normal(100, 50)
    x[:dead] = 0
    finding = only(floats(path, fc__weight=x))
    assert (finding.check, finding.severity) == ("zeroed-units", severity)
    assert f"{dead} of 100 rows" in finding.message


def test_dead_columns_of_a_large_tensor(path) -> None:
    x = normal(300, 300)
    assert x.nbytes > WHOLE_BYTES
    x[:, 100:130] = 0
    finding = only(floats(path, fc__weight=x))
    assert finding.check == "zeroed-units"
    assert "30 of 300 columns (10 %) are all zero: 100, 101, 102, 103 …" in finding.message


def test_copied_heads_are_named_as_blocks(path) -> None:
    x = normal(128, 64)
    x[64:96] = x[:32]
    finding = only(floats(path, attn__weight=x))
    assert (finding.check, finding.severity) == ("duplicate-rows", Severity.WARNING)
    assert "32 rows (25 %) are copies: rows 64–95 of rows 0–31" in finding.message


def test_short_rows_that_agree_by_chance_are_no_copies(path) -> None:
    x = RNG.integers(-2, 3, (200, 3)).astype(np.float32)
    assert found(floats(path, fc__weight=x), level=Severity.WARNING) == []


def test_rows_of_a_large_tensor_that_agree_only_where_one_looks_are_no_copies(path) -> None:
    x = normal(300, 300)
    x[200] = x[100]
    x[200, 50] += 1.0  # between the sampled columns
    assert found(floats(path, fc__weight=x)) == []
    x[200] = x[100]
    assert only(floats(path, fc__weight=x)).check == "duplicate-rows"


@pytest.mark.parametrize(("factor", "severity"), [(300, Severity.WARNING), (15, Severity.INFO)])
@pytest.mark.parametrize("axis", [0, 1])
def test_outlier_channels(path, factor, severity, axis) -> None:
    x = normal(96, 96)
    (x if axis == 0 else x.T)[17] *= factor
    finding = only(floats(path, fc__weight=x))
    assert (finding.check, finding.severity) == ("outlier-channels", severity)
    assert ("rows" if axis == 0 else "columns") in finding.message
    assert finding.message.endswith(": 17")


def test_norm_gains_near_zero(path) -> None:
    gains = {
        "norm1__weight": np.ones(32),
        "norm2__weight": np.full(32, 5e-4),
        "n3__weight": np.ones(9),
    }
    finding = only(floats(path, **gains))
    assert (finding.check, finding.layers) == ("norm-gains-near-zero", ("norm2",))


def test_the_gain_of_a_batchnorm_without_a_name_is_found_by_its_statistics(path) -> None:
    zeros = {"1__weight": np.zeros(32), "1__running_var": np.ones(32), "0__weight": normal(9, 9)}
    finding = only(floats(path, **zeros))
    assert (finding.check, finding.layers) == ("norm-gains-near-zero", ("1",))


def test_gains_stored_as_distances_from_one_are_only_mentioned(path) -> None:
    gains = {f"layers__{i}__norm__weight": np.full(32, 5e-4) for i in range(6)}
    assert only(floats(path, **gains)).severity is Severity.INFO


def test_untrained_embedding_rows(path) -> None:
    table = normal(200, 16)
    table[150:] *= 1e-3
    finding = only(floats(path, wte__weight=table))
    assert (finding.check, finding.severity) == ("untrained-embeddings", Severity.WARNING)
    assert "50 of 200 rows (25 %)" in finding.message


def test_one_padding_row_is_no_fault(path) -> None:
    table = normal(200, 16)
    table[0] = 0
    assert found(floats(path, embed__weight=table)) == []


def test_low_rank_needs_the_spectrum(path) -> None:
    x = normal(128, 1) @ normal(1, 128)
    floats(path, fc__weight=x)
    assert [s.check for s in diagnose(scan(path)).skipped] == ["low-rank"]
    finding = only(path, spectrum=True)
    assert finding.check == "low-rank"
    assert "effective rank 1 of 128" in finding.message


def test_weights_that_overflow_float16(path) -> None:
    finding = only(floats(path, fc__weight=normal(20, 20) * 1e8), level=Severity.WARNING)
    assert finding.check == "narrow-casts"


def test_equal_copies_are_mentioned(path) -> None:
    x = normal(20, 20)
    finding = only(floats(path, a__weight=x, b__weight=x, c__weight=normal(20, 20)))
    assert (finding.check, finding.severity) == ("tied-weights", Severity.INFO)
    assert finding.message == "b.weight: is an equal copy of a.weight"


def test_integers_and_buffers_are_not_judged(path) -> None:
    zeros = np.zeros((8, 8), np.int64)
    tensors = {
        "position_ids": ("int64", zeros),
        "bn.running_mean": ("float32", np.zeros(8, np.float32)),
        "flags": ("bool", np.zeros((4, 4), np.uint8)),
        "fc.weight": ("bfloat16", bfloat16(normal(30, 30))),
    }
    assert found(write_safetensors(path, tensors)) == []


# -- weights without a checkpoint ------------------------------------------------------------------


def statistics(**arrays: np.ndarray) -> Run:
    """A run that keeps only statistics of these weights."""
    return Run.from_arrays(weights={n.replace("__", "."): [a] for n, a in arrays.items()})


def holed(value: float) -> np.ndarray:
    array = normal(40, 20)
    array[3, 4] = value
    return array


def half_zero() -> np.ndarray:
    array = normal(40, 20)
    array[:20] = 0
    return array


@pytest.mark.parametrize(
    ("name", "array", "check"),
    [
        ("fc__weight", holed(np.nan), "nonfinite-weights"),
        ("fc__weight", holed(-np.inf), "nonfinite-weights"),
        ("fc__weight", np.full((8, 4), 0.5), "constant-weights"),
        ("fc__weight", half_zero(), "zeroed-units"),
        ("norm__weight", np.full(32, 5e-4), "norm-gains-near-zero"),
        ("fc__weight", holed(1e6), "narrow-casts"),
    ],
)
def test_statistics_alone_show_most_faults(name: str, array: np.ndarray, check: str) -> None:
    run = statistics(a__weight=normal(9, 9), **{name: array})
    (finding,) = diagnose(run).at_least(Severity.WARNING)
    assert finding.check == check
    assert finding.tensors == (name.replace("__", "."),)


def test_what_statistics_cannot_show_is_said_with_what_to_do() -> None:
    found = diagnose(statistics(a__weight=normal(9, 9), attn__mask=np.array([0.0, -np.inf])))
    assert found.verdict == "healthy"
    assert "scan the file" in {s.check: s.reason for s in found.skipped}["duplicate-rows"]
    assert set(found.checked) | {s.check for s in found.skipped} == {c.NAME for c in WEIGHT_CHECKS}


def test_a_loss_makes_it_a_training() -> None:
    weights = {"a.weight": [normal(9, 9) for _ in range(5)]}
    found = diagnose(Run.from_arrays(weights=weights, scalars={"loss": [1.0] * 5}))
    assert not set(found.checked) & {check.NAME for check in WEIGHT_CHECKS}


def test_a_series_of_checkpoints_is_judged_as_a_series_too(tmp_path) -> None:
    first = normal(64, 48)
    paths = [
        floats(tmp_path / f"m{i}.safetensors", fc__weight=first * s, fc__bias=np.zeros(64))
        for i, s in enumerate((1.0, 5.0, 30.0))
    ]
    (finding,) = diagnose(scan(paths)).findings
    assert (finding.check, finding.layers) == ("weight-explosion", ("fc",))
    assert diagnose(scan(paths[:2])).findings == ()


def test_every_tensor_is_named_and_asked_for_by_name(path) -> None:
    zeros = {f"l{i}__weight": np.zeros((8, 4)) for i in range(30)}
    run = scan(floats(path, ok__weight=normal(9, 9), **zeros))
    (finding,) = diagnose(run).findings
    assert len(finding.layers) == len(finding.tensors) == 30
    assert finding.message.endswith("; 29 more tensors")
    assert verdicts(run).tensor_severity("l29.weight") is Severity.CRITICAL
    assert verdicts(run).tensor_severity("ok.weight") is None


def test_every_check_explains_itself() -> None:
    names = [check.NAME for check in WEIGHT_CHECKS]
    assert len(set(names)) == len(names) == 13
    for check in WEIGHT_CHECKS:
        assert "What is seen" in (check.__doc__ or ""), check.NAME


@pytest.mark.parametrize(("size", "fires"), [(10**12, True), (2**28 + 4000, True), (2**28, False)])
def test_a_tensor_that_claims_more_than_is_stored(tmp_path, size, fires) -> None:
    """A GiB of float32 may be claimed, and twice what the file has; here about 3 KB."""
    torch = pytest.importorskip("torch")
    torch.save({"w": torch.ones(1).expand(size), "v": torch.ones(2)}, tmp_path / "m.pt")
    run = scan(tmp_path / "m.pt")
    findings = [item for item in diagnose(run).findings if item.check == "oversized-tensors"]
    assert len(findings) == fires
    if fires:
        assert findings[0].severity == Severity.WARNING
        assert f"w is not measured: its {size} elements" in findings[0].message
    assert run.names == (("v",) if fires else ("w", "v"))
