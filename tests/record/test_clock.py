"""What is due when, and the budget, with costs made up."""

import pytest

from gradwatch.record.clock import (
    ALLOWANCE,
    Pace,
    StepClock,
    families_due,
    takes_histograms,
    takes_sketches,
)
from gradwatch.record.guard import OverheadTimer
from gradwatch.stats import Family

FAMILIES = frozenset(Family)


def test_the_first_steps_record_everything() -> None:
    for step in range(10):
        assert families_due(step, FAMILIES, k=64, every=None) == FAMILIES
        assert takes_histograms(step, k=64, every=None)


def test_families_follow_their_powers_of_two() -> None:
    for k in (1, 2, 8):
        for step in range(10, 400):
            found = families_due(step, FAMILIES, k=k, every=None)
            assert (Family.GRAD in found) == (step % k == 0)
            assert (Family.UPDATE in found) == (step % (4 * k) == 0)
            assert (Family.WEIGHT in found) == (step % (16 * k) == 0)
            assert takes_histograms(step, k=k, every=None) == (step % (16 * k) == 0)


def test_a_coarser_cadence_is_part_of_the_finer_one() -> None:
    for step in range(10, 1000):
        assert families_due(step, FAMILIES, k=4, every=None) <= families_due(
            step, FAMILIES, k=2, every=None
        )


def test_cosines_are_taken_between_neighbours() -> None:
    for k in (1, 4):
        recorded = range(12 * k, 60 * k, k)
        found = {step: takes_sketches(step, k=k, every=None) for step in recorded}
        assert sum(has for has, _ in found.values()) == len(recorded) // 2
        for step, (has, cosine) in found.items():
            if cosine and step > recorded[0]:
                assert has
                assert found[step - k][0]
    assert takes_sketches(3, k=8, every=None) == takes_sketches(7, k=1, every=7) == (True, True)


def test_every_is_taken_at_its_word() -> None:
    assert [s for s in range(20) if families_due(s, FAMILIES, k=8, every=5)] == [0, 5, 10, 15]
    assert families_due(15, FAMILIES, k=8, every=5) == FAMILIES


class FakeTimer(OverheadTimer):
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.spent = 0.0
        self.now = 0.0

    @property
    def wall(self) -> float:
        return self.now


def drive(pace: Pace, timer: FakeTimer, steps: range, step_time: float, costs: list[float]) -> None:
    """Train on paper: `costs` of an idle, a gradient, an update and a full step."""
    idle, grad, update, everything = costs
    for step in steps:
        found = families_due(step, FAMILIES, k=pace.k, every=None)
        cost = idle
        if Family.WEIGHT in found:
            cost = everything
        elif Family.UPDATE in found:
            cost = update
        elif found:
            cost = grad
        timer.spent += cost
        timer.now += step_time + cost
        pace.after(step, bool(found))


@pytest.mark.parametrize(
    ("step_time", "costs"),
    [
        (0.5e-3, [3e-6, 150e-6, 600e-6, 2e-3]),
        (8e-3, [14e-6, 500e-6, 2e-3, 5e-3]),
        (0.6, [20e-6, 6e-3, 20e-3, 50e-3]),
    ],
)
def test_the_budget_is_held(step_time: float, costs: list[float]) -> None:
    timer = FakeTimer()
    pace = Pace(timer, 0.01, lambda: 0.0)
    steps = int(600.0 / step_time)
    steps = min(steps, 400_000)
    drive(pace, timer, range(steps), step_time, costs)
    assert timer.spent - ALLOWANCE <= 1.2 * 0.01 * timer.wall


