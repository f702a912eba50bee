"""What a script sets, written down for msctx: a YAML file, a with-block, data for programs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from msctx.context import explain
from msctx.errors import one_line
from msctx.migrate.calls import Entry
from msctx.migrate.migration import Migration, nested
from msctx.options import Settings
from msctx.plan import Plan

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
_WORDS = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}
"""Words that are not text in YAML 1.1, or not in 1.2."""


def planned(migration: Migration, device: str | None = None) -> Plan:
    """What the options would come to on ``"cpu"``, ``"cuda"`` or ``"ascend"`` (default: on this machine), with their statuses."""
    return explain(Settings([migration.layer]), device)


def as_dict(migration: Migration, plan: Plan) -> dict[str, Any]:
    """All of it, for ``--json``."""
    return {
        "file": migration.file,
        "calls": [call.as_dict() for call in migration.calls],
        "options": dict(migration.options),
        "problems": [
            {"path": p.path, "where": str(p.mark or p.where), "problem": p.text, "allowed": p.allowed}
            for p in migration.problems
        ],
        "yaml": as_yaml(migration),
        "with_block": as_with_block(migration),
        "plan": plan.as_dict(),
    }


def as_yaml(migration: Migration) -> str:
    """A YAML file that ``msctx explain`` reads; each option shows where it came from, what is left out is a comment."""
    lines = [f"# What {_name(migration)} sets, found by `msctx migrate`."]
    body = list(_yaml(_tree(migration), "  "))
    return "\n".join([*lines, "context:" if body else "context: {}", *body, ""])


def _yaml(tree: Mapping[str, Any], indent: str) -> Iterator[str]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield f"{indent}{_scalar(key)}:"
            yield from _yaml(value, f"{indent}  ")
        elif value.reason:
            yield f"{indent}# {_left_out(value, ': ')}  # {_comment(value)}"
        else:
            yield f"{indent}{_scalar(key)}: {_scalar(value.value)}  # {_comment(value)}"


class _Dumper(yaml.SafeDumper):
    """Writes text plain only where that reads alike in YAML 1.1 and 1.2."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_str(self, text: str) -> yaml.ScalarNode:
        is_plain = _PLAIN.fullmatch(text) and text.lower() not in _WORDS
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=None if is_plain else '"')


_Dumper.add_representer(str, _Dumper.represent_str)


def _scalar(value: Any) -> str:
    """A value on one line."""
    text = yaml.dump(value, Dumper=_Dumper, default_flow_style=True, width=float("inf"), allow_unicode=True, sort_keys=False)
    return text.removesuffix("...\n").removesuffix("\n")


def as_with_block(migration: Migration) -> str:
    """The same as Python: a with-block for the code that the options are meant for."""
    lines = ["import msctx", ""]
    body = list(_arguments(_tree(migration)))
    lines += ["with msctx.context(", *body, ") as ctx:"] if body else ["with msctx.context() as ctx:"]
    return "\n".join([*lines, "    ...  # what the options are meant for; ctx.device is the device", ""])


def _arguments(tree: Mapping[str, Any], indent: str = "    ", is_call: bool = True) -> Iterator[str]:
    """The lines between the brackets of a call, or between those of a dictionary."""
    for key, value in tree.items():
        name = f"{key}=" if is_call else f"{_python(key)}: "
        if isinstance(value, dict):
            yield f"{indent}{name}{{"
            yield from _arguments(value, f"{indent}    ", is_call=False)
            yield f"{indent}}},"
        elif value.reason:
            yield f"{indent}# {_left_out(value, '=')},  # {_comment(value)}"
        elif is_call and not key.isidentifier():
            yield f"{indent}**{{{_python(key)}: {_python(value.value)}}},  # {_comment(value)}"
        else:
            yield f"{indent}{name}{_python(value.value)},  # {_comment(value)}"


def _python(value: Any) -> str:
    """A value as Python, texts with double quotes."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) and value.isprintable() else repr(value)


def _tree(migration: Migration) -> dict[str, Any]:
    """The options as dictionaries of entries; what is left out stands between them, under keys that nothing else has."""
    whole = nested({entry.spelling: entry for entry in migration.entries if not entry.reason})
    if not any(entry.reason for entry in migration.entries):
        return whole
    tree: dict[str, Any] = {}
    for i, entry in enumerate(migration.entries):
        if entry.reason:
            tree[f"# {i}"] = entry
            continue
        first = max((k for k in whole if entry.spelling == k or entry.spelling.startswith(f"{k}.")), key=len)
        tree[first] = whole[first]
    return tree


def _name(migration: Migration) -> str:
    return one_line(migration.file.replace("\\", "/").rpartition("/")[2])


def _left_out(entry: Entry, between: str) -> str:
    spelling = one_line(entry.spelling)
    return f"{spelling}{between}{entry.written}" if entry.written and "*" not in spelling else spelling


def _comment(entry: Entry) -> str:
    place = f"{one_line(entry.mark.file.replace(chr(92), '/').rpartition('/')[2])}:{entry.mark.line}"
    inside = f", {entry.inside}" * bool(entry.inside)
    return f"{place}{inside}" + f": {one_line(entry.reason, 200)}" * bool(entry.reason)
