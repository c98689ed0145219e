"""`Run`: what it gives, how it is made from arrays and norms, how it is thinned."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from tests.making import make_run

from gradwatch.errors import Exit, GradwatchError
from gradwatch.run import Event, EventKind, Placement, Run, Subject
from gradwatch.run.downsample import bucket_edges, downsample
from gradwatch.stats import Kind, Stat, State


def naive(values: np.ndarray) -> dict[str, float]:
    """Statistics of the finite elements, one plain formula each, in float64."""
    flat = np.asarray(values, np.float64).ravel()
    good = [float(x) for x in flat if math.isfinite(x)]
    n = len(good)
    mean = math.fsum(good) / n
    moment = {k: math.fsum((x - mean) ** k for x in good) / n for k in (2, 3, 4)}
    return {
        "count": len(flat),
        "norm": math.sqrt(math.fsum(x * x for x in good)),
        "mean": mean,
        "std": math.sqrt(moment[2]),
        "skewness": moment[3] / moment[2] ** 1.5,
        "kurtosis": moment[4] / moment[2] ** 2 - 3,
        "abs_mean": math.fsum(abs(x) for x in good) / n,
        "abs_max": max(abs(x) for x in good),
        "min": min(good),
        "max": max(good),
        "zero_fraction": sum(x == 0 for x in good) / len(flat),
        "nan": int(np.isnan(flat).sum()),
        "inf": int(np.isinf(flat).sum()),
    }


@pytest.mark.parametrize("dtype", ["f4", "f8", "f2"])
def test_from_arrays(dtype):
    rng = np.random.default_rng(5)
    arrays = [rng.normal(size=(7, 9)).astype(dtype) for _ in range(3)]
    arrays[1][0, 0], arrays[1][2, 3], arrays[1][4] = np.nan, -np.inf, 0
    run = Run.from_arrays({"a.weight": arrays}, steps=[2, 4, 9], scalars={"loss": [3, 2, 1]})
    assert run.steps.tolist() == [2, 4, 9]
    assert run.names == ("a.weight",)
    assert run.layers == ("a.weight",)
    for row, array in enumerate(arrays):
        for name, expected in naive(array).items():
            got = run.series[f"grad_{name}"][row, 0]
            assert got == pytest.approx(expected, rel=1e-6, abs=1e-6), (name, row)
    assert run.series["grad_zero_rows"][:, 0].tolist() == [0, 1, 0]
    assert run.scalars["loss"].tolist() == [3, 2, 1]


def test_no_gradient_is_not_a_zero_gradient():
    run = Run.from_arrays({"a": [np.zeros(3), None, np.ones(3)]}, {"a": [np.ones(3)] * 3})
    assert run.state("grad_norm")[:, 0].tolist() == [0, State.NO_GRADIENT, 0]
    assert run.series["grad_norm"][0, 0] == 0
    assert np.isnan(run.series["grad_norm"][1, 0])
    assert run.series["weight_norm"][1, 0] == pytest.approx(math.sqrt(3))


def test_from_norms_with_steps_of_their_own():
    run = Run.from_norms(
        {"a": [1.0, math.nan, 3.0], "b": [5.0, math.inf]}, steps={"a": [0, 1, 2], "b": [1, 5]}
    )
    assert run.steps.tolist() == [0, 1, 2, 5]
    norm, state = run.series["grad_norm"], run.state("grad_norm")
    assert norm[0].tolist()[0] == 1.0
    assert state[:, 0].tolist() == [0, 0, 0, State.NOT_SAMPLED]
    assert state[:, 1].tolist() == [State.NOT_SAMPLED, 0, State.NOT_SAMPLED, 0]
    assert run.series["grad_nan"][:, 0].tolist()[:3] == [0, 1, 0]
    assert run.series["grad_inf"][3, 1] == 1
    assert run.series["grad_nan"][3, 1] == 0
    assert np.isnan(run.series["grad_nan"][3, 0])
    assert np.isnan(norm[1, 0])
    assert np.isnan(norm[3, 1])


@pytest.mark.parametrize(
    "make",
    [
        lambda: Run.from_arrays({"a": [np.ones(2)], "b": [np.ones(2)] * 2}),
        lambda: Run.from_arrays({"a": [np.ones(2)]}, steps=[1, 2]),
        lambda: Run.from_norms({"a": [1.0, 2.0]}, steps=[3, 3]),
        lambda: Run.from_norms({"a": [1.0]}, scalars={"loss": [1.0, 2.0]}),
        lambda: Run.from_norms({"a": [1.0]}).series["no_such_stat"],
        lambda: Run.from_norms({"a": [1.0]}).column("grad_norm", "b"),
    ],
)
def test_wrong_arguments_are_a_sentence(make):
    with pytest.raises(GradwatchError) as caught:
        make()
    assert caught.value.exit_code == Exit.USAGE
    assert len(str(caught.value)) > 20


def test_series_are_lazy_read_only_and_absent_ones_empty():
    run = make_run({"grad_norm": [[1.0, 2.0]]}, names=["a.w", "b.w"])
    assert set(run.series) == {Stat.GRAD_NORM}
    with pytest.raises(ValueError, match="read-only"):
        run.series["grad_norm"][0, 0] = 3
    assert run.series["weight_norm"].shape == (1, 2)
    assert np.isnan(run.series["weight_norm"]).all()
    assert (run.state("weight_norm") == State.NOT_SAMPLED).all()
    assert "weight_norm" not in run.series


def test_layers_are_in_forward_order():
    subjects = [
        Subject(Kind.PARAMETER, "head.weight", "head", order=2),
        Subject(Kind.PARAMETER, "stem.weight", "stem", order=0),
        Subject(Kind.LAYER, "body", "body", order=1),
        Subject(Kind.PARAMETER, "unused.weight", "unused"),
    ]
    run = make_run({"grad_norm": [[1.0, 2.0, 3.0]]}, subjects=subjects)
    assert run.layers == ("stem", "body", "head", "unused")
    assert run.graph.assumed
    assert run.graph.edges == (("stem", "body"), ("body", "head"), ("head", "unused"))


@pytest.mark.parametrize("points", [1, 7, 50, 1000])
def test_thinning_loses_no_extreme(points):
    rng = np.random.default_rng(2)
    steps = np.sort(rng.choice(5000, 400, replace=False))
    values = rng.normal(size=(400, 3))
    values[rng.random(values.shape) < 0.3] = np.nan
    values[17, 1], values[399, 2] = np.inf, 1e9
    bands = downsample(steps, values, 100, 4000, points)
    inside = (steps >= 100) & (steps <= 4000)
    assert len(bands.first_steps) <= max(points, 1)
    finite = np.where(np.isfinite(values), values, np.nan)
    covered = np.zeros(400, bool)
    for number in range(len(bands.first_steps)):
        part = (steps >= bands.first_steps[number]) & (steps <= bands.last_steps[number])
        covered |= part
        for column in range(3):
            own = finite[part, column]
            own = own[~np.isnan(own)]
            if len(own):
                assert bands.low[number, column] == own.min()
                assert bands.high[number, column] == own.max()
                assert bands.last[number, column] == own[-1]
            else:
                assert np.isnan(bands.low[number, column])
    assert (covered == inside).all()


@pytest.mark.parametrize("count", [0, 1, 2, 9, 10, 97])
def test_buckets_hold_equally_many_steps(count):
    steps = np.arange(count) * 3 + 5
    for points in (0, 1, 2, 4, 7, 10, 200):
        for first, last in ((5, 5 + 3 * count), (0, 10**9), (7, 40), (40, 7), (-9, 4)):
            starts, ends = bucket_edges(steps, first, last, points)
            inside = np.flatnonzero((steps >= first) & (steps <= last))
            rows = [np.arange(*edges) for edges in zip(starts, ends, strict=True)]
            assert np.concatenate([np.empty(0), *rows]).tolist() == inside.tolist()
            assert len(starts) <= max(points, 1)
            assert len({len(part) for part in rows[:-1]}) <= 1
            assert not rows or 0 < len(rows[-1]) <= len(rows[0])
            # Who asks for as many buckets as there are gets the same ones.
            again = bucket_edges(steps, first, last, len(starts))
            assert [edges.tolist() for edges in again] == [starts.tolist(), ends.tolist()]
            thin = downsample(steps, np.ones((count, 1)), first, last, points)
            assert thin.first_steps.tolist() == steps[starts].tolist()
            assert thin.last_steps.tolist() == steps[ends - 1].tolist()


def test_windows_of_scalars_and_of_nothing():
    run = make_run(
        {"grad_norm": np.arange(10.0)[:, None]}, names=["a"], scalars={"loss": range(10)}
    )
    bands = run.window(2, 7, points=3).scalar("loss")
    assert bands.low[:, 0].tolist() == [2, 4, 6]
    assert bands.high[:, 0].tolist() == [3, 5, 7]
    assert len(run.window(50, 60, points=5).stat("grad_norm").first_steps) == 0
    empty = make_run()
    assert len(empty.window(points=5).stat("grad_norm").first_steps) == 0


def test_subjects_come_back_from_json():
    place = Placement((4, 3), (2, 0), (2, 3), 1)
    subject = Subject(
        Kind.PARAMETER, "w", "l", (2, 3), "float32", 6, 1, True, ("v",), 4, "Linear", place
    )
    for original in (subject, Subject(Kind.LAYER, "l"), replace(subject, group=0, order=0)):
        assert Subject.from_dict(original.to_dict()) == original
        assert Subject.from_dict(json.loads(json.dumps(original.to_dict()))) == original
    assert Subject(Kind.LAYER, "l").to_dict() == {"kind": "layer", "name": "l"}
    later = {"kind": "layer", "name": "l", "colour": "red"}
    assert Subject.from_dict(later) == Subject(Kind.LAYER, "l")


@pytest.mark.parametrize(
    "data",
    [
        {"name": "w"},
        {"kind": "parameter"},
        {"kind": "tensor", "name": "w"},
        {"kind": "parameter", "name": "w", "placement": {"offset": [0]}},
        {"kind": "parameter", "name": "w", "placement": 3},
        *([], "w", None, [["kind", "name", "layer"]]),
    ],
)
def test_what_is_no_subject_is_refused(data):
    with pytest.raises((ValueError, TypeError, KeyError)):
        Subject.from_dict(data)


def test_steps_are_those_of_the_optimizer() -> None:
    """A finished recording holds a sample of the weights after the last one; arrays hold none."""
    made = Run.from_norms({"a": [1.0] * 4}, steps=[0, 10, 20, 30])
    assert (made.step_count, made.last_step) == (4, 30)
    series = {"weight_norm": np.ones((4, 1))}
    closed = [Event(19, EventKind.CLOSED, "closed")]
    for events, count in ((closed, 20), ([], 21)):  # without that event it was killed
        run = make_run(series, steps=[0, 5, 10, 20], info={"complete": True}, events=events)
        assert (run.step_count, run.last_step) == (count, count - 1)
        assert f"{count} steps" in repr(run)
    empty = make_run({"weight_norm": np.ones((0, 1))}, info={"complete": False})
    assert (empty.step_count, empty.last_step) == (0, -1)
