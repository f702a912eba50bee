"""MindSpore's names that msctx has not: each can be imported, and raises an error once it is used."""

from __future__ import annotations

import re
import sys
from typing import Any

from msctx.mindspore.errors import NotSupportedError
from msctx.options.registry import vocabulary

SETTINGS = vocabulary()["settings"]
"""Functions, and parameters of functions, that set something which is no option → what takes their place."""
REASONS = SETTINGS | vocabulary()["names"]
CONTEXT = REASONS["mint"].removesuffix(" torch")
VARIABLES = vocabulary()["variables"]
NOT_READ = {name: f"msctx does not read it; use {option}" for name, option in VARIABLES.items()}
"""Variables of the environment → the option that takes their place."""
IF_SET = vocabulary()["set_variables"]
_OTHERS = re.compile(r"(?:(HCCL|ASCEND)|MS|MINDSPORE|GLOG)_(?!DIAGNOSTIC_DATA_PATH)\w+")
"""Other variables of MindSpore, and those of what runs below torch_npu, too."""
_SETTING = re.compile(r"environ\[.*\] *=(?!=)|environ\.(setdefault|update)|putenv")
"""What a line has that sets a variable."""


def about_variable(name: str, line: str = "putenv") -> str:
    """What takes the place of a variable, or why nothing does; ``""``: it is none of MindSpore's, or the line does not set it."""
    if name in NOT_READ or not _SETTING.search(line):
        return NOT_READ.get(name, "")
    other = _OTHERS.fullmatch(name)
    why = "HCCL, CANN and torch_npu read theirs as before" if other and other[1] else "only MindSpore reads it"
    return IF_SET.get(name, f"no option: {why}" if other else "")


class Absent:
    """A name of MindSpore without counterpart in msctx. It can be imported; calling it or reading its attributes raises."""

    def __init__(self, name: str, why: str = "") -> None:
        self._name, self._why = name, why or REASONS[name]
        self.__module__, _, self.__name__ = f"ms.{name}".rpartition(".")
        self.__qualname__ = self.__name__
        self.__doc__ = f"Not supported by msctx: {self._why}."

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise self._error("()")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # what Python and its tools ask of any object
            raise AttributeError(name)
        raise self._error(f".{name}")

    def __repr__(self) -> str:
        return f"<ms.{self._name}, not supported by msctx>"

    def _error(self, what: str) -> NotSupportedError:
        why = REASONS.get(f"{self._name}{what}", self._why)
        return NotSupportedError(f"ms.{self._name}{what} is not supported by msctx: {why}. Nothing was changed.")


class _Operators(Absent):
    """Of MindSpore's operators, msctx has the one that an option acts on."""

    @property
    def Print(self) -> Any:
        from msctx.observers.printing import Print

        return Print


def of(module: str) -> dict[str, Absent]:
    """The absent names of one of MindSpore's modules."""
    return {name.rpartition(".")[2]: Absent(name) for name in REASONS if name.rpartition(".")[0] == module}


OF_TOP = of("") | {"ops": _Operators("ops")}
OF_CONTEXT = {name: absent for name, absent in OF_TOP.items() if name.endswith("_context") or name == "ParallelMode"}
"""Absent names of MindSpore's module ``context``, which its top level has too."""


def why_absent(name: str) -> str:
    """What the error says of any other name below ``ms``."""
    return f"ms.{name} is not supported by msctx: {REASONS.get(name.partition('.')[0], f'{CONTEXT} torch')}"


def no_attribute(module: str, name: str) -> Any:
    """``__getattr__`` of MindSpore's modules."""
    raise AttributeError(why_absent(f"{module}.{name}".removeprefix("msctx.mindspore.")), name=name)


class _NoModules:
    """Importing another of MindSpore's modules raises an error with the reason."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> None:
        parent, _, below = name.partition("msctx.mindspore.")
        if below and not parent:
            raise ImportError(why_absent(below), name=name)


sys.meta_path.append(_NoModules)  # last: it finds modules that no other finder has