@pytest.mark.parametrize(
    ("step_time", "costs"),
    [
        (0.5e-3, [2e-6, 150e-6, 600e-6, 2e-3]),
        (8e-3, [3e-6, 500e-6, 2e-3, 5e-3]),
        (1.2, [20e-6, 15e-3, 40e-3, 80e-3]),
    ],
)
def test_from_the_end_of_the_free_seconds_on_the_budget_holds(
    step_time: float, costs: list[float]
) -> None:
    timer, step = FakeTimer(), 0
    pace = Pace(timer, 0.01, lambda: 0.0)
    while timer.spent < ALLOWANCE:
        drive(pace, timer, range(step, step + 1), step_time, costs)
        step += 1
    spent, wall = timer.spent, timer.wall
    while timer.wall < wall + 60.0:
        drive(pace, timer, range(step, step + 1), step_time, costs)
        step += 1
    assert timer.spent - spent <= 1.1 * 0.01 * (timer.wall - wall)


def test_short_runs_are_recorded_whole() -> None:
    timer = FakeTimer()
    pace = Pace(timer, 0.01, lambda: 0.0)
    drive(pace, timer, range(1000), 0.5e-3, [3e-6, 150e-6, 600e-6, 2e-3])
    assert pace.k == 1


def test_the_cadence_comes_back_when_steps_grow_longer() -> None:
    timer = FakeTimer()
    pace = Pace(timer, 0.01, lambda: 0.0)
    costs = [3e-6, 150e-6, 600e-6, 2e-3]
    drive(pace, timer, range(40_000), 0.5e-3, costs)
    stretched = pace.k
    drive(pace, timer, range(40_000, 60_000), 0.1, costs)
    assert stretched >= 16
    assert pace.k == 1


class LateTimer(FakeTimer):
    def __init__(self) -> None:
        super().__init__()
        self.on_devices = 0.0


@pytest.mark.parametrize("delay", [1, 3])
def test_time_on_a_device_counts_where_it_is_the_larger(delay: int) -> None:
    """Told some steps later, it makes for the same cadence as if it had been spent here."""
    here, there = LateTimer(), LateTimer()
    paces = Pace(here, 0.01, lambda: 0.0), Pace(there, 0.01, lambda: 0.0)
    costs = [3e-6, 3e-3, 6e-3, 30e-3]
    drive(paces[0], here, range(20_000), 8e-3, costs)
    told: dict[int, float] = {}
    for step in range(20_000):
        # Of a step the device takes the costs above, we ourselves a tenth.
        found = families_due(step, FAMILIES, k=paces[1].k, every=None)
        turn = 3 if Family.WEIGHT in found else 2 if Family.UPDATE in found else int(bool(found))
        if found:
            told[step + delay] = costs[turn]
        there.spent += costs[turn] / 10
        there.now += 8e-3 + costs[turn]
        if step in told:
            paces[1].on_device(step - delay, told.pop(step))
        paces[1].after(step, bool(found))
    assert here.spent == pytest.approx(there.spent, rel=0.2)
    assert paces[0].k == paces[1].k > 4
    assert there.on_devices == pytest.approx(there.spent, rel=0.05)


def test_time_on_a_device_that_is_the_smaller_counts_for_nothing() -> None:
    timer = LateTimer()
    pace = Pace(timer, 0.01, lambda: 0.0)
    timer.spent, timer.now = 2e-3, 10e-3
    pace.after(0, recorded=True)
    pace.on_device(0, 1e-3)
    assert (timer.spent, timer.on_devices) == (2e-3, 1e-3)
    pace.on_device(0, 5e-3)
    assert timer.spent == pytest.approx(5e-3)


def test_two_optimizers_make_one_step() -> None:
    clock = StepClock(0)
    clock.expect(["D", "G"])
    seen = []
    for name in "DGDGDG":
        clock.enter(name)
        seen.append((clock.number, clock.complete, clock.coming))
    assert [number for number, _, _ in seen] == [0, 0, 1, 1, 2, 2]
    assert [done for _, done, _ in seen] == [False, True] * 3
    assert [coming for _, _, coming in seen] == [0, 1, 1, 2, 2, 3]


def test_an_optimizer_that_stays_away_is_not_waited_for_twice() -> None:
    clock = StepClock(5)
    clock.expect(["D", "G"])
    for name in "DD":
        clock.enter(name)
    assert clock.number == 6
    assert clock.complete
