"""`diagnose` from runs made by hand."""

import json
from dataclasses import replace

import numpy as np
import pytest
from tests.making import make_run

from gradwatch.checks import TRAINING_CHECKS
from gradwatch.cli.diagnose import lines
from gradwatch.diagnosis import Diagnosis, diagnose
from gradwatch.errors import GradwatchError
from gradwatch.finding import Finding, Severity
from gradwatch.jsonio import dumps
from gradwatch.run import Run
from gradwatch.stats import Stat

NAMES = ["in.weight", "mid.weight", "out.weight"]


def healthy_run(**changes: object) -> Run:
    random = np.random.default_rng(0)
    series = {
        "grad_norm": np.exp(random.normal(0, 0.2, (120, 3))),
        "update_ratio": np.full((120, 3), 1e-3),
        "weight_norm": np.full((120, 3), 4.0),
    }
    series.update(changes)  # type: ignore[arg-type]
    return make_run(series, names=NAMES, scalars={"loss": np.geomspace(1.6, 0.1, 120)})


class Blind:
    """A check that cannot read what it wants to look at."""

    NAME, NEEDS = "blind", frozenset[str]()

    def __init__(self, error: Exception) -> None:
        self.error = error

    def check(self, run: Run) -> list[Finding]:
        raise self.error


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (GradwatchError("It claims too much."), "could not look: It claims too much."),
        (KeyError("x"), "the check itself failed: KeyError: 'x'"),
    ],
)
def test_a_run_that_could_not_be_looked_at_is_not_called_healthy(
    error: Exception, reason: str
) -> None:
    found = diagnose(healthy_run(), [*TRAINING_CHECKS, Blind(error)])  # type: ignore[list-item]
    assert (found.verdict, found.healthy) == ("unknown", None)
    assert found.line.endswith("; blind could not look")
    assert [item.reason for item in found.skipped if item.check == "blind"] == [reason]


def test_a_healthy_run_is_healthy_and_says_what_was_checked() -> None:
    found = diagnose(healthy_run())
    assert found.healthy is True
    assert found.findings == ()
    assert "exploding-gradient" in found.checked
    assert {item.check for item in found.skipped} >= {"overfitting", "saturation"}
    assert (found.verdict, found.counts) == ("healthy", {"findings": 0, "notes": 0})
    assert not set(found.checked) & {item.check for item in found.skipped}


def test_plain_data_is_judged_like_the_run_it_makes() -> None:
    norms = {"a": [1e-9] * 20, "b": [1.0] * 20}
    found = diagnose(norms)
    assert [item.layers for item in found.findings] == [("a",)]
    assert found == diagnose(Run.from_norms(norms))
    for data, word in ((norms["a"], "bare list"), ({"my.a": "text"}, "my.a"), (None, "got None")):
        with pytest.raises(GradwatchError, match=word):
            diagnose(data)


def test_every_check_that_concerns_a_training_either_looked_or_says_why_not() -> None:
    found = diagnose(healthy_run())
    silent = {c.NAME for c in TRAINING_CHECKS} - set(found.checked)
    silent -= {item.check for item in found.skipped}
    assert silent == {"loss-scale-overflow"}  # no scaler, nothing to scale


def test_checks_of_what_a_training_does_not_have_are_not_listed() -> None:
    """Adam's checks without Adam, flat activations where there are none: they never apply."""
    series = {"grad_norm": np.ones((60, 3)), "update_norm": np.ones((60, 3))}
    bare = make_run(series, names=NAMES, scalars={"loss": np.geomspace(2, 0.1, 60)})
    named = {"eps-dominated-adam", "stale-second-moment", "loss-scale-overflow"}
    assert not named & {item.check for item in diagnose(bare).skipped}
    without = make_run({"grad_norm": np.ones((60, 3))}, names=NAMES)
    assert {"eps-dominated-adam", "saturation"} <= {s.check for s in diagnose(without).skipped}


