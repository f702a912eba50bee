"""Who reads what the native core collects of operators; nothing is collected while nobody does."""

from __future__ import annotations

import functools
import itertools
import os
import shutil
import sys
import threading
from collections.abc import Callable, Mapping
from ctypes import py_object
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from msctx import notices
from msctx.errors import user_frame
from msctx.native import core
from msctx.observers import compile_trace, module_paths, steps
from msctx.observers import slots_and_files as files

Row = dict[str, Any]
"""An operator that ran: ``operator``, ``module``, ``direction``, ``step``, ``inputs``, ``outputs`` and so on; see collector.cpp."""

ASK_AGAIN = 2
"""Of :meth:`Reader.wants`: yes, and the next call of the operator is asked about again."""

DTYPES = {"Float": "float32", "Double": "float64", "Half": "float16", "BFloat16": "bfloat16", "Byte": "uint8", "Char": "int8",
          "Short": "int16", "Int": "int32", "Long": "int64", "Bool": "bool", "ComplexFloat": "complex64",
          "ComplexHalf": "complex32", "ComplexDouble": "complex128"}  # fmt: skip
"""The names of C++ → those of Python."""


def kind_of(operator: str) -> str:
    """``aten::convolution`` → ``convolution``."""
    return operator.rpartition("::")[2]


def around(module: str) -> list[str]:
    """``net.body.0`` → that, ``net.body``, ``net``."""
    return [module.rsplit(".", depth)[0] for depth in range(module.count(".") + 1)] if module else []


def dtype_of(tensor: dict[str, Any]) -> str:
    return DTYPES.get(tensor["dtype"]) or str(tensor["dtype"]).lower()


class Reader:
    """Somebody who reads what is collected. What it raises becomes a warning, so that a training goes on.

    Attributes:
        settings: what it was made for.
        option: its name in warnings.
        output: the folder that it writes into.
        process: in which it began.
        number: its own; the library has a queue for each reader.
        is_choosy: whether :meth:`wants` decides about operators.
        counted: the steps that were counted when it was paused, with which it goes on; see :func:`steps.span`.
        failures: the texts of warnings, each of which is given once.
        outlives_fork: whether it goes on in a forked process.
        wants_lines: whether rows of a backward pass have the user's ``line`` that called the operator of the forward pass.
    """

    is_choosy = outlives_fork = False
    wants_lines: ClassVar[bool] = False
    process = number = 0
    counted: object = None
    option = "an observer"
    output = Path()
    settings: Any

    @cached_property
    def failures(self) -> set[str]:
        return set()

    @property
    def requested(self) -> Mapping[str, int]:
        """What it requests now: the names of ``Reader`` (kernels/glue/observed.h)."""
        raise NotImplementedError

    @property
    def scratch(self) -> Path:
        """A folder of this process alone, for what is not whole or not named yet. The collector makes it."""
        return self.output / f".msctx-{os.getpid()}"

    @property
    def folder(self) -> Path | None:
        """Where files of tensors begin, where it requests these."""
        return None

    def drop(self, row: Row) -> None:
        """The files of an operator's tensors; those that were moved are gone."""
        for tensor in (*row["inputs"], *row["outputs"]):
            if tensor["file"]:
                (self.scratch / tensor["file"]).unlink(missing_ok=True)

    def wants(self, operator: str, module: str, number: int, place: int) -> int:
        """0 or 1; the answer holds for this operator in this module until a step ends, with :data:`ASK_AGAIN` for this call only.

        Called in the operator's thread before it runs; *number*: the ``id`` of its row; *place*: see :func:`modules.module_at`.
        """
        return 1

    def take(self, rows: list[Row]) -> None:
        """Rows of what it requested, in the thread of the last one."""

    def end_step(self) -> None:
        """A step has ended; what is requested may change."""

    def start(self) -> None:
        """It reads from now on, for the first time or again."""

    def pause(self) -> None:
        """It does not read any more, until it perhaps starts again."""
        shutil.rmtree(self.scratch, ignore_errors=True)

    def guarded(self, work: Callable[[], object]) -> None:
        """Whatever *work* raises, the program goes on."""
        files.guarded(self.option, self.output, work, self.failures)

    # what a Slot calls

    def begin(self) -> None:
        with _lock:
            self.process, self.number = os.getpid(), next(_numbers)
            _safely(self, self.start)
            _readers.append(self)
            _turn(self.counted)

    def end(self) -> None:
        with _lock:
            is_ours = self.process == os.getpid()
            try:
                if is_ours:
                    _take(self.number)
                    _safely(self, self.pause)
            finally:  # also where a warning is an error
                _readers.remove(self)
                self.counted = steps.span()
                _turn()
            if is_ours and (lost := core.load().c.msctx_collect_dropped()):
                notices.warn(f"{lost} operators could not be collected, or waited too long: they are not reported")


