"""The JSON Schema of experiment files, made from the declarations: editors complete and check with it.

It follows draft 7, which YAML language servers know, and was tried with Red Hat's. What a schema cannot express (two spellings of one
option with different values, the content of files, ``1.0`` for a whole number) is left to ``msctx explain``.

There is no ``title``, which that server would show above every text, and no ``default``: it would write dozens of defaults into a
file when somebody completes ``context:``, and unset does not mean MindSpore's default here. The text of an option names it instead.
"""

from __future__ import annotations

import json
import re
from typing import Any

from msctx.options import GROUPS, OPTIONS, Option
from msctx.options.kinds import Kind, YamlWord
from msctx.options.layers import presets
from msctx.reference import allowed, default_of
from msctx.run.config import COMPARED, SECTIONS

HELP = {
    "context": "Options: what holds while the experiment runs.",
    "experiment": "What to run.",
    "record": "What to keep of it.",
    "compare": "What msctx compare measures.",
    "axes": "The choices that msctx compare measures.",
    "name": "The name of the experiment; it names the run directory. Unset, it is the name of the file.",
    "entry": "The function to call (package.module:function, or file.py:function), or the path of a script.",
    "args": "Arguments of the entry, by name.",
    "seed": "Seeds Python, NumPy and torch before the entry runs; another way to set the option seed.",
    "dir": "The folder in which run directories are made.",
    "cpu_config": "Options for CPU tensors alone (ours; the keys of gpu_config).",
    "gpu_config": "Options for CUDA tensors alone.",
    "ascend_config": "Options for Ascend alone.",
    "ge_options": "Options of CANN's graph engine, in its own words.",
    "session": "CANN's session options, by their own names.",
    "atc": "Flags of CANN's ATC, by their own names.",
    "aoe_config": "What aoe_tune_mode tunes.",
    "device_context": "MindSpore's newer names for options of one device.",
    "device_context.cpu": "MindSpore's newer names for options of CPU tensors alone.",
    "device_context.gpu": "MindSpore's newer names for options of CUDA tensors alone.",
    "device_context.ascend": "MindSpore's newer names for options of Ascend alone.",
    "runtime": "MindSpore's newer names for options of the runtime.",
    "set_device": "MindSpore's newer names for the device to use.",
    "preset": "A named set of options to start from, or the path of a YAML file of your own; what stands beside it wins.",
}

_BEYOND = r"[^\x00-\x7f]"
"""Editors do not agree with Python on which letters beyond ASCII may stand in a name, so any are let pass."""
NARROWER: dict[str, dict[str, Any]] = {
    "name": {"pattern": rf"^\.*([\w-]|{_BEYOND})([\w.-]|{_BEYOND})*$"},
    "args": {"patternProperties": {rf"^([A-Za-z_]|{_BEYOND})(\w|{_BEYOND})*$": {}}, "additionalProperties": False},
}
"""What the keys of a section take beyond their type."""

_WORD = "YAML 1.1: on and yes mean true, off and no false"
_WORDS = f"({'|'.join(''.join(f'[{c}{c.upper()}]' for c in word) for word in YamlWord.TRUTH)})"
"""The words in any case, and what an editor shows for them; msctx takes them for true and false where an option has these."""
_UNDERSCORES = r"^[-+]?[1-9][0-9]*(_[0-9]*)+$"
"""A number such as 4_000_000: one to msctx, as in YAML 1.1, and text to a reader of YAML 1.2."""


RAW = ("ge_options.global", "ge_options.session")
"""Dictionaries whose keys, CANN's own, may be written out."""


def build() -> dict[str, Any]:
    """The schema, as plain data."""
    tree = _tree()
    sections = {name: _section(keys) for name, keys in SECTIONS.items()}
    definitions = {option.name: _option(option) for option in OPTIONS.values()}
    context = _object(tree, "", definitions)
    context["properties"]["preset"] = _preset()
    context["type"] = ["object", "null"]
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "description": "An experiment of msctx: what to run, and under which options.",
        "type": "object",
        "additionalProperties": False,
        "properties": {
            **{name: {**_text(HELP[name]), **schema} for name, schema in {"context": context, **sections}.items()},
            **{name: {**_text(HELP[name]), "type": ["object", "null"]} for name in COMPARED},
        },
        "definitions": definitions,
    }


