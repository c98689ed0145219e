"""The catalogue itself: names, documentation, and that no check falls over odd runs."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.making import make_run

from gradwatch import checks
from gradwatch.checks import CHECKS
from gradwatch.checks.explain import summary, text
from gradwatch.diagnosis import diagnose
from gradwatch.run import Run
from gradwatch.stats import Kind, Stat, State

TAXONOMY = """nonfinite exploding-gradient vanishing-gradient gradient-spikes no-gradient
not-updated dead-units saturation symmetric-weights bad-init weight-collapse weight-explosion
update-ratio-too-small update-ratio-too-large loss-oscillation loss-spike divergence
slow-convergence stale-gradients input-scale norm-misuse output-misuse overfitting
update-lost-to-rounding""".split()  # noqa: SIM905


def test_every_fault_of_the_taxonomy_has_its_check() -> None:
    assert set(TAXONOMY) <= {check.NAME for check in CHECKS}


def test_names_are_unique_and_match_their_modules() -> None:
    names = [check.NAME for check in CHECKS]
    assert len(set(names)) == len(names)
    folder = Path(checks.__file__).parent
    assert all((folder / f"{name.replace('-', '_')}.py").is_file() for name in names)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.NAME)
def test_the_docstring_says_what_is_seen_why_it_hurts_and_what_helps(check: checks.Check) -> None:
    body = check.__doc__ or ""
    for part in ("What is seen", "Why it hurts", "What helps", "Threshold"):
        assert part in body, part
    assert summary(check).endswith(".")
    assert text(check).startswith(check.NAME)


ODD = st.sampled_from([0.0, 1.0, -1.0, 1e-30, 1e30, float("nan"), float("inf"), 0.5, 1e4])


@st.composite
def odd_runs(draw: st.DrawFn) -> Run:
    """Runs with any few statistics recorded, any values, any gaps, any states."""
    steps = draw(st.integers(0, 70))
    width = draw(st.integers(0, 3))
    random = np.random.default_rng(draw(st.integers(0, 1000)))
    chosen = draw(st.sets(st.sampled_from(Stat), max_size=12))
    palette = np.array(draw(st.lists(ODD, min_size=1, max_size=6)))
    series, states = {}, {}
    for stat in chosen:
        count = {Kind.PARAMETER: width, Kind.LAYER: width, Kind.GROUP: 0}[stat.kind]
        series[stat] = random.choice(palette, (steps, count))
        states[stat] = random.integers(0, len(State), (steps, count))
    names = draw(st.sets(st.sampled_from(["loss", "val_loss", "stale", "skipped", "input_rms"])))
    return make_run(
        series,
        names=[f"layer{i}.weight" for i in range(width)],
        layers=[f"layer{i}" for i in range(width)],
        states=states,
        scalars={name: random.choice(palette, steps) for name in names},
        steps=list(range(steps)),
    )


@settings(max_examples=120, deadline=None)
@given(odd_runs())
def test_no_check_falls_over_an_odd_run(run: Run) -> None:
    failed = [item for item in diagnose(run).skipped if "itself failed" in item.reason]
    assert not failed
