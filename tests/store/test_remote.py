"""Runs in object storage: what crosses the wire, and that a growing one is followed."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.s3 import S3, s3_server
from tests.store.trial import WAIT, Trial, random_rows, subjects

from gradwatch.run import Histogram
from gradwatch.stats import Family, Kind, Stat
from gradwatch.store import Writer, follow, open_run
from gradwatch.store.copying import copy_run
from gradwatch.store.places import Place

TENSORS = 50


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    with s3_server() as server:
        yield server


def write_run(path: Path, steps: int) -> int:
    """A run with every family and histograms; its bytes."""
    rng = np.random.default_rng(0)
    writer = Writer.create(path, name="large")
    ids = {kind: writer.declare(subjects(TENSORS, kind, kind.value)) for kind in Kind}
    states = np.zeros(TENSORS, np.uint8)
    for step in range(steps):
        at = step % 100 * TENSORS
        if at == 0:
            rows = {family: random_rows(rng, family, 100 * TENSORS) for family in Family}
        for family in Family:
            writer.put(family, step, ids[family.kind], rows[family][at : at + TENSORS], states)
        for number in ids[Kind.PARAMETER].tolist() if step % 4 == 0 else ():
            counts = rng.integers(0, 1000, (2, 24)).astype(np.uint64)
            for family in (Family.GRAD, Family.WEIGHT):
                writer.histograms(family, step, number, Histogram(-20, *counts))
        writer.scalars(step, {"loss": float(rng.random())})
        if step % 100 == 99:
            assert writer.flush(WAIT)
    assert writer.close(WAIT)
    assert writer.thread.finished.wait(WAIT)
    return sum(Place.of(path).files().values())


@pytest.mark.parametrize(
    ("steps", "size"),
    [(700, 20e6), pytest.param(7500, 200e6, marks=[pytest.mark.long, pytest.mark.timeout(900)])],
)
def test_one_statistic_moves_a_tenth_of_the_run_at_most(s3, tmp_path, steps, size):
    total = write_run(tmp_path / "large", steps)
    assert total > size
    url = s3.url(f"large{steps}")
    copy_run(Place.of(tmp_path / "large"), Place.of(url))
    s3.fetched.clear()
    run = open_run(url)
    opened = s3.bytes()
    values = run.series[Stat.GRAD_NORM]
    moved = s3.bytes()
    here = open_run(tmp_path / "large")
    assert np.array_equal(values, here.series[Stat.GRAD_NORM], equal_nan=True)
    assert np.isfinite(values).any()
    assert run.recorded == here.recorded
    assert {stat.family for stat in run.recorded} == set(Family)
    sizes = Place.of(url).files()
    tables = [(key, length) for key, length in s3.fetched if "/rows/" in key]
    assert tables
    for key, length in tables:
        assert length < 0.5 * sizes[key.partition(f"large{steps}/")[2]]
    print(f"of {total / 1e6:.1f} MB: opening {opened / 1e6:.3f}, a statistic {moved / 1e6:.3f}")
    assert opened <= 0.01 * total
    assert moved <= 0.1 * total


def test_a_copy_that_grows_is_followed_by_its_new_bytes(s3, tmp_path):
    trial = Trial(tmp_path / "growing").steps(range(40), flush_every=10)
    source, target = Place.of(trial.path), Place.of(s3.url("growing"))
    copy_run(source, target)
    follower = follow(target)
    assert len(follower.refresh().steps) == 40
    trial.steps(range(40, 60), flush_every=10)
    copy_run(source, target)
    whole = sum(size for name, size in target.files().items() if name.endswith(".gwj"))
    s3.fetched.clear()
    grown = follower.refresh()
    assert trial.check(grown) > 0
    journals = sum(size for key, size in s3.fetched if key.endswith(".gwj"))
    assert 0 < journals < 0.5 * whole
    trial.close()
    copy_run(source, target)
    ended = follower.refresh()
    assert ended.info["complete"]
    assert trial.check(ended) > 0
    assert trial.check(grown) > 0  # what was handed out before still reads what it held


def test_ranks_and_attempts_are_put_together_from_afar(s3, tmp_path):
    for rank, attempt in ((0, 0), (1, 0), (0, 1)):
        first = 20 * attempt
        Trial(tmp_path / "ranks", rank=rank, world=2, seed=rank).steps(
            range(first, first + 40)
        ).close()
    target = Place.of(s3.url("ranks"))
    copy_run(Place.of(tmp_path / "ranks"), target)
    here, there = open_run(tmp_path / "ranks"), open_run(target)
    assert len(target.folders()) == 3
    assert there.steps.tolist() == here.steps.tolist() == list(range(60))
    assert there.recorded == here.recorded
    for stat in here.recorded:
        assert np.array_equal(there.series[stat], here.series[stat], equal_nan=True)
        assert np.array_equal(there.state(stat), here.state(stat))
    assert [event.text for event in there.events] == [event.text for event in here.events]
    for twice in ([target, tmp_path / "ranks"], [s3.url("ranks"), s3.url("ranks")]):
        assert open_run(twice).steps.tolist() == list(range(60))
