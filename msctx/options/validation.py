"""Checks plain data against a type by pydantic; everything that is wrong is found at once, with its path."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from types import GenericAlias
from typing import Any

from typing_extensions import Required, TypedDict

from msctx.errors import MOST, Diagnostic, Marks, nearest
from msctx.imports import collected_later
from msctx.options.kinds import INVALID, BadValue, Keys, nowhere, show


@cache
def adapter(kind: Any) -> Any:
    """The validator of a type, built on first use: to build those of all options costs 150 ms."""
    with collected_later():
        from pydantic import TypeAdapter

        return TypeAdapter(kind)


def keys(fields: Mapping[str, Any], needed: Sequence[str] = ()) -> Any:
    """The type of a dictionary with a closed set of keys, of which some must stand there."""
    kind: Any = TypedDict("kind", {k: Required[v] if k in needed else v for k, v in fields.items()}, total=False)  # type: ignore
    setattr(kind, "__pydantic_config__", {"extra": "forbid"})  # noqa: B010  # mypy takes it for a type
    return kind


def each(item: Any) -> Any:
    return GenericAlias(list, item)


def named(value: Any, key: Any = str) -> Any:
    return GenericAlias(dict, (key, value))


def check(kind: Any, value: Any, name: Keys = (), where: str = "", marks: Marks = nowhere) -> tuple[Any, list[Diagnostic]]:
    """The canonical value, or ``None`` and what is wrong; what could not be read is reported already.

    Args:
        name: the keys that lead to the value, for messages.
        where: the place, where there are no marks.
        marks: of what is within the value.
    """
    from pydantic import ValidationError

    try:
        return adapter(kind).validate_python(value, strict=True), []
    except ValidationError as error:
        wrong = [_bad(one, kind) for one in error.errors(include_url=False)[:MOST] if one["input"] is not INVALID]
    return None, [bad.at(name, where, marks) for bad in wrong]


def _bad(error: Mapping[str, Any], kind: Any) -> BadValue:
    path = tuple(part for part in error["loc"] if part != "[key]")
    value, bad, shown = error["input"], error.get("ctx", {}).get("error"), show(error["input"])
    match error["type"]:
        case "missing":
            return BadValue(f"{path[-1]} is missing", path=path[:-1])
        case "extra_forbidden":
            known = _keys(adapter(kind).json_schema(), path[:-1])
            hint = nearest(str(path[-1]), known)
            return BadValue("unknown key", allowed=", ".join(known), suggestion=hint, path=path, at_key=True)
        case "list_type":
            advice: Any = [value] if isinstance(value, str) and len(value) < 40 else ""
            return BadValue(f"{shown} is not a list", allowed='["a", "b"]', suggestion=advice, path=path)
        case "dict_type" | "model_type":
            return BadValue(f"{shown} is not a dictionary", allowed='{"key": value}', path=path)
    if not isinstance(bad, BadValue):  # half of a surrogate pair as a key
        return BadValue(f"{shown} is not of the right type", path=path)
    text = "None is not a value; omit the option to leave PyTorch as it is" if value is None else bad.text
    hint = "" if value is None else bad.suggestion
    return BadValue(text, allowed=bad.allowed, suggestion=hint, path=path + bad.path, at_key="[key]" in error["loc"])


def _keys(schema: Mapping[str, Any], path: Keys) -> list[str]:
    """The keys that a dictionary within a schema may have."""
    definitions, at = schema.get("$defs", {}), schema
    for part in (*path, None):
        at = definitions[at["$ref"].rpartition("/")[2]] if "$ref" in at else at
        if isinstance(part, int):
            at = at["items"]
        elif part is not None:
            inner: Any = at.get("additionalProperties") or next(iter(at.get("patternProperties", {}).values()), {})
            at = at.get("properties", {}).get(part, inner)
    return list(at["properties"])
