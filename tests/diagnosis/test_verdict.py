"""What each door is told of a layer is what the findings say of it."""

import numpy as np

from gradwatch.diagnosis import Trouble, verdicts
from gradwatch.finding import Severity
from gradwatch.run import Run


def test_every_layer_a_finding_names_has_its_trouble() -> None:
    nan = float("nan")
    run = Run.from_norms(
        {"a": [1.0] * 20 + [nan] * 2, "b": [1.0] * 21 + [nan], "dead": [0.0] * 22, "ok": [1.0] * 22}
    )
    said = verdicts(run)
    assert said.layers_with(Trouble.NON_FINITE).keys() == {"a", "b"}
    assert said.layers_with(Trouble.DEAD).keys() == {"dead"}
    assert said.severity("dead") is Severity.CRITICAL
    assert said.severity("ok") is None
    assert said.troubles("a") == (Trouble.NON_FINITE,)
    (broken,) = [item for item in said.diagnosis.findings if item.check == "nonfinite"]
    assert (broken.layers, broken.consequences[0].layers) == (("a",), ("b",))


def test_all_starved_layers_are_named_however_many() -> None:
    norms = {f"faint{i}": np.full(30, 1e-7) for i in range(40)}
    run = Run.from_norms({**norms, "strong": np.ones(30)})
    assert len(verdicts(run).layers_with(Trouble.VANISHING)) == 40


def test_a_run_is_judged_once() -> None:
    run = Run.from_norms({"a": [1.0] * 10})
    assert verdicts(run) is verdicts(run)
