"""Parameters on an accelerator: measured there, recorded when the numbers have come over."""
