"""The frameworks and services warn of their own and each other's affairs; only ours are errors."""

from pathlib import Path

import pytest

HERE = Path(__file__).parent
THEIRS_ARE_LEFT = pytest.mark.filterwarnings("default", "error:::gradwatch")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(THEIRS_ARE_LEFT)
