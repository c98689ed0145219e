"""Which kernel answers, and that a machine with a compiler has the compiled one."""

import os
import shutil
import subprocess
import sys

import pytest

from gradwatch import kernel


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_machine_with_a_compiler_has_the_compiled_kernel(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with capsys.disabled():
        print(f"\n[kernel: {kernel.instruction_set}; available: {', '.join(kernel.available())}]")
    has_compiler = any(map(shutil.which, ("cc", "gcc", "clang")))
    assert not has_compiler or len(kernel.available()) > 1, (
        "a C compiler is here but gradwatch.kernel._native is not: run `pip install -e .` and "
        "read what the compiler says"
    )


@pytest.mark.parametrize("name", kernel.available())
def test_the_environment_chooses(name: str) -> None:
    done = run(
        "import numpy as np; from gradwatch import kernel;"
        "print(kernel.instruction_set, kernel.measure_arrays([np.ones((2, 8), 'f4')])['norm'][0])",
        GRADWATCH_KERNEL=name,
    )
    assert done.stdout.split() == [name, "4.0"], done.stderr


def test_an_unknown_choice_is_explained() -> None:
    done = run("import gradwatch.kernel", GRADWATCH_KERNEL="mmx")
    assert done.returncode != 0
    assert "GRADWATCH_KERNEL is 'mmx'" in done.stderr


def test_everything_works_without_the_extension() -> None:
    done = run(
        "import sys; sys.modules['gradwatch.kernel._native'] = None\n"
        "import numpy as np; from gradwatch import kernel;"
        "print(kernel.instruction_set, kernel.measure_arrays([np.ones((2, 8), 'f4')])['norm'][0])",
        GRADWATCH_KERNEL="",
    )
    assert done.stdout.split() == ["none", "4.0"], done.stderr


def test_selecting_what_is_not_there() -> None:
    with pytest.raises(ValueError):
        kernel.select("mmx")
