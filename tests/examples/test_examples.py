"""Every example is short, runs as it stands, learns, and is not called sick."""

import ast
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.examples.running import EXAMPLES, assert_well, change, run_example

import gradwatch

MOST_LINES = 60
STEPS = {
    "accumulation_amp.py": 120,
    "actor_critic.py": 250,
    "ddp.py": 300,
    "fsdp2.py": 120,
    "gan.py": 800,
    "lora.py": 300,
    "plain_loop.py": 300,
}
OF_FRAMEWORKS = {"trainer.py", "with_accelerate.py", "with_lightning.py"}
"""Run by `make test-frameworks`, as the notebook is."""
RANKS = {"ddp.py": 2, "fsdp2.py": 2}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], gradwatch.Run]]:
    """Each example is run once, two at a time."""
    pool = ThreadPoolExecutor(2)
    runs = {
        file: pool.submit(run_example, file, tmp_path_factory.mktemp("run"), RANKS.get(file, 1))
        for file in STEPS
    }
    yield lambda file: runs[file].result()
    pool.shutdown(cancel_futures=True)


def test_every_example_is_run() -> None:
    there = {path.name for path in EXAMPLES.glob("*.py")}
    assert there == STEPS.keys() | OF_FRAMEWORKS | {"demo.py"}


@pytest.mark.parametrize("file", sorted(STEPS.keys() | OF_FRAMEWORKS))
def test_an_example_is_short_and_says_how_to_run_it(file: str) -> None:
    text = (EXAMPLES / file).read_text()
    said = ast.get_docstring(ast.parse(text)) or ""
    assert len(text.splitlines()) <= MOST_LINES
    assert f" examples/{file}" in said
    assert "Added for gradwatch:" in said


def test_the_notebook_is_short_and_was_saved_without_outputs() -> None:
    cells = json.loads((EXAMPLES / "notebook.ipynb").read_text())["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert sum(len(cell["source"]) for cell in code) <= MOST_LINES
    assert not any(cell["outputs"] for cell in code)


@pytest.mark.parametrize("file", STEPS)
def test_an_example_is_not_called_sick(file: str, trained: Callable[[str], gradwatch.Run]) -> None:
    assert_well(trained(file), STEPS[file])


@pytest.mark.parametrize("file", sorted(STEPS.keys() - {"actor_critic.py", "gan.py"}))
def test_the_loss_falls(file: str, trained: Callable[[str], gradwatch.Run]) -> None:
    assert change(trained(file), "loss") < -0.2


def test_the_actor_earns_more(trained: Callable[[str], gradwatch.Run]) -> None:
    assert change(trained("actor_critic.py"), "reward") > 0.2


def test_the_networks_of_the_gan_have_names(trained: Callable[[str], gradwatch.Run]) -> None:
    run = trained("gan.py")
    assert {name.split(".")[0] for name in run.names} == {"G", "D"}
    assert {"G.loss", "D.loss"} <= set(run.scalars)


def test_accumulated_parts_are_one_step(trained: Callable[[str], gradwatch.Run]) -> None:
    counts = trained("accumulation_amp.py").scalars["backwards"]
    assert set(counts[counts == counts]) == {4.0}


@pytest.mark.parametrize("file", RANKS)
def test_all_ranks_are_in_one_run(file: str, trained: Callable[[str], gradwatch.Run]) -> None:
    ranks = trained(file).ranks
    assert set(ranks) == {0, 1}
    losses = [rank.scalars["loss"] for rank in ranks.values()]
    assert (losses[0] != losses[1])[:-1].all()  # each has its own batches
