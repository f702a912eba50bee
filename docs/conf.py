"""Sphinx's configuration. ``make docs`` builds the pages into build/docs/html."""

import sys
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.ext.napoleon import Config, GoogleDocstring

from msctx import __version__

project = "msctx"
author = "the msctx authors"
release = version = __version__
sys.path.append(str(Path(__file__).parent))
extensions = ["myst_parser", "sphinx.ext.autodoc", "option_reference"]

myst_heading_anchors = 3  # so that a broken link to a heading is a warning, which the build turns into an error

autodoc_member_order = "bysource"
# The pages build without them.
autodoc_mock_imports = ["accelerate", "lightning", "pytorch_lightning", "transformers", "hydra", "omegaconf"]

# Continuous integration has no network: the link check covers files and headings of this repository, not external pages.
linkcheck_ignore = [r"https?://"]

html_theme = "furo"
html_title = "msctx"
html_static_path = ["static"]
html_css_files = ["wide.css"]
html_copy_source = False


def docstring(app: Sphinx, what: str, name: str, found: Any, options: Any, lines: list[str]) -> None:
    """Sections like "Args:" are read by Napoleon, but not in attributes: it takes "What it is: more" for a type and a description."""
    if what not in ("attribute", "property"):
        lines[:] = GoogleDocstring(lines, Config()).lines()


def signature(app: Sphinx, what: str, *rest: Any) -> tuple[str, None] | None:
    """Nobody constructs the documented classes: how that is done is left out."""
    return ("", None) if what == "class" else None


def setup(app: Sphinx) -> None:
    app.connect("autodoc-process-docstring", docstring)
    app.connect("autodoc-process-signature", signature)