_lock = threading.RLock()
_readers: list[Reader] = []
_counting: list[Any] = []
_numbers = itertools.count(1)


def _turn(going_on: object = None) -> None:
    """Collect where there are readers."""
    if _readers and not _counting:
        _counting.append(steps.counting(_end_step, going_on))
        _counting[0].__enter__()
    elif not _readers and _counting:
        _counting.pop().__exit__(None, None, None)
    refresh()
    module_paths.turn(on=bool(_readers))
    compile_trace.LISTENER.turn(bool(_readers))


def _of_this_process() -> list[Reader]:
    """A forked process has its parent's readers until it leaves their scopes; they read nothing of it."""
    return [one for one in [*_readers] if one.process == os.getpid()]


def _after_fork() -> None:
    for one in _readers:
        if one.outlives_fork:
            one.process = os.getpid()
    if _readers:
        refresh()


os.register_at_fork(after_in_child=_after_fork)


def refresh() -> None:
    """Tell the library what each reader wants; a reader calls it when it wants something else."""
    library = core.loaded() or core.load()
    readers = _of_this_process()
    functions = [py_object(one) for one in (_take, _choose, _place)] if readers else [py_object()] * 3
    library.c.msctx_collect(core.json_of([*map(_requested, readers)]), steps.current(), *functions)


def _requested(one: Reader) -> dict[str, Any]:
    flags = {"lines": int(one.wants_lines), "chooses": int(one.is_choosy)}
    return {"reader": one.number, "folder": str(one.folder or ""), **flags, **one.requested}


def _choose(reader: int, operator: str, module: str, number: int, place: int) -> int:
    """Called by the library, in any thread: it lives as long as the process."""
    return next((one.wants(operator, module, number, place) for one in [*_readers] if one.number == reader), 0)


def _place(is_frame: int) -> int:
    """Called by the library in the thread of an operator: the text of the user's line that calls it, or the identity of the frame."""
    return id(sys._getframe().f_back) if is_frame else _text(user_frame()[0])


@functools.cache
def _text(line: str) -> int:
    found: int = core.load().c.msctx_text(line.encode())
    return found


def _take(reader: int) -> int:
    """Called by the library in the thread of an operator, and by us before a reader goes."""
    with _lock:
        rows = core.load().c.msctx_collected(reader)
        for one in _of_this_process() if rows else ():
            if one.number == reader:
                _safely(one, functools.partial(one.take, rows))
    return 0


def _safely(one: Reader, work: Callable[[], object]) -> None:
    """What it computes itself is not collected."""
    before = core.load().c.msctx_look_away(1)
    try:
        one.guarded(work)
    finally:
        core.load().c.msctx_look_away(before)


def flush() -> None:
    """Hand out the rows that wait."""
    for one in _of_this_process():
        _take(one.number)


def recent() -> list[Row]:
    """The last operators that ran, or run, with ``shapes`` of what went in; nothing else of their tensors."""
    without = ("overload", "node", "line", "maker", "problem", "inputs", "outputs", "attributes")
    return [{name: value for name, value in row.items() if name not in without} for row in core.load().c.msctx_collected(0)]


def _end_step(step: int) -> None:
    with _lock:
        flush()
        for one in _of_this_process():
            _safely(one, one.end_step)
        refresh()
