"""Names and numbers as every view writes them."""

from gradwatch.text import number, plain, shortened

__all__ = ["number", "plain", "shortened"]
