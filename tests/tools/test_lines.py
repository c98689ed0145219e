"""Code lines are counted without blank lines, comments and docstrings, and held to limits."""

from pathlib import Path

import pytest

from tools import lines

SMALL = '''"""A docstring,
of two lines."""

import os  # code with a comment behind it

# a comment


def join(a: str, b: str) -> str:
    """One line."""
    text = """not a docstring:
    a text that is used
    """

    return os.path.join(
        a,
        b + text,
    )


NAME = "x"
"""What a constant is for."""
'''
C_FILE = "/* a comment\n * of two lines */\n\n// another\nint one(void) {\n    return 1;\n}\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """16 code lines of Python in three places, 3 of C."""
    for name, text in {
        "small/__init__.py": "",
        "small/join.py": SMALL,
        "small/deeper/one.py": "ONE = 1\n",
        "small/deeper/one.c": C_FILE,
        "large/two.py": "TWO = (\n    1,\n    1,\n)\n",
        "alone.py": "ALONE = True\n",
        "py.typed": "",
    }.items():
        path = tmp_path / "src" / "gradwatch" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    limit(tmp_path)
    return tmp_path


def limit(project: Path, **changed: int | None) -> None:
    """Write limits that just hold, but for those changed; None leaves one out."""
    limits = {"small": 11, "large": 4, "top-level modules": 1, "C": 3, "all Python": 16} | changed
    kept = [f'"{name}" = {number}\n' for name, number in limits.items() if number is not None]
    (project / "pyproject.toml").write_text("[tool.gradwatch.lines]\n" + "".join(kept))


def test_prose_and_blank_lines_are_free() -> None:
    assert lines.code_lines(SMALL) == 10
    assert lines.code_lines('"""Only\nprose."""\n\n# and a comment\n') == 0


def test_a_text_that_is_used_is_code() -> None:
    assert lines.code_lines('TEXT = """one\n\n# two\n"""\n') == 4


def test_prose_of_c_is_free() -> None:
    assert lines.c_lines(C_FILE) == 3


def test_folders_count_what_is_below_them(project: Path) -> None:
    counted = lines.count(project / "src" / "gradwatch")
    assert counted == {"C": 3, "large": 4, "small": 11, "top-level modules": 1, "all Python": 16}


def test_at_the_limit_is_within_it(project: Path, capsys: pytest.CaptureFixture) -> None:
    assert lines.main(["--check"], project) == 0
    assert capsys.readouterr().out == "Every package is within its limit of code lines.\n"


@pytest.mark.parametrize(
    ("name", "number"), [("small", 11), ("C", 3), ("all Python", 16), ("top-level modules", 1)]
)
def test_over_the_limit_fails(
    project: Path, capsys: pytest.CaptureFixture, name: str, number: int
) -> None:
    limit(project, **{name: number - 1})
    assert lines.main(["--check"], project) == 1
    (said,) = capsys.readouterr().out.splitlines()
    assert said == (
        f"Expected at most {number - 1} code lines in {name!r}, counted {number}. Make it smaller; "
        "if it must grow, raise its limit in [tool.gradwatch.lines] of pyproject.toml and say why "
        "in the commit."
    )


def test_a_package_without_a_limit_fails(project: Path, capsys: pytest.CaptureFixture) -> None:
    limit(project, large=None)
    assert lines.main(["--check"], project) == 1
    (said,) = capsys.readouterr().out.splitlines()
    assert "Expected a limit for 'large' in [tool.gradwatch.lines]" in said
    assert said.endswith("Add it: large = 4.")


def test_without_any_limits_every_package_fails(
    project: Path, capsys: pytest.CaptureFixture
) -> None:
    (project / "pyproject.toml").write_text("[project]\n")
    assert lines.main(["--check"], project) == 1
    assert len(capsys.readouterr().out.splitlines()) == 5


def test_the_table_never_fails(project: Path, capsys: pytest.CaptureFixture) -> None:
    limit(project, small=10, large=None)
    assert lines.main([], project) == 0
    said = capsys.readouterr().out
    assert "small                     11      10  over" in said
    assert "large                      4       –  no limit" in said
    assert "5 files of Python" in said
