"""The result as a page that opens from disk: page.html beside this file, filled in by jinja2."""

from __future__ import annotations

from pathlib import Path

import jinja2

from msctx._version import __version__
from msctx.verify.result import Result
from msctx.verify.table import facts, settings


def page(result: Result, command: str) -> str:
    """The whole page. Every text that comes from a program is escaped."""
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, undefined=jinja2.StrictUndefined)
    template = environment.from_string(Path(__file__).with_name("page.html").read_text(encoding="utf-8"))
    return template.render(
        equal=result.finding is None,
        sentence=result.sentence,
        facts=settings(result) | facts(result),
        command=command,
        version=__version__,
    )
