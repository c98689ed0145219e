"""The documentation as a static site: `make site`, then open site/index.html."""

from typing import Any

from sphinx.application import Sphinx

from gradwatch import __version__

project = "gradwatch"
author = "the gradwatch authors"
version = release = __version__
language = "en"
html_title = f"gradwatch {version}"

extensions = ["myst_parser", "sphinx.ext.autodoc"]
# The pages are written for GitHub too: links to headings are those that GitHub makes. A link to a
# file outside this folder, such as ../examples/trainer.py, becomes a link to a copy of the file.
myst_heading_anchors = 4

# Docstrings write `code` with one backtick.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_default_options = {"exclude-members": "html_line"}
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 80

html_theme = "furo"
html_copy_source = False
html_show_copyright = False
# Opened from a disk a page may not fetch others, which the lines under search results need.
html_show_search_summary = False


def read(app: Sphinx, page: str, text: list[str]) -> None:
    """The gallery's pages are made by a program and listed by its index in plain links."""
    if page == "gallery/index":
        text[0] += "\n```{toctree}\n:hidden:\n:glob:\n\n*\n```\n"


def bars(*event: Any) -> None:
    """A docstring's |g| is a size, not a reStructuredText substitution."""
    lines: list[str] = event[-1]
    lines[:] = [line.replace("|", r"\|") for line in lines]


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", read)
    app.connect("autodoc-process-docstring", bars)
