"""The zoo: its size, its labels, and the diagnosis on a few of its trainings."""

import ast
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

import gradwatch.zoo
from gradwatch.cli.zoo import command, table
from gradwatch.finding import Severity
from gradwatch.zoo.criteria import labels
from gradwatch.zoo.families import EVERY, FAMILIES, chosen, half
from gradwatch.zoo.score import Row, Score, Trial, attempt, finished, prepare, score
from gradwatch.zoo.training import Draw, Length, train
from gradwatch.zoo.witness import Witness

BY_NAME = {family.name: family for family in FAMILIES}


def test_there_are_forty_sick_families_and_twenty_healthy_ones() -> None:
    assert sum(family.sick for family in FAMILIES) >= 40
    assert sum(not family.sick for family in FAMILIES) >= 20
    assert len({family.kind for family in FAMILIES}) == 8
    assert len(BY_NAME) == len(FAMILIES)
    assert all(family.about.endswith(".") for family in FAMILIES)


def test_the_halves_share_nothing_and_cover_everything() -> None:
    calibrate, report = half("calibrate"), half("report")
    assert not set(calibrate) & set(report)
    assert set(calibrate) | set(report) == set(FAMILIES)


def test_labels_know_nothing_of_the_recorder_or_the_checks() -> None:
    folder = Path(gradwatch.zoo.__file__).parent
    for file in set(folder.rglob("*.py")) - {folder / "score.py"}:
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("gradwatch"):
                assert (node.module or "").startswith("gradwatch.zoo"), (file, node.module)


def label_names(name: str, seed: int = 0) -> set[str]:
    torch.manual_seed(seed)
    training = BY_NAME[name].make(Draw(seed))
    witness = Witness(training)
    train(training, [witness])
    witness.close()
    return {label.fault for label in labels(witness) if label.strong}


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("mlp/vanishing-sigmoid", "vanishing-gradient"),
        ("mlp/detached", "no-gradient"),
        ("mlp/never-zeroed", "stale-gradients"),
        ("cnn/norm-in-eval", "norm-misuse"),
        ("autoencoder/dead-code", "dead-units"),
    ],
)
def test_the_labeller_sees_the_planted_fault(name: str, fault: str) -> None:
    assert fault in label_names(name)


def test_the_labeller_sees_nothing_strong_in_a_healthy_training() -> None:
    assert label_names("mlp/adam-classifier") == set()


SICK = [
    ("mlp/forgotten-layer", "not-updated"),
    ("mlp/bad-batch-nan", "nonfinite"),
    ("mlp/never-zeroed", "stale-gradients"),
    ("cnn/norm-in-eval", "norm-misuse"),
    ("mlp/constant-start", "symmetric-weights"),
    ("mlp/rate-too-small", "update-ratio-too-small"),
]
HEALTHY = [
    "mlp/adam-classifier",
    "mlp/few-steps",
    "mlp/frozen-on-purpose",
    "residual/zero-gains",
    "lora/plain",
    "embedding/plain",
]


def judged(name: str) -> Trial:
    return attempt(BY_NAME[name], 0, every=1)  # the default cadence follows the clock


@pytest.mark.parametrize(("name", "fault"), SICK)
def test_the_planted_fault_is_found_in_its_layer(name: str, fault: str) -> None:
    trial = judged(name)
    found = [f for f in trial.diagnosis.everything() if f.severity > Severity.INFO]
    assert fault in {finding.check for finding in found}
    assert trial.diagnosis.healthy is False
    if trial.culprits:
        assert trial.diagnosis.findings[0].layers[0] in trial.culprits


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_trainings_are_left_in_peace(name: str) -> None:
    diagnosis = judged(name).diagnosis
    assert diagnosis.at_least(Severity.WARNING) == ()
    assert diagnosis.healthy is True


# -- scoring -----------------------------------------------------------------------------------


def row(sick: bool, strong: str, said: str, weak: str = "", right: bool | None = None) -> Row:
    sets = (frozenset(names.split()) for names in (strong, weak, said))
    return Row("f", 0, sick, *sets, first="", right_culprit=right)


def test_the_score_counts_what_it_says() -> None:
    result = Score(
        [
            row(True, "dead-units divergence", "dead-units", right=True),
            row(True, "saturation", "saturation bad-init dead-units", weak="bad-init", right=False),
            row(True, "", ""),
            row(False, "", ""),
            row(False, "", "clipping-every-step"),
            row(False, "gradient-spikes", ""),
        ]
    )
    assert (result.hits, result.misses, result.extras) == (2, 1, 1)
    assert result.precision == pytest.approx(2 / 3)
    assert result.recall == pytest.approx(2 / 3)
    assert result.f1 == pytest.approx(2 / 3)
    assert len(result.alarms) == 1
    assert len(result.healthy) == 2
    assert len(result.dropped) == 2
    assert result.culprits == (1, 2)
    assert result.by_check()["dead-units"] == (0, 1, 1, 1)
    assert any(line.startswith("F1") and "0.667" in line for line in table(result, verbose=True))


def test_a_killed_run_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[str, int, str]] = []

    def measured(job: tuple[str, int, str]) -> Row:
        if len(ran) == 3:
            raise KeyboardInterrupt
        ran.append(job)
        return replace(row(True, "dead-units", "dead-units"), family=job[0], seed=job[1],
                       length=job[2], onset_errors=(2,))  # fmt: skip

    monkeypatch.setattr("gradwatch.zoo.score.measure", measured)
    rows = tmp_path / "rows.jsonl"
    with pytest.raises(KeyboardInterrupt):
        score(["a", "b"], [1, 2], length=Length.LONG, rows=rows)
    with rows.open("a") as file:
        file.write('{"family": "b", "se')  # killed while it was writing
    assert list(finished(rows)) == ran == [("a", 1, "long"), ("a", 2, "long"), ("b", 1, "long")]
    ran.clear()
    result = score(["a", "b"], [1, 2], length=Length.LONG, rows=rows)
    assert ran == [("b", 2, "long")]
    assert [r.job for r in result.rows] == [(f, s, "long") for f in "ab" for s in (1, 2)]
    assert result.hits == 4
    assert result.onset_error == 2
    assert result.rows == list(finished(rows).values())


def test_lengths_are_those_of_the_recipe_or_as_said() -> None:
    family = BY_NAME["mlp/adam-classifier"]
    assert prepare(family, 0, Length.SHORT).steps == 60
    assert prepare(family, 0, Length.LONG).steps == 5000
    assert prepare(family, 0).steps == prepare(family, 0, Length.DEFAULT).steps > 60


def test_every_third_family_is_also_run_long() -> None:
    for of in ("first", "wider"):
        both = [chosen(of, name, Length.LONG) for name in ("calibrate", "report")]
        every = chosen(of, "all", Length.DEFAULT)
        assert set(both[0]) | set(both[1]) == set(every[::3])
        assert not set(both[0]) & set(both[1])


def test_the_command_lists_every_family() -> None:
    listed = CliRunner().invoke(command, [])
    assert listed.exit_code == 0
    assert all(family.name in listed.output for family in EVERY)


def test_an_unknown_family_is_refused() -> None:
    result = CliRunner().invoke(command, ["run", "mlp/nonsense"])
    assert "no family" in str(result.exception)
