"""The JSON Schema of experiment files, made from the declarations: editors complete and check with it.

It follows draft 7, which YAML language servers know, and was tried with Red Hat's. What a schema cannot express (two spellings of one
option with different values, the content of files, ``on`` for true, ``1.0`` for a whole number) is left to ``msctx explain``.

There is no ``title``, which that server would show above every text, and no ``default``: it would write dozens of defaults into a
file when somebody completes ``context:``, and unset does not mean MindSpore's default here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from itertools import accumulate
from typing import Any

from msctx.options import OPTIONS, Option
from msctx.options.kinds import Fields
from msctx.options.layer_sources import presets
from msctx.run.experiment_and_entry import COMPARED, SECTIONS

HELP = {
    "context": "Options: what holds while the experiment runs.",
    "experiment": "What to run.",
    "record": "What to keep of it.",
    "compare": "What msctx compare measures.",
    "axes": "The choices that msctx compare measures.",
    "name": "The name of the experiment; it names the run directory. Unset, it is the name of the file.",
    "entry": "The function to call (package.module:function, or file.py:function), or the path of a script.",
    "args": "Arguments of the entry, by name; under -- a script's words, in a list.",
    "dir": "The folder in which run directories are made.",
    "cpu_config": "Options only for CPU tensors (ours; the keys of gpu_config).",
    "gpu_config": "Options only for CUDA tensors.",
    "ascend_config": "Options only for Ascend.",
    "ge_options": "Options of CANN's graph engine, in its own words.",
    "session": "CANN's session options, by their own names.",
    "atc": "Flags of CANN's ATC, by their own names.",
    "preset": "A named set of options to start from, or the path of your YAML file; options given with it win.",
}


def build() -> dict[str, Any]:
    """The schema, as plain data."""
    spellings = {spelling: option.name for option in OPTIONS.values() for spelling in option.spellings}
    groups = dict.fromkeys(group for name in spellings for group in accumulate(name.split(".")[:-1], "{}.{}".format))
    definitions = {option.name: _option(option) for option in OPTIONS.values()}
    for group in groups:
        inner = _dictionary(group, spellings, groups)
        if group in OPTIONS:  # both a value and a dictionary: a path, or what its file would hold
            texts = {key: definitions[group].pop(key) for key in ("description", "examples")}
            definitions[group] = {**texts, "anyOf": [definitions[group], inner]}
        elif group not in spellings:
            keys = ", ".join(inner["properties"])
            definitions[group] = {"description": HELP.get(group) or f"A dictionary with the options {keys}.", **inner}
    context = _dictionary("", spellings, groups)
    context["properties"]["preset"] = _preset()
    sections = {"context": {**context, "type": ["object", "null"]}, **{name: _section(k) for name, k in SECTIONS.items()}}
    sections |= {name: {"type": ["object", "null"]} for name in COMPARED}
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "description": "An experiment of msctx: what to run, and under which options.",
        "type": "object",
        "additionalProperties": False,
        "properties": {name: {"description": HELP[name], **schema} for name, schema in sections.items()},
        "definitions": definitions,
    }


def dump() -> str:
    """The schema as the text of its file."""
    return json.dumps(build(), indent=1, ensure_ascii=False) + "\n"


def _dictionary(group: str, spellings: dict[str, str], groups: Iterable[str]) -> dict[str, Any]:
    """The schema of a dictionary of options; "" is the one around all others."""
    prefix = f"{group}." if group else ""
    properties: dict[str, Any] = {}
    patterns: dict[str, Any] = {}
    for name in (*groups, *spellings):
        if name.startswith(prefix):
            rest = name.removeprefix(prefix)
            found = patterns if "." in rest else properties
            found[f"^{re.escape(rest)}$" if "." in rest else rest] = {"$ref": f"#/definitions/{spellings.get(name, name)}"}
    schema = {"type": "object", "additionalProperties": False, "properties": properties}
    return {**schema, "patternProperties": patterns} if patterns else schema


def _section(section: Fields) -> dict[str, Any]:
    properties = {key: {"description": HELP[key], **kind.form} for key, kind in section.fields.items()}
    return {"type": ["object", "null"], "additionalProperties": False, "properties": properties}


def _preset() -> dict[str, Any]:
    """A shipped preset, or a path."""
    path = {"type": ["string", "null"], "pattern": r"\.ya?ml$"}
    return {"description": HELP["preset"], "anyOf": [{"enum": [*presets()]}, path]}


def _option(option: Option) -> dict[str, Any]:
    schema = {"description": option.help, "examples": [option.example], **option.kind.schema()}
    if "patternProperties" in schema:  # keys that fit the pattern, and no others
        schema["additionalProperties"] = False
    if option.replaced_by:
        schema["deprecationMessage"] = f"Without effect; use {option.replaced_by}."
    return schema
