"""The loaded library: loading and checking it, and its C functions in Python's words."""

from __future__ import annotations

import atexit
import ctypes
import json
import os
from ctypes import POINTER, Structure, c_char_p, c_double, c_int, c_int32, c_int64, c_void_p, py_object
from typing import TYPE_CHECKING, Any, NamedTuple

from msctx import locks, notices
from msctx.errors import NativeError, nearest
from msctx.options.conv_policy import FLAGS, ConvPolicy
from msctx.options.conv_rules import DIRECTIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ISA_VARIABLE = "MSCTX_ISA"
FALLBACKS = ("warn", "error", "silent")
PLACES = ("cpu", "cuda")
"""The kinds of devices that have a policy of their own."""
CUDA = ("libcudnn.so.9", "libtorch_cuda.so", "CUDA")
"""The libraries in which torch has cuDNN and its handle, and the dispatch key of its tensors."""


class _Condition(Structure):
    _fields_ = [("field", c_char_p), ("pattern", c_char_p)]


class _Rule(Structure):
    _fields_ = [("conditions", c_int32), ("condition", POINTER(_Condition)), ("asked", c_char_p * 3)]


class _Options(Structure):
    _fields_ = [
        ("workspace_limit", c_int64),
        ("max_error", c_double),
        ("fallback", c_int32),
        ("tuning", c_int32),
        *((flag, c_int32) for flag in FLAGS),
    ]


class _Policy(Structure):
    _fields_ = [("options", _Options), ("asked", c_char_p * 3), ("rules", c_int32), ("rule", POINTER(_Rule))]


class _Measured(Structure):
    _fields_ = [("label", c_char_p), ("ratio", c_double)]


class _Tuned(Structure):
    _fields_ = [
        *((name, c_char_p) for name in ("direction", "problem", "permissions", "ran", "math", "source")),
        *((name, c_int32) for name in ("threads", "exact", "count")),
        ("measured", POINTER(_Measured)),
    ]


_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "msctx_isa": (c_char_p, [c_int]),
    "msctx_isa_in_use": (c_char_p, []),
    "msctx_use_isa": (c_int, [c_char_p]),
    "msctx_install": (c_char_p, [py_object]),
    "msctx_tell_again": (None, []),
    "msctx_leave_python": (None, []),
    "msctx_install_cuda": (c_char_p, [c_char_p, c_char_p, c_char_p]),
    "msctx_serve_cuda_kernels": (c_char_p, [py_object, c_char_p]),
    "msctx_hook_problem": (c_char_p, [c_int]),
    "msctx_threads_seen": (c_int, []),
    "msctx_torch_threads": (c_int, []),
    "msctx_set_policy": (c_int, [c_int, POINTER(_Policy)]),
    "msctx_free": (None, [c_void_p]),
    "msctx_book_new": (c_void_p, [POINTER(_Rule), c_int]),
    "msctx_book_delete": (None, [c_void_p]),
    "msctx_book_open": (c_int, [c_void_p]),
    "msctx_book_close": (c_int, [c_void_p]),
    "msctx_book_rows": (c_void_p, [c_void_p]),
    "msctx_book_unmatched": (c_int, [c_void_p, c_int]),
    "msctx_learn": (c_int, [c_int32, POINTER(_Tuned), c_int]),
    "msctx_measured": (c_void_p, []),
    "msctx_measurements": (c_int64, []),
    "msctx_ask_before_measuring": (None, [py_object]),
    "msctx_watch": (c_int, [c_void_p, c_int64, c_char_p, c_char_p, c_char_p, c_int64]),
    "msctx_unwatch": (None, [c_void_p, c_int64, c_char_p, c_int64]),
    "msctx_watch_model": (c_int, [c_int64, c_int]),
    "msctx_watch_misses": (c_int64, []),
    "msctx_watch_lost": (c_int64, []),
}


class Tuned(NamedTuple):
    """A tuning file's entry for one problem; *exact*: its stamp is wholly that of this process."""

    direction: str
    problem: str
    permissions: str
    threads: int
    ran: str
    math: str
    measured: dict[str, float | None]
    source: str
    exact: bool


def declared(library: Any, signatures: dict[str, tuple[Any, list[Any]]]) -> Any:
    """The library, of whose functions these now have their types: name → result, arguments."""
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


