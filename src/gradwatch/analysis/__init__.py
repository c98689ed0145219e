"""The analyses: plain functions from a `Run` (or arrays) to frozen results that know their JSON."""
