"""Labelled trainings, sick and healthy, and how well the diagnosis does on them."""