def dump() -> str:
    """The schema as the text of its file, an option to a line."""
    lines = _lines(build(), 3)
    return "\n".join(lines) + "\n"


def _lines(value: Any, depth: int, before: str = "", indent: str = "") -> list[str]:
    """JSON with dictionaries spread over lines down to a depth, and all that lies deeper on one."""
    if depth and isinstance(value, dict) and any(isinstance(inner, dict) for inner in value.values()):
        inner = [_lines(v, depth - 1, f"{json.dumps(k, ensure_ascii=False)}: ", indent + " ") for k, v in value.items()]
        for part in inner[:-1]:
            part[-1] += ","
        return [f"{indent}{before}{{", *(line for part in inner for line in part), f"{indent}}}"]
    return [indent + before + json.dumps(value, ensure_ascii=False)]


# --- dictionaries -----------------------------------------------------------------------------------------------------


def _section(keys: dict[str, Kind]) -> dict[str, Any]:
    properties = {k: {**_text(HELP[k]), **_as_an_editor_reads(kind.schema(), kind.allowed)} for k, kind in keys.items()}
    for key in properties.keys() & NARROWER.keys():
        properties[key].update(NARROWER[key])
        if "pattern" in properties[key]:
            properties[key]["errorMessage"] = "Expected letters, digits, dots, dashes and underscores."
    return {"type": ["object", "null"], "additionalProperties": False, "properties": properties}


def _tree() -> dict[str, Any]:
    """Every spelling, key below key; the name of an option stands under the key ``""``."""
    tree: dict[str, Any] = {}
    for option in OPTIONS.values():
        for spelling in option.spellings:
            at = tree
            for part in spelling.split("."):
                at = at.setdefault(part, {})
            at[""] = option.name
    return tree


def _object(tree: dict[str, Any], path: str, definitions: dict[str, Any]) -> dict[str, Any]:
    """The schema of a dictionary of options; those inside it are added to the definitions."""
    properties: dict[str, Any] = {}
    for key, below in tree.items():
        if key:
            properties[key] = {"$ref": f"#/definitions/{_define(below, f'{path}.{key}' if path else key, definitions)}"}
    dotted: dict[str, list[str]] = {}
    for key, below in tree.items():
        if key:
            for rest, target in _below(below, f"{path}.{key}" if path else key):
                dotted.setdefault(target, []).append(f"{key}.{rest}")
    patterns = {_one_of(paths): {"$ref": f"#/definitions/{target}"} for target, paths in dotted.items()}
    raw = [key for key, below in tree.items() if key and _name(below, key) in RAW]
    if raw := [*raw, *(path for target in RAW for path in dotted.get(target, ()))]:
        patterns[_one_of(raw).removesuffix("$") + r"\.ge\..+$"] = {"type": "string"}
    schema = {"type": "object", "additionalProperties": False, "properties": properties}
    return {**schema, "patternProperties": patterns} if patterns else schema


def _define(node: dict[str, Any], path: str, definitions: dict[str, Any]) -> str:
    """See to it that what may stand at a path has a definition, and give its name."""
    name = _name(node, path)
    if set(node) == {""} or _is_whole(definitions.get(name)):
        return name
    inner = _object(node, path, definitions)
    if "" in node:  # both a value and a dictionary: a path, or what its file would hold
        own = definitions[name]
        texts = {k: own.pop(k) for k in ("description", "markdownDescription", "examples")}
        definitions[name] = {**texts, "anyOf": [own, inner]}
    else:
        keys = ", ".join(inner["properties"])
        definitions[name] = {**_text(HELP.get(path) or f"A dictionary with the options {keys}."), **inner}
    return name


def _name(node: dict[str, Any], path: str) -> str:
    return str(node.get("", path))


def _is_whole(schema: dict[str, Any] | None) -> bool:
    return schema is not None and ("properties" in schema or any("properties" in form for form in schema.get("anyOf", ())))


def _below(node: dict[str, Any], path: str) -> list[tuple[str, str]]:
    """Everything below a key: its dotted path from there, and the name of its definition."""
    found = []
    for key, below in node.items():
        if key:
            found.append((key, _name(below, f"{path}.{key}")))
            found += [(f"{key}.{rest}", target) for rest, target in _below(below, f"{path}.{key}")]
    return found


def _one_of(paths: list[str]) -> str:
    escaped = [path.replace(".", r"\.") for path in paths]
    return f"^{escaped[0]}$" if len(escaped) == 1 else f"^({'|'.join(escaped)})$"


