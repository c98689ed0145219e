"""Measurements of what gradwatch costs; `python -m benchmarks NAME`."""
