"""Labelled sick and healthy trainings, and our score on them."""