def test_a_run_whose_steps_nobody_saw_says_what_to_call() -> None:
    told = {"backwards": 60, "losses": 60, "moved": True, "optimizers": []}
    info = {"complete": True, "without_step": told}
    run = make_run(scalars={"loss": [1.0]}, names=NAMES, info=info)
    found = diagnose(run)
    assert (found.verdict, found.steps) == ("unknown", 0)
    assert "call watcher.step()" in found.reason
    assert all(len(line) <= 60 for line in lines(found, 60))


@pytest.mark.parametrize(
    ("severities", "verdict", "counted"),
    [
        ((), "healthy", "no finding"),
        ((Severity.INFO, Severity.INFO), "notes", "no finding, 2 notes"),
        ((Severity.WARNING,), "sick", "1 finding"),
        ((Severity.CRITICAL, Severity.WARNING, Severity.INFO), "sick", "2 findings, 1 note"),
    ],
)
def test_one_counting(severities: tuple[Severity, ...], verdict: str, counted: str) -> None:
    items = tuple(Finding("low-rank", s, (), 0, 0, "text") for s in severities)
    healthy = all(s is Severity.INFO for s in severities)
    found = Diagnosis(items, (), (), healthy, steps=500, layers=3)
    assert (found.verdict, found.counted) == (verdict, counted)
    assert found.line == f"{counted} in 3 layers, 500 steps"
    assert found.to_dict()["verdict"] == verdict
    assert f"<b>{verdict}</b>: {counted}" in found._repr_html_()
    unknown = replace(found, healthy=None, reason="no loss was logged")
    assert (unknown.verdict, unknown.line) == ("unknown", f"{found.line}; no loss was logged")


def test_without_a_loss_health_is_unknown() -> None:
    run = make_run({"grad_norm": np.ones((60, 3))}, names=NAMES)
    found = diagnose(run)
    assert found.healthy is None
    assert found.verdict == "unknown"
    reasons = [item.reason for item in found.skipped if item.check == "divergence"]
    assert "watcher.log(loss=loss)" in reasons[0]


def test_an_empty_run_is_unknown_and_raises_nothing() -> None:
    found = diagnose(make_run())
    assert found.healthy is None
    assert found.findings == ()


def test_findings_make_a_run_sick() -> None:
    norms = np.ones((120, 3))
    norms[50:, 1] = 5e3
    found = diagnose(healthy_run(grad_norm=norms))
    assert found.healthy is False
    assert found.findings[0].check == "exploding-gradient"
    assert found.worst is not None
    assert found.worst >= Severity.WARNING


def test_a_check_that_fails_costs_only_itself() -> None:
    class Broken:
        """Broken."""

        NAME = "broken"
        NEEDS = frozenset({Stat.GRAD_NORM})

        @staticmethod
        def check(run: Run):  # type: ignore[no-untyped-def]
            raise ZeroDivisionError("no")

    found = diagnose(healthy_run(), [*TRAINING_CHECKS, Broken()])  # type: ignore[list-item]
    (broken,) = [s for s in found.skipped if s.check == "broken"]
    assert broken.reason.startswith("the check itself")
    assert "exploding-gradient" in found.checked


def sick() -> Run:
    loss = np.r_[np.geomspace(1.6, 0.5, 100), np.geomspace(0.5, 80, 60)]
    ratio, update = np.full((160, 3), 1e-3), np.full((160, 3), 0.01)
    ratio[90:, 0], update[90:, 0] = 0.6, 6.0
    norms = np.ones((160, 3))
    norms[100:] = 40
    return make_run(
        {"grad_norm": norms, "update_ratio": ratio, "update_norm": update},
        names=NAMES,
        scalars={"loss": loss},
        info={"name": "bad <b>run</b>"},
    )