def _preset() -> dict[str, Any]:
    """A shipped preset, each with the comment that its file begins with; or a path."""
    about = {}
    for name, path in presets().items():
        comments = [line[1:].strip() for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
        about[name] = " ".join(comments[1:])  # the first names the schema
    names = {"enum": [*about], "enumDescriptions": [*about.values()]}
    own = {"title": "a preset of your own", "type": ["string", "null"], "pattern": r"\.ya?ml$"}
    return {**_text(HELP["preset"]), "anyOf": [names, own]}


# --- options ----------------------------------------------------------------------------------------------------------


def _option(option: Option) -> dict[str, Any]:
    facts = {"Devices": ", ".join({"cpu": "CPU", "cuda": "CUDA", "ascend": "Ascend"}[device] for device in option.devices)}
    if option.spellings[1:]:
        facts["Also written"] = ", ".join(f"`{spelling}`" for spelling in option.spellings[1:])
    whose, default = default_of(option)
    if whose not in ("", "msctx"):
        facts[f"Default of {whose}"] = f"`{default}`"
    schema: dict[str, Any] = {**_text(option.help, facts), "examples": [option.example]}
    schema |= _as_an_editor_reads(option.adapter.json_schema(), allowed(option))
    if "patternProperties" in schema:  # keys that fit the pattern, and no others
        schema["additionalProperties"] = False
    if option.replaced_by:
        schema["deprecationMessage"] = f"Without effect; use {option.replaced_by}."
    return schema


def _as_an_editor_reads(schema: dict[str, Any], words: str) -> dict[str, Any]:
    """The schema of a value as a reader of YAML 1.2 sees it, to whom ``on`` and ``4_000`` are texts.

    Args:
        schema: that of the value's kind.
        words: what is taken, in words.
    """
    schema = _union([{k: v for k, v in form.items() if k != "title"} for form in schema.get("anyOf", [schema])])
    if any(value is True for value in schema.get("enum", ())):
        besides = "(?!(ON|OFF)$)" if "ON" in schema["enum"] else ""  # a value fits one form, else editors show both
        return {"anyOf": [schema, {"title": _WORD, "type": "string", "pattern": f"^{besides}{_WORDS}$"}]}
    if schema.get("type") == "boolean":
        schema = {"type": ["boolean", "string"], "pattern": f"^{_WORDS}$"}
    types = [schema["type"]] if isinstance(schema.get("type"), str) else schema.get("type", [])
    if "integer" in types:
        pattern = f"{schema['pattern']}|{_UNDERSCORES}" if "pattern" in schema else _UNDERSCORES
        schema |= {"type": [*types, *({"string"} - set(types))], "pattern": pattern}
    return {**schema, "errorMessage": f"Expected {words}."} if "pattern" in schema else schema


def _union(forms: list[dict[str, Any]]) -> dict[str, Any]:
    """Forms of different types as one schema, since each keyword applies to one type alone; editors show that better."""
    types = [t for form in forms for t in ([form["type"]] if isinstance(form.get("type"), str) else form.get("type", ["?"]))]
    if len(forms) == 1 or "?" in types or len(set(types)) != len(types):
        return dict(forms[0]) if len(forms) == 1 else {"anyOf": forms}
    return {**{k: v for form in forms for k, v in form.items()}, "type": types}


# --- texts ------------------------------------------------------------------------------------------------------------


def _text(text: str, facts: dict[str, str] | None = None) -> dict[str, str]:
    """A text for plain editors, and for those that show Markdown the same with its words of code marked, and facts."""
    marked = _CODE.sub(_marked, text) + "".join(f"\n\n*{what}:* {value}" for what, value in (facts or {}).items())
    return {"description": text, "markdownDescription": marked} if marked != text else {"description": text}


_CODE = re.compile(r"(?:--|[$])?\b[A-Za-z]\w*(?:[.:/=]+\w+)*(?:\(\))?|[*<>\[\]]")


def _marked(match: re.Match[str]) -> str:
    """A word of code in backquotes, a sign that Markdown knows escaped, all else as it stands."""
    word = match[0]
    if len(word) == 1 and not word.isalnum():
        return f"\\{word}"
    return f"`{word}`" if re.search(r"[_=$]|--|\(\)|[a-z][.:][A-Za-z]{2}", word) else word


assert set(GROUPS) <= set(HELP)