class Core:
    """The library in this process. Its functions release the GIL."""

    def __init__(self, path: str) -> None:
        import torch

        torch.ops.load_library(path)
        self.path = path
        self._c = self.c = declared(ctypes.CDLL(path), _SIGNATURES)
        self._has_cuda = False
        self._choose_isa()
        if problem := self._c.msctx_install(_told).decode():
            raise NativeError(f"the native core could not be registered with PyTorch's dispatcher: {problem}")
        if self._c.msctx_torch_threads() > 1 and self._c.msctx_threads_seen() < 2:
            raise NativeError("the native core runs on one thread only: it was not built for the OpenMP that torch uses")
        atexit.register(self._c.msctx_leave_python)
        notices.FORGOTTEN.append(self._c.msctx_tell_again)

    def _choose_isa(self) -> None:
        wanted = os.environ.get(ISA_VARIABLE)
        if wanted and not self._c.msctx_use_isa(wanted.encode()):
            near = nearest(wanted.lower(), self.isas())
            hint = f"; did you mean {near}?" if near else ""
            raise NativeError(f"{ISA_VARIABLE}={wanted!r}: this processor has {', '.join(self.isas())}{hint}")

    def isas(self) -> list[str]:
        """The instruction sets of this processor that the kernels are built for, best first."""
        found: list[str] = []
        while (name := self._c.msctx_isa(len(found))) is not None:
            found.append(name.decode())
        return found

    def isa(self) -> str:
        return str(self._c.msctx_isa_in_use().decode())

    def hook_problem(self, place: str = "cpu") -> str:
        """``""`` while PyTorch's dispatcher calls our kernels, else whose it calls."""
        return str(self._c.msctx_hook_problem(PLACES.index(place)).decode())

    def install_cuda(self, cudnn: str, torch_cuda: str, key: str) -> None:
        """Have convolutions of CUDA tensors come to us, too; once is enough. What is given is as in :data:`CUDA`."""
        if self._has_cuda:
            return
        if problem := self._c.msctx_install_cuda(cudnn.encode(), torch_cuda.encode(), key.encode()).decode():
            raise NativeError(f"cuDNN's algorithms cannot be named here: {problem}")
        self._has_cuda = True
        from msctx.native.cuda import driver, plans

        # without a driver nothing of ours runs there, as its rows show
        self._c.msctx_serve_cuda_kernels(plans.plan, driver.LIBRARY.encode())

    def cuda_problem(self) -> str:
        """``""`` while convolutions of CUDA tensors come to us, or may yet."""
        return self.hook_problem("cuda") if self._has_cuda else ""

    def set_policy(self, place: str, policy: Any) -> None:
        """Put what :func:`policy_of` returned in force."""
        if not self._c.msctx_set_policy(PLACES.index(place), ctypes.byref(policy)):
            raise NativeError("the native core could not take the policy: there is no memory left")

    def clear_policy(self, place: str) -> None:
        self._c.msctx_set_policy(PLACES.index(place), None)

    def new_book(self, rules: tuple[Any, ...]) -> int:
        """A book in which the calls are counted that are made while it is open, by a context with these rules; to be deleted."""
        if not (book := self._c.msctx_book_new(_rules(rules), len(rules))):
            raise MemoryError
        return int(book)

    def delete_book(self, book: int) -> None:
        self._c.msctx_book_delete(book)

    def open_book(self, book: int) -> None:
        if not self._c.msctx_book_open(book):
            raise MemoryError

    def close_book(self, book: int) -> None:
        if not self._c.msctx_book_close(book):
            raise MemoryError

    def unmatched(self, book: int) -> list[int]:
        """Which of its rules matched no convolution since it was opened, though convolutions were run under them."""
        found: list[int] = []
        while (place := self._c.msctx_book_unmatched(book, found[-1] + 1 if found else 0)) >= 0:
            found.append(place)
        return found

    def rows(self, book: int | None) -> dict[str, Any]:
        """What a book has (``None``: that of the process): the rows, and how many were dropped since there were too many."""
        if not (text := self._c.msctx_book_rows(book)):
            raise MemoryError
        return dict(self._read(text))

    def learn(self, table: int, entries: Sequence[Tuned]) -> None:
        """Give the library the entries of a tuning file, as the table of this number; what it knows already stays."""
        array = (_Tuned * max(1, len(entries)))()
        for slot, entry in zip(array, entries, strict=False):
            ratios = [_Measured(label.encode(), ratio or 0.0) for label, ratio in entry.measured.items()]
            for name in ("direction", "problem", "permissions", "ran", "math", "source"):
                setattr(slot, name, getattr(entry, name).encode())
            slot.threads, slot.exact, slot.count = entry.threads, entry.exact, len(ratios)
            slot.measured = (_Measured * max(1, len(ratios)))(*ratios)
        if not self._c.msctx_learn(table, array, len(entries)):
            raise MemoryError

    def measured(self) -> list[dict[str, Any]]:
        """What was measured since the last call."""
        text = self._c.msctx_measured()
        return self._read(text) if text else []

    def measurements(self) -> int:
        """How many problems this process has measured."""
        return int(self._c.msctx_measurements())

    def ask_before_measuring(self, permission: Callable[[int], int]) -> None:
        """Have *permission* called in the thread of a convolution that is about to be measured for the table of a number, and while
        it is."""
        self._permission = permission  # kept: the library calls it as long as the process lives
        self._c.msctx_ask_before_measuring(permission)

    def _read(self, text: int) -> Any:
        try:
            return json.loads(ctypes.string_at(text))
        finally:
            self._c.msctx_free(text)

    def watch(self, storage: int, offset: int, shape: str, dtype: str, path: str, model: int) -> None:
        if not self._c.msctx_watch(storage, offset, shape.encode(), dtype.encode(), path.encode(), model):
            raise MemoryError

    def unwatch(self, storage: int, offset: int, path: str, model: int) -> None:
        self._c.msctx_unwatch(storage, offset, path.encode(), model)

    def watch_model(self, model: int, *, is_open: bool) -> None:
        if not self._c.msctx_watch_model(model, is_open):
            raise MemoryError

    def watch_misses(self) -> int:
        """How many weights were met since the last call that nobody had named, and are still alive; each counts once."""
        return int(self._c.msctx_watch_misses())

    def watch_lost(self) -> int:
        """How many named weights are gone."""
        return int(self._c.msctx_watch_lost())