def test_one_root_with_the_order_of_events() -> None:
    found = diagnose(sick())
    grave = found.at_least(Severity.WARNING)
    assert len(grave) == 1
    assert grave[0].check == "update-ratio-too-large"
    assert grave[0].layers[0] == "in"
    assert "divergence" in [item.check for item in grave[0].consequences]
    assert found.timeline[0].signal == "update"
    assert found.timeline[0].layer == "in"
    steps = [onset.step for onset in found.timeline]
    assert steps == sorted(steps)


def test_json_carries_the_same() -> None:
    found = diagnose(sick())
    data = json.loads(dumps(found.to_dict()))
    assert data["format"] == 1
    assert data["healthy"] is False
    assert [Finding.from_dict(item) for item in data["findings"]] == list(found.findings)
    assert data["checked"] == list(found.checked)


def test_html_is_small_and_escaped() -> None:
    run = make_run(
        {"grad_norm": np.c_[np.full(60, 1e-9), np.ones(60)]},
        names=["<script>x</script>.weight", "out.weight"],
    )
    html = diagnose(run)._repr_html_()
    assert "vanishing-gradient" in html
    assert "<script>" not in html
    assert "&lt;script&gt;" in html
    assert len(html) < 20_000


def test_the_terminal_text_fits_eighty_columns() -> None:
    names = [f"{'block.' * 20}{i}.weight" for i in range(3)]
    run = make_run({"grad_norm": np.tile([1e-9, 1e-3, 1.0], (60, 1))}, names=names)
    text = lines(diagnose(run))
    import click

    assert all(len(click.unstyle(line)) <= 80 or "block." in line for line in text)
    assert any("explain vanishing-gradient" in line for line in text)


def test_control_characters_never_reach_the_terminal() -> None:
    run = make_run(
        {"grad_norm": np.tile([1e-9, 1.0], (60, 1))}, names=["\x1b[2J\n.weight", "b.weight"]
    )
    import click

    assert not any("\x1b" in click.unstyle(line) or "\n" in line for line in lines(diagnose(run)))


def test_a_check_that_cannot_look_says_why_in_words() -> None:
    """A name of a number is no reason a person can act on."""
    found = diagnose(healthy_run())
    reasons = {item.check: item.reason for item in found.skipped}
    assert reasons["overfitting"] == "no validation loss was logged: watcher.log(val_loss=…)"
    assert not [reason for reason in reasons.values() if reason.startswith("not recorded: s")]


# -- the order of events ---------------------------------------------------------------------------


def ends_in_nan(*columns: np.ndarray) -> Run:
    """Gradients of three layers with a noise of their own; the loss is not finite at step 137."""
    random = np.random.default_rng(0)
    noise = random.lognormal(0, 0.4, (140, 3))
    gradients = np.column_stack([*columns, *[np.ones(140)] * (3 - len(columns))]) * noise
    loss = np.geomspace(2, 1, 140) * random.lognormal(0, 0.4, 140)
    bad = np.where(np.arange(140) >= 137, 1.0, 0.0)
    loss[137:] = np.nan
    scalars = {"loss": loss, "loss_nonfinite": bad}
    return make_run({"grad_norm": gradients}, names=NAMES, scalars=scalars)


def events(run: Run) -> list[tuple[str, int]]:
    return [(onset.layer, onset.step) for onset in diagnose(run).timeline]


def test_noise_before_the_fault_is_no_event() -> None:
    assert events(ends_in_nan()) == []


def test_what_came_back_before_the_fault_is_no_event() -> None:
    column = np.ones(140)
    column[110:115] = 60.0
    assert events(ends_in_nan(column)) == []


def test_what_left_its_range_until_the_fault_is_told_in_order() -> None:
    first, second = np.ones(140), np.ones(140)
    first[120:], second[130:] = 200.0, 200.0
    assert events(ends_in_nan(second, first)) == [("mid", 120), ("in", 130)]


def test_what_grows_slowly_as_the_network_learns_is_no_event() -> None:
    assert events(ends_in_nan(np.geomspace(1, 20, 140))) == []
