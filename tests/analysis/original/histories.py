"""The histories of a golden case, as the original rules take them."""

from typing import Any

from tests.golden.reading import numbers

from gradwatch.analysis.original.history import History, record


def histories(case: dict[str, Any]) -> dict[str, History]:
    return {
        item["layer_name"]: record(
            item["layer_name"],
            numbers(item["norms"]),
            item["steps"],
            item["max_history_length"],
        )
        for item in case["input"]["histories"]
    }
