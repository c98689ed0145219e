"""What is due when, and the budget, with costs made up."""

import pytest

from gradwatch.record.guard import OverheadTimer
from gradwatch.record.schedule import ALLOWANCE, Pace, Schedule, StepClock, StepPlan
from gradwatch.stats import Family

FAMILIES = frozenset(Family)


def plan(step: int, k: int, every: int | None = None) -> StepPlan:
    return Schedule(FAMILIES, 0, every).plan(step, k)


def test_the_first_steps_record_everything() -> None:
    for step in range(10):
        assert plan(step, k=64) == (step, FAMILIES, True)


def test_families_follow_their_powers_of_two() -> None:
    for k in (1, 2, 8):
        for step in range(10, 400):
            _, found, full = plan(step, k)
            assert (Family.GRAD in found) == (step % k == 0)
            assert (Family.UPDATE in found) == (step % (4 * k) == 0)
            assert (Family.WEIGHT in found) == (step % (16 * k) == 0)
            assert full == (step % (16 * k) == 0)


def test_a_coarser_cadence_is_part_of_the_finer_one() -> None:
    for step in range(10, 1000):
        assert plan(step, k=4).due <= plan(step, k=2).due


def test_every_is_taken_at_its_word() -> None:
    assert [s for s in range(20) if plan(s, k=8, every=5).due] == [0, 5, 10, 15]
    assert plan(15, k=8, every=5).due == FAMILIES


def test_a_resumed_training_records_everything_on_its_first_step() -> None:
    schedule = Schedule(FAMILIES, 1001, None)
    assert schedule.plan(1001, 8) == (1001, FAMILIES, True)
    assert schedule.plan(1002, 8).due == frozenset()
    assert schedule.idle(1001, 8) == 0
    assert schedule.idle(1002, 8) == 6


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
        found = plan(step, pace.k).due
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
