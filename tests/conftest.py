"""Seconds per suite, printed at the end; and a safe start for every test."""

import os
from collections import defaultdict
from collections.abc import Generator, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

_SECONDS: dict[str, float] = defaultdict(float)
_COUNTS: dict[str, int] = defaultdict(int)
_HERE = Path(__file__).parent

for _name in ("GRADWATCH_MODE", "RANK", "WORLD_SIZE", "LOCAL_RANK", "TORCHELASTIC_RUN_ID"):
    os.environ.pop(_name, None)
# The line at the end of a recording judges the run: time that only its own tests want to spend.
os.environ["GRADWATCH_MODE"] = "quiet"


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Without torch, skip the test modules that need it."""
    report = yield
    missing = "No module named 'torch'" in str(report.longrepr) and find_spec("torch") is None
    if report.failed and missing:
        report.outcome = "skipped"
        report.longrepr = (str(collector.path), 0, "Skipped: needs torch")
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    parts = report.nodeid.split("::")[0].split("/")
    # A folder of tests; `record` has several: what it does on devices is a suite of its own.
    suite = "/".join(parts[1 : 3 if parts[1:2] == ["record"] and len(parts) > 3 else 2]) or parts[0]
    _SECONDS[suite] += report.duration
    _COUNTS[suite] += report.when == "call"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.section("seconds per suite")
    for suite in sorted(_SECONDS, key=_SECONDS.__getitem__, reverse=True):
        terminalreporter.write_line(f"{_SECONDS[suite]:8.1f} s  {_COUNTS[suite]:5d}  {suite}")


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Runs are written under the current folder by default: never into the checkout."""
    before = Path.cwd()
    os.chdir(tmp_path_factory.getbasetemp())
    yield
    os.chdir(before)
