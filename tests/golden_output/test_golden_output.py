"""Every command says the same as before; `make golden` writes down what it says now."""

from pathlib import Path

import pytest
from tests.golden_output.asking import answers, groups
from tests.golden_output.keeping import EXPECTED, compared
from tests.golden_output.making import make


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs and checkpoints, the same numbers every time."""
    folder = tmp_path_factory.mktemp("golden") / "made"
    make(folder)
    return folder


@pytest.mark.parametrize("group", groups())
def test_every_command_says_what_it_said(made: Path, group: str) -> None:
    found = compared(group, answers(group, made))
    if found:
        lines = "\n".join(found)
        pytest.fail(f"{lines}\n\nIf this is meant: make golden, and look at git diff.", False)


def test_nothing_is_kept_that_nobody_asks() -> None:
    folders = {
        str(path.parent.relative_to(EXPECTED)) for path in EXPECTED.rglob("*.*") if path.is_file()
    }
    assert folders == set(groups())
