"""Tensors on an accelerator: measured there, told of when the numbers have come over."""
