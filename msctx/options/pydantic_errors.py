"""Reads a part of a file or of a command line by a pydantic model, and reports what does not fit with its place."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from msctx.errors import Diagnostic, Mark, nearest
from msctx.options.kinds import INVALID, BadValue
from msctx.options.registry import shown

if TYPE_CHECKING:
    from pydantic import BaseModel

    M = TypeVar("M", bound=BaseModel)

Marks = Callable[[tuple[Any, ...]], "Mark | None"]
"""Path of keys below the part → its place; with ``""`` appended, that of the key."""


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
    """The part as its model; ``None`` where something is wrong, which is added to *problems*.

    Args:
        section: what the names of its keys begin with in messages.
        where: the place, where there are no marks.
    """
    from pydantic import ValidationError

    if data is INVALID:
        return None
    try:
        return model.model_validate(data)
    except ValidationError as error:
        for found in error.errors(include_url=False):
            if found["input"] is INVALID:
                continue
            at, bad = found["loc"], found.get("ctx", {}).get("error")
            if isinstance(bad, Misfit) and bad.key:
                at = (*at, bad.key)
            path = ".".join(filter(None, [section, *map(str, at)]))
            if found["type"] == "extra_forbidden":
                known = list(model.model_fields)
                hint = nearest(str(at[-1]), known)
                problems.append(Diagnostic(path, "unknown key", where, ", ".join(known), hint, marks((*at, ""))))
            elif isinstance(bad, BadValue):
                problems.append(Diagnostic(path, bad.text, where, bad.allowed, shown(bad), marks(at)))
            elif found["type"] == "missing":
                problems.append(Diagnostic(path, "is missing", where, mark=marks(at)))
            elif found["type"] == "model_type":
                problems.append(Diagnostic(path, "is not a dictionary", where, mark=marks(at)))
            else:
                problems.append(Diagnostic(path, found["msg"].replace("Input should", "should"), where, mark=marks(at)))
        return None
