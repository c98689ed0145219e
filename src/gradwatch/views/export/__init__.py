"""Runs for other tools: CSV, strict JSON, Parquet."""

from gradwatch.views.export.cells import exported
from gradwatch.views.export.csv_file import write_csv
from gradwatch.views.export.json_file import read_json, write_json
from gradwatch.views.export.parquet_file import write_parquet

__all__ = ["exported", "read_json", "write_csv", "write_json", "write_parquet"]
