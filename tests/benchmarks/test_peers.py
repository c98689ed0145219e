"""The tables that translate other packages' words, without the packages."""

import pytest
import torch
from benchmarks.peers.diagnosers import DIAGNOSERS, Diagnoser
from benchmarks.peers.names import TABLES, claims
from benchmarks.peers.zoo import OUR_TABLE, Ledger, Tally, spread, watched

from gradwatch.zoo.families import half
from gradwatch.zoo.score import TAXONOMY, Row, Score, prepare


@pytest.mark.parametrize("name", TABLES)
def test_every_name_is_in_the_taxonomy(name: str) -> None:
    assert TABLES[name]
    assert claims(TABLES[name])
    assert claims(TABLES[name]) <= TAXONOMY


def test_every_diagnoser_has_a_table() -> None:
    assert set(DIAGNOSERS) == set(TABLES)


def row(strong: set[str], weak: set[str], said: set[str], *, sick: bool = True) -> Row:
    return Row("made/up", 0, sick, frozenset(strong), frozenset(weak), frozenset(said), "", None)


def test_ours_is_counted_as_the_zoo_counts_it() -> None:
    rows = [
        row({"nonfinite", "divergence"}, {"saturation"}, {"nonfinite", "saturation", "bad-init"}),
        row({"dead-units"}, set(), {"dead-units", "heavy-tails"}),
        row(set(), set(), {"bad-init"}, sick=False),
        row(set(), set(), set(), sick=False),
    ]
    ours, score = Tally(OUR_TABLE), Score(rows)
    for one in rows:
        ours.add(one, one.reported)
    hits, there, claimed, wrong = ours.counts()
    assert (hits, there - hits, wrong) == (score.hits, score.misses, score.extras) == (2, 1, 1)
    assert claimed == there
    assert ours.alarms(counted=False) == len(score.alarms) == 1


def test_a_word_with_two_readings_is_right_if_either_is_true() -> None:
    tally = Tally({"flat": ("no-gradient", "not-updated"), "advice": ()})
    tally.add(row({"not-updated"}, set(), set()), {"flat", "advice"})
    tally.add(row({"nonfinite"}, {"no-gradient"}, set()), {"flat"})
    tally.add(row({"nonfinite"}, set(), set()), {"flat"})
    tally.add(row(set(), set(), set(), sick=False), {"advice"})
    assert tally.counts() == (1, 3, 1, 1)
    assert (tally.alarms(counted=False), tally.alarms(counted=True)) == (1, 0)


def test_a_training_is_the_same_each_time() -> None:
    torch.set_num_threads(1)
    family = next(f for f in half("report") if f.name == "mlp/few-steps")
    ledgers = [Ledger(), Ledger()]
    for ledger in ledgers:
        assert watched(prepare(family, 3), Diagnoser, ledger) == set()
    assert ledgers[0].losses == ledgers[1].losses
    assert len(ledgers[0].losses) == prepare(family, 3).steps


def test_a_part_of_the_families_keeps_both_kinds() -> None:
    chosen = spread(half("report"), 6)
    assert len(chosen) == 6
    assert {family.sick for family in chosen} == {True, False}
