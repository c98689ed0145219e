"""The histories of a golden case, as the original rules take them."""

from typing import Any

from tests.golden.reading import numbers

from gradwatch.original.arithmetic import History


def histories(case: dict[str, Any]) -> dict[str, History]:
    return {item["layer_name"]: _history(item) for item in case["input"]["histories"]}


def _history(item: dict[str, Any]) -> History:
    """A queue keeps its last samples; even one of length 0 keeps one."""
    kept = slice(-max(item["max_history_length"], 1), None)
    return History(numbers(item["norms"])[kept], item["steps"][kept])
