"""The JSON Schema of an experiment file, made from the declarations: editors complete, check and explain with it.

It follows draft 7, which YAML language servers know. What a schema cannot say (two spellings of one option with different values,
the content of files) is left to ``msctx explain``.
"""

from __future__ import annotations

import json
from typing import Any

from msctx.options import GROUPS, OPTIONS, UNSET, Option
from msctx.options.kinds import Kind
from msctx.options.layers import presets
from msctx.run.config import SECTIONS

HELP = {
    "context": "Options: what holds while the experiment runs.",
    "experiment": "What to run.",
    "record": "What to keep of it.",
    "name": "The name of the experiment; it names the run directory.",
    "entry": "The function to call (package.module:function, or file.py:function), or the path of a script.",
    "args": "Arguments of the entry, by name.",
    "seed": "Seeds Python, NumPy and torch before the entry runs; another way to say the option seed.",
    "dir": "The folder in which run directories are made.",
    "cpu_config": "Options for CPU tensors alone (ours; the keys of gpu_config).",
    "gpu_config": "Options for CUDA tensors alone.",
    "ascend_config": "Options for Ascend alone.",
    "session": "CANN's session options, by their own names.",
    "atc": "Flags of CANN's ATC, by their own names.",
    "device_context": "MindSpore's newer names for options of one device.",
    "runtime": "MindSpore's newer names for options of the runtime.",
    "preset": "A named set of options to start from, or the path of a YAML file of your own; what stands beside it wins.",
}


def build() -> dict[str, Any]:
    """The schema, as plain data."""
    sections = {name: _section(keys) for name, keys in SECTIONS.items()}
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "msctx experiment",
        "type": "object",
        "additionalProperties": False,
        "properties": {
            name: {"description": HELP[name], **schema} for name, schema in {"context": _context(), **sections}.items()
        },
        "definitions": {option.name: _option(option) for option in OPTIONS.values()},
    }


def dump() -> str:
    """The schema as the text of its file."""
    return json.dumps(build(), indent=1, ensure_ascii=False) + "\n"


def _section(keys: dict[str, Kind]) -> dict[str, Any]:
    properties = {key: {"description": HELP[key], **kind.schema()} for key, kind in keys.items()}
    return {"type": ["object", "null"], "additionalProperties": False, "properties": properties}


def _context() -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for option in OPTIONS.values():
        for spelling in option.spellings:
            at = tree
            for part in spelling.split("."):
                at = at.setdefault(part, {})
            at[""] = option.name
    schema = _object(tree, "")
    preset = {"anyOf": [{"enum": sorted(presets())}, {"type": "string", "pattern": r"\.ya?ml$"}]}
    schema["properties"]["preset"] = {"description": HELP["preset"], **preset}
    schema["type"] = ["object", "null"]
    schema["patternProperties"] = {r"^[a-z_]+\..+$": {"description": "A dotted name; msctx explain checks it."}}
    return schema


def _object(tree: dict[str, Any], path: str) -> dict[str, Any]:
    properties = {}
    for key, below in tree.items():
        if not key:
            continue
        where = f"{path}.{key}" if path else key
        own = {"$ref": f"#/definitions/{below['']}"} if "" in below else None
        if set(below) - {""}:
            inner = _object(below, where)
            inner["description"] = HELP.get(where) or f"Options under {where}."
            properties[key] = inner if own is None else {"anyOf": [own, inner]}
        else:
            properties[key] = own
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _option(option: Option) -> dict[str, Any]:
    schema = {"description": _hover(option), **option.adapter.json_schema()}
    schema.pop("title", None)
    if option.default is not UNSET and option.default is not None:
        schema["default"] = option.default
    if option.example is not UNSET:
        schema["examples"] = [option.example]
    if option.replaced_by:
        schema["deprecationMessage"] = f"Without effect; use {option.replaced_by}."
    return schema


def _hover(option: Option) -> str:
    """What an editor shows: the help, and where the option has a meaning."""
    words = {"cpu": "CPU", "cuda": "CUDA", "ascend": "Ascend"}
    where = ", ".join(words[d] for d in option.devices)
    also = f" Also written: {', '.join(option.spellings[1:])}." if len(option.spellings) > 1 else ""
    return f"{option.help}\n\nDevices: {where}.{also} Example: {option.name}: {option.example!r}"


assert set(GROUPS) <= set(HELP)
