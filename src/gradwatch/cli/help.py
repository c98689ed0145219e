"""What `--help` says at its end: examples that work."""


def examples(*lines: str) -> str:
    """The `epilog` of a command: an example a line, kept as they are."""
    return "\n".join(("\b", "Examples:", *(f"  {line}" for line in lines)))
