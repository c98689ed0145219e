"""Finds out why a neural network does not train."""
