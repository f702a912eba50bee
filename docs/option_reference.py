"""A directive that writes a section for each option, from the table of options when the documentation is built."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from msctx import reference

DEVICES = {"cpu": "CPU", "cuda": "NVIDIA", "ascend": "Ascend"}


def facts(option: Mapping[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """Names and lines of text; a line that begins with a word in backticks shows that word as code."""
    values = [f"`{v['value']}`" + (f": {v['means']}" if v["means"] else "") for v in option["values"]]
    yield "Values", values or [option["allowed"]]
    if option["default_in_words"]:
        yield "Default", [option["default_in_words"]]
    yield "Example", [f"`{option['name']}={option['example']}`"]
    if option["aliases"]:
        yield "Also written", [f"`{alias}`" for alias in option["aliases"]]
    if option["replaced_by"]:
        yield "Use instead", [option["replaced_by"]]
    for device, name in DEVICES.items():
        found = option["status"][device]
        yield name, [found["status"] + (f": {found['reason']}" if found["reason"] else "")]
    if option["interactions"]:
        yield "With others", option["interactions"]


def shown(line: str) -> list[nodes.Node]:
    _, word, rest = line.split("`", 2) if line.startswith("`") else ("", "", line)
    return [nodes.literal(text=word)] * bool(word) + [nodes.Text(rest)]


def body(texts: list[str]) -> nodes.Node:
    lines = [nodes.paragraph("", "", *shown(text)) for text in texts]
    return lines[0] if len(lines) == 1 else nodes.bullet_list("", *(nodes.list_item("", line) for line in lines))


class OptionReference(SphinxDirective):
    has_content: ClassVar[bool] = False

    def run(self) -> list[nodes.Node]:
        found = []
        for option in sorted(reference.listing(), key=lambda option: option["name"]):
            section = nodes.section(ids=[nodes.make_id(option["name"])], names=[option["name"]])
            section += nodes.title("", "", nodes.literal(text=option["name"]))
            section += nodes.paragraph(text=option["help"])
            fields = (
                nodes.field("", nodes.field_name(text=name), nodes.field_body("", body(texts))) for name, texts in facts(option)
            )
            section += nodes.field_list("", *fields)
            found.append(section)
        return found


def filled(app: Sphinx, page: str, source: list[str]) -> None:
    """A comment stands for the directive, so that the page shows no empty box where it is read as a file."""
    source[0] = source[0].replace("<!-- option-reference -->", "```{option-reference}\n```")


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("option-reference", OptionReference)
    app.connect("source-read", filled)
    return {"parallel_read_safe": True}
