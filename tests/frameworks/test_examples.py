"""The examples of frameworks and the notebook run, learn, and are not called sick."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from tests.examples.running import EXAMPLES, assert_well, change, environment, run_example

import gradwatch


@pytest.mark.parametrize(
    ("file", "steps"), [("trainer.py", 200), ("with_lightning.py", 100), ("with_accelerate.py", 80)]
)
def test_an_example_learns_and_is_not_called_sick(file: str, steps: int, tmp_path: Path) -> None:
    run = run_example(file, tmp_path)
    assert_well(run, steps)
    assert change(run, "loss") < -0.2
    # the budget may stretch the cadence, never to nothing
    assert run.measured("grad_norm").any(axis=1).sum() >= 10


def test_the_notebook_shows_a_card_the_run_and_the_diagnosis(tmp_path: Path) -> None:
    notebook = nbformat.read(EXAMPLES / "notebook.ipynb", as_version=4)
    client = NotebookClient(notebook, resources={"metadata": {"path": str(tmp_path)}}, timeout=120)
    client.execute(env=environment())
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    card, run, diagnosis = (output["data"]["text/html"] for output in outputs)
    (place,) = (tmp_path / "runs").iterdir()
    assert f"<code>runs/{place.name}</code>" in card
    assert f"<code>!gradwatch diagnose {place.name}</code>" in card
    assert "<svg" in run
    assert "no finding" in diagnosis
    assert_well(gradwatch.open_run(place), 300)