def policy_of(policy: ConvPolicy, tuning: int) -> Any:
    """A policy as the library takes it; *tuning*: the number of its table of tuning results."""
    options = _Options(
        workspace_limit=-1 if policy.conv_workspace_limit is None else policy.conv_workspace_limit,
        max_error=policy.conv_max_error or 0.0,
        fallback=FALLBACKS.index(policy.fallback),
        tuning=tuning,
        **{flag: getattr(policy, flag) for flag in FLAGS},
    )
    return _Policy(options=options, asked=_names(policy.algorithms), rules=len(policy.rules), rule=_rules(policy.rules))


def _rules(rules: tuple[Any, ...]) -> Any:
    found = (_Rule * max(1, len(rules)))()
    for slot, rule in zip(found, rules, strict=False):
        conditions = [_Condition(field.encode(), pattern.encode()) for field, pattern in rule.conditions]
        slot.conditions, slot.condition = len(conditions), (_Condition * len(conditions))(*conditions)
        slot.asked = _names(dict(rule.asked))
    return found


def _names(asked: dict[str, str | None]) -> Any:
    return (c_char_p * 3)(*((name.encode() if (name := asked.get(d)) else None) for d in DIRECTIONS))


ON_LOAD: list[Callable[[Core], None]] = []
"""Called with the library once it is there."""
WORDED: dict[str, Callable[[], str]] = {}
"""Kinds of messages whose text Python finds; ``""``: no message."""


def _told(message: bytes) -> int:
    """Called by the library in the thread of the convolution; 1: raise there."""
    kind, _, text = message.decode(errors="replace").partition("\n")
    try:
        if kind in WORDED and not (text := WORDED[kind]()):
            return 0
        notices.tell(kind, text, text.rstrip())
    except Warning:  # warnings turned into errors
        return 1
    return 0


forked = False
"""Whether this process was forked, with or without the library in it."""


def _after_fork() -> None:
    global forked
    forked = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

_lock = locks.plain()
_core: Core | None = None
_failed = ""


def loaded() -> Core | None:
    """The library, if this process has loaded it."""
    return _core


def load() -> Core:
    """The library; built, loaded and checked the first time.

    Raises:
        NativeError: it cannot be had; the same reason is given again without another try.
    """
    global _core, _failed
    with _lock:
        if _core is None:
            if _failed:
                raise NativeError(_failed)
            from msctx.native import build

            try:
                _core = Core(str(build.library()))
                for begin in ON_LOAD:
                    begin(_core)
            except (NativeError, OSError, AttributeError) as error:
                _failed = f"{error}: {error.__cause__}" if error.__cause__ is not None else str(error)
                raise NativeError(_failed) from error
    return _core


def load_with_cuda() -> Core:
    """The library, with cuDNN's algorithms.

    Raises:
        NativeError: it cannot be had, or this torch's cuDNN has no interface in which algorithms are named.
    """
    library = load()
    with _lock:
        library.install_cuda(*CUDA)
    return library


def cudnn_obstacle() -> str:
    """Why cuDNN's algorithms cannot be named in this process, or ``""``; cheap. Import torch before."""
    if _core is not None and (problem := _core.cuda_problem()):
        return problem
    for name in CUDA[:2]:
        try:
            ctypes.CDLL(name, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        except OSError:
            return f"{name} is not loaded: this torch has no cuDNN 9"
    return ""


def obstacle() -> str:
    """Why the native core cannot serve now, or ``""``; cheap."""
    if _core is not None:
        problem = _core.hook_problem()
        return f"{problem}, registered after msctx's; enter the context before that library is loaded" if problem else ""
    if _failed:
        return _failed
    from msctx.native import build

    return build.obstacle()


def matrix_unit_obstacle() -> str:
    """Why the kernels have no matrix unit here, or ``""``: the same before the library is loaded and after."""
    from msctx.native import environment_key

    if isa := os.environ.get(ISA_VARIABLE):
        return "" if isa.startswith("amx") else f"{ISA_VARIABLE}={isa} has no matrix unit (AMX)"
    flags = environment_key.cpu()[1].split()  # none: they are not known
    return "" if not flags or {"amx_tile", "amx_bf16", "amx_int8"} <= {*flags} else "this processor has no matrix unit (AMX)"
