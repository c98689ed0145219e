"""Callbacks for training frameworks: they pass the optimizer, the step and the loss."""
