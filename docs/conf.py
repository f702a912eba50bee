"""Sphinx's configuration. ``make docs`` builds the pages into build/docs/html."""

import os
import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.ext.napoleon import Config, GoogleDocstring

from msctx import __version__, reference

project = "msctx"
author = "the msctx authors"
release = version = __version__
sys.path.append(str(Path(__file__).parent))
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.intersphinx",
    "sphinx_copybutton",
    "sphinx_design",
    "option_reference",
]
exclude_patterns = ["tutorials/quickstart.md"]  # its notebook is the page; tests run it and write its output

nb_execution_mode = "off"
myst_enable_extensions = ["colon_fence"]
copybutton_prompt_text = "$ "
myst_heading_anchors = 3  # so that a broken link to a heading is a warning, which the build turns into an error

autodoc_member_order = "bysource"
# The pages build without them.
autodoc_mock_imports = ["accelerate", "lightning", "pytorch_lightning", "transformers", "hydra", "omegaconf"]

# NETWORK=1 make docs: with links to the pages of PyTorch and Python.
pages = {"python": ("https://docs.python.org/3", None), "torch": ("https://docs.pytorch.org/docs/stable", None)}
intersphinx_mapping = pages if os.environ.get("NETWORK") else {}

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


def link_options(app: Sphinx, doctree: nodes.document, page: str) -> None:
    """Code that is an option, alone or with a value, links to its entry; not the word that is also a value of an option."""
    options = reference.listing()
    names = {option["name"] for option in options}
    values = {str(value["value"]) for option in options for value in option["values"]}
    for code in list(doctree.findall(nodes.literal)) if app.builder.format == "html" else ():
        text = code.astext()
        name = text.partition("=")[0]
        inside = (nodes.title, nodes.reference, nodes.field_body)
        if name in names and text not in values and not any(isinstance(node, inside) for node in _around(code)):
            uri = f"{app.builder.get_relative_uri(page, 'reference/options')}#{nodes.make_id(name)}"
            code.replace_self(nodes.reference("", "", code.deepcopy(), internal=True, refuri=uri))


def _around(node: nodes.Node | None) -> list[nodes.Node]:
    return [node, *_around(node.parent)] if node else []


def setup(app: Sphinx) -> None:
    app.connect("doctree-resolved", link_options)
    app.connect("autodoc-process-docstring", docstring)
    app.connect("autodoc-process-signature", signature)
