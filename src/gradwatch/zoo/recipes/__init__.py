"""Healthy trainings after public recipes, which the families of the wider zoo change."""
