"""The witness sees each silent error in its family, and none in the recipe it was made from."""

from functools import cache

import pytest

from gradwatch.zoo.criteria import labels
from gradwatch.zoo.families import EVERY
from gradwatch.zoo.score import prepare
from gradwatch.zoo.training import Length, train
from gradwatch.zoo.witness import Label, Witness

BY_NAME = {family.name: family for family in EVERY}
SILENT = {
    "no-optimizer-step", "foreign-optimizer", "learning-rate-zero", "not-learning",
    "duplicated-batches", "constant-output", "target-scale", "output-range",
    "eval-mode-in-training", "dropout-in-evaluation", "class-imbalance", "lost-initialisation",
    "unused-input", "clipped-to-nothing",
}  # fmt: skip


@cache
def labelled(name: str, length: Length = Length.SHORT) -> dict[str, Label]:
    training = prepare(BY_NAME[name], 0, length)
    witness = Witness(training)
    train(training, [witness])
    witness.close()
    return {label.fault: label for label in labels(witness) if label.strong}


@pytest.mark.parametrize(
    ("name", "fault", "layers"),
    [
        ("table/no-step", "no-optimizer-step", ""),
        ("towers/second-optimizer-silent", "no-optimizer-step", "thing.0 thing.2"),
        ("seq2seq/foreign-optimizer", "foreign-optimizer", ""),
        ("audio/halved-every-step", "learning-rate-zero", ""),
        ("mixer/batches-twice", "duplicated-batches", ""),
        ("table/unscaled-targets", "target-scale", ""),
        ("table/tiny-targets", "target-scale", ""),
        ("table/sigmoid-on-output", "output-range", "6"),
        ("gcn/evaluation-mode", "eval-mode-in-training", ""),
        ("bilstm/never-back-to-training", "eval-mode-in-training", ""),
        ("audio/norms-in-validation", "dropout-in-evaluation", ""),
        ("resnet/loaded-again", "lost-initialisation", "conv1"),
        ("towers/ignored-input", "unused-input", ""),
        ("table/clipped-to-nothing", "clipped-to-nothing", ""),
    ],
)
def test_the_fault_is_seen_in_its_family(name: str, fault: str, layers: str) -> None:
    found = labelled(name)
    assert fault in found
    assert found[fault].layers == frozenset(layers.split())


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("classifier/labels-of-other-rows", "not-learning"),
        ("rare/never-predicted", "class-imbalance"),
        ("resnet/dropout-of-almost-all", "constant-output"),
    ],
)
def test_faults_that_need_time_to_show(name: str, fault: str) -> None:
    assert fault in labelled(name, Length.DEFAULT)


@pytest.mark.parametrize(
    "name",
    [
        "table/as-published",
        "table/plain-descent",
        "towers/as-published",
        "seq2seq/as-published",
        "audio/as-published",
        "mixer/as-published",
        "gcn/as-published",
        "bilstm/validated",
        "classifier/as-published",
        "rare/weighted",
        # near misses: two optimizers that step, a rate that ends at zero, one batch for ever,
        # clipping on every step that Adam makes up for, an average beside the model
        "towers/two-optimizers",
        "seq2seq/cosine-to-zero",
        "table/one-fixed-batch",
        "resnet/adam-clipped-always",
        "audio/moving-average",
        "table/tanh-within-range",
    ],
)
def test_nothing_silent_is_seen_in_a_healthy_one(name: str) -> None:
    assert not SILENT & set(labelled(name))


def test_the_onset_is_the_step_of_the_change() -> None:
    steps = prepare(BY_NAME["resnet/loaded-again"], 0, Length.SHORT).steps
    onset = labelled("resnet/loaded-again")["lost-initialisation"].onset
    assert onset == int(0.3 * steps) + 1
