"""Checks plain data against a type by pydantic; everything that is wrong is found at once, with its path."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from msctx.errors import Diagnostic, Marks, nearest
from msctx.options.kinds import INVALID, BadValue, show

if TYPE_CHECKING:
    from pydantic import BaseModel

    M = TypeVar("M", bound=BaseModel)

Path = tuple[Any, ...]


class Wrong(NamedTuple):
    """A problem with the value at a path of keys, or (*at_key*) with its key."""

    path: Path
    bad: BadValue
    at_key: bool = False


@cache
def adapter(kind: Any) -> Any:
    """The validator of a type."""
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


class Misfit(BadValue):
    """Values of several keys that do not fit together, which is shown at one of them; ``""``: at the whole part."""

    def __init__(self, key: str, text: str, allowed: str = "") -> None:
        super().__init__(text, allowed=allowed)
        self.key = key


def checked(
    model: type[M],
    data: Any,
    problems: list[Diagnostic],
    *,
    section: str = "",
    where: str = "",
    marks: Marks = lambda path: None,
) -> M | None:
    """A part of a file or of a command line as its model; ``None`` where something is wrong, which is added to *problems*.

    Args:
        section: what the names of its keys begin with in messages.
        where: the place, where there are no marks.
    """
    found: M | None
    found, wrong = check(adapter(model), data)
    for path, bad, at_key in wrong:
        name, mark = ".".join(filter(None, [section, *map(str, path)])), marks((*path, "") if at_key else path)
        problems.append(Diagnostic(name, bad.text, where, bad.allowed, bad.suggestion if at_key else bad.hint, mark))
    return found


def check(validator: Any, value: Any) -> tuple[Any, list[Wrong]]:
    """The canonical value, or ``None`` and what is wrong; what could not be read is reported already."""
    from pydantic import ValidationError

    try:
        return validator.validate_python(value, strict=True), []
    except ValidationError as error:
        found = [_wrong(one, validator) for one in error.errors(include_url=False) if one["input"] is not INVALID]
        return None, found


def _wrong(error: Mapping[str, Any], validator: Any) -> Wrong:
    path = tuple(part for part in error["loc"] if part != "[key]")
    value, bad, shown = error["input"], error.get("ctx", {}).get("error"), show(error["input"])
    match error["type"]:
        case "missing":
            return Wrong(path[:-1], BadValue(f"{path[-1]} is missing"))
        case "extra_forbidden":
            keys = _keys(validator.json_schema(), path[:-1])
            bad = BadValue("unknown key", allowed=", ".join(keys), suggestion=nearest(str(path[-1]), keys))
            return Wrong(path, bad, True)
        case "list_type":
            hint = f'["{value}"]' if isinstance(value, str) and len(value) < 40 else ""
            return Wrong(path, BadValue(f"{shown} is not a list", allowed='["a", "b"]', suggestion=hint))
        case "dict_type" | "model_type":
            return Wrong(path, BadValue(f"{shown} is not a dictionary", allowed='{"key": value}'))
        case "string_unicode":
            bad = BadValue("half of a surrogate pair is not a character", allowed="text")
    if isinstance(bad, Misfit):
        path += tuple(filter(None, [bad.key]))
    elif not isinstance(bad, BadValue):
        bad = BadValue(f"{shown} is not of the right type", allowed="a value of another type")
    elif value is None:
        bad = BadValue("None is not a value; omit the option to leave PyTorch as it is", allowed=bad.allowed)
    return Wrong(path, bad, "[key]" in error["loc"])


def _keys(schema: Mapping[str, Any], path: Path) -> list[str]:
    """The keys that a dictionary within a schema may have."""
    definitions, at = schema.get("$defs", {}), schema
    for part in (*path, None):
        at = definitions[at["$ref"].rpartition("/")[2]] if "$ref" in at else at
        if isinstance(part, int):
            at = at["items"]
        elif part is not None:
            named: Any = at.get("additionalProperties") or next(iter(at.get("patternProperties", {}).values()), {})
            at = at.get("properties", {}).get(part, named)
    return list(at["properties"])
