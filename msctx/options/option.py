"""What one option is: the single place where its name, type, default, devices and help are written down."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from msctx.options.kinds import TextKind

DEVICES = ("cpu", "cuda", "ascend")
GROUPS = {"cpu_config": "cpu", "gpu_config": "cuda", "ascend_config": "ascend"}
"""Groups of set_context that mean one device alone (``cpu_config`` is ours)."""
NAMESPACES = ("session", "atc")
"""Dictionaries that hold another tool's vocabulary; they mean every device that has the option."""


class _Unset:
    def __repr__(self) -> str:
        return "unset"

    def __bool__(self) -> bool:
        return False


UNSET: Any = _Unset()
"""The default of an option for which the source vocabulary names none."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Option:
    """One option, declared once; everything else about it is derived from this row.

    Attributes:
        name: the flat name, or ``namespace.key`` where the flat name means something else.
        type: the annotation that validates a value (see :mod:`msctx.options.kinds`).
        help: one paragraph for people: what it does, in our own words.
        default: the value that MindSpore (or CANN) has when nobody sets it; msctx never assigns it by itself.
        devices: the devices on which the option has a meaning.
        groups: the dictionaries in which it may also stand, e.g. ``("gpu_config", "cpu_config")``.
        replaced_by: for a deprecated option: what to use instead. Such an option is inert everywhere.
        source: the document that defines it; ``"msctx"`` marks an option of our own.
        example: one value a user could write.
    """

    name: str
    type: Any
    help: str
    default: Any = UNSET
    devices: tuple[str, ...] = DEVICES
    groups: tuple[str, ...] = ()
    replaced_by: str = ""
    source: str = "mindspore.set_context"
    example: Any = UNSET

    @property
    def spellings(self) -> tuple[str, ...]:
        """Every dotted path under which the option may be set."""
        key = self.name.rpartition(".")[2]
        return (self.name, *(f"{group}.{key}" for group in self.groups))

    @property
    def is_text(self) -> bool:
        """Whether a bare word of the environment or the command line is its value as it stands, ``5`` and ``true`` too."""
        return any(isinstance(kind, TextKind) for kind in getattr(self.type, "__metadata__", ()))

    @property
    def adapter(self) -> Any:
        """The pydantic validator of :attr:`type`, built on first use: building all of them eagerly costs 150 ms."""
        return _adapter(self)


@cache
def _adapter(option: Option) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(option.type)
