"""Switches of torch itself: determinism, threads, anomaly mode, the default device, random numbers (of Python and NumPy, too);
and what is only observed."""

from __future__ import annotations

import ctypes
import os
import random
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy
import torch
from torch import _C

from msctx.native import core, module_tracker, ranks_and_process_group
from msctx.switches.base import LateError, Switch

# --- determinism ------------------------------------------------------------------------------------------------------
# torch.use_deterministic_algorithms() is not used: it also overwrites inductor's flag, which the user may have set (trap 8),
# and it loads inductor, a second's work. mode and warn_only have one setter and are one state (trap 12).
# While an operator runs that the mode leaves out, in whichever thread, the flag is off, and our library has what it is.
_DETERMINISTIC: Any = torch.utils.deterministic


def _deterministic() -> tuple[bool, bool]:
    """The mode, and whether it only warns."""
    if (library := core._core) is None:  # without a call: each block comes here
        return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    bits = library.c.msctx_deterministic()
    return bool(bits & 1), bool(bits & 2)


def _set_deterministic(on: bool, warns: bool) -> None:
    if (library := core._core) is None:
        _C._set_deterministic_algorithms(on, warn_only=warns)
    else:
        library.c.msctx_set_deterministic(on + 2 * warns)


def _mode(name: str, take: Callable[[], Any], put: Callable[[bool, bool], object], word: str, usual: bool) -> Switch:
    """A mode with a detail, which is part of its state also while it is off. *word*: it is on, and the detail is not as *usual*."""

    def read() -> bool | str:
        on, detail = take()
        return word if on and detail != usual else bool(on)

    return Switch(name, read, lambda value: put(bool(value), usual != (value == word)), state=(take, lambda found: put(*found)))


def _anomaly() -> tuple[bool, bool]:
    """Anomaly mode, and whether it checks for NaN."""
    return torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()


# --- default device ---------------------------------------------------------------------------------------------------


def _read_default_device() -> str | None:
    """The device of ``torch.set_default_device``; torch.get_default_device() does not distinguish none from cpu."""
    context = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    return None if context is None else str(context.device)


# --- depth of module calls --------------------------------------------------------------------------------------------


class _CallDepth:
    limit: int | None = None

    @classmethod
    def write(cls, limit: int | None) -> None:
        cls.limit = limit
        module_tracker.turn(_enter_module, limit is not None, 3)


def _enter_module(module: Any, call: module_tracker.Call) -> None:
    if _CallDepth.limit is not None and len(module_tracker.here.calls) > _CallDepth.limit:
        raise RuntimeError(
            f"Exceed function call depth limit {_CallDepth.limit} in {type(module).__name__}.forward "
            "(max_call_depth of the msctx context counts nested module calls)"
        )


# --- denormals: whether numbers below the smallest normal one are zero, a mode of each thread's floating-point unit ----

_process = os.getpid()
_most = torch.get_num_threads()
"""Threads that torch's pool may have: those that a smaller number leaves out sleep, and keep their mode."""
_is_reached = False
"""Whether it has got the mode of a thread from us."""
_smallest = sys.float_info.min
"""A name, not a constant: the compiler would halve it once and for all."""


@cache
def _libraries() -> tuple[Any, Any] | None:
    """Of the floating-point environment, and the OpenMP that torch computes with; ``None``: torch's is another."""
    try:
        libm, torch_itself = ctypes.CDLL("libm.so.6"), ctypes.CDLL(torch._C.__file__)
        torch_itself.GOMP_parallel.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
        return libm, torch_itself
    except (OSError, AttributeError):
        return None


def _write_denormals(on: bool) -> None:
    """torch's own setter reaches the calling thread alone: its pool's threads take over the mode here, or each chunk of an operator
    would follow another."""
    global _is_reached
    torch.set_flush_denormal(on)
    _is_reached = True
    _reach_pool()


def _reach_pool() -> None:
    """The pool's threads take over the mode of this one, if it was ever changed here: to be called when their number has changed."""
    global _most
    _most, found = max(_most, torch.get_num_threads()), _libraries()
    # after a fork the pool is not there, and waiting for it hangs
    if not _is_reached or found is None or _most < 2 or os.getpid() != _process:
        return
    libm, openmp = found
    environment = ctypes.create_string_buffer(64)  # more than any C library's fenv_t has
    libm.fegetenv(environment)
    openmp.GOMP_parallel(ctypes.cast(libm.fesetenv, ctypes.c_void_p), ctypes.addressof(environment), _most, 0)


# --- threads ----------------------------------------------------------------------------------------------------------


def _in_new_thread(function: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


def _save_threads() -> tuple[int, int]:
    """This thread's own number, and what new threads get: torch sets both together and shows only the first.

    They are the same in the main thread, unless another one has set its own; that is not looked for, a thread costs 0.1 ms.
    """
    own = torch.get_num_threads()
    return own, own if threading.current_thread() is threading.main_thread() else _in_new_thread(torch.get_num_threads)


def _write_threads(number: int) -> None:
    torch.set_num_threads(number)
    _reach_pool()


def _load_threads(state: tuple[int, int]) -> None:
    own, default = state
    _write_threads(own)
    if default != own:
        _in_new_thread(lambda: torch.set_num_threads(default))


def _threads_blocked(number: int) -> str:
    """OpenMP's threads do not survive a fork; to ask a forked process for more than it has would hang it."""
    if os.getpid() != _process and number > torch.get_num_threads():
        return f"runtime_num_threads={number} is not taken in a forked process: its threads were left behind in the parent"
    return ""


_ONCE = "the first parallel work between operators, and only once in a process"
_has_interop_threads = False


def interop_threads() -> int:
    """The number that was set, which stays in force; 0: none was."""
    return torch.get_num_interop_threads() if _has_interop_threads else 0


def _write_interop_threads(number: int) -> None:
    global _has_interop_threads
    _has_interop_threads = True  # also where torch refuses: its pool was there before
    try:
        torch.set_num_interop_threads(number)
    except RuntimeError:
        raise LateError(_interop_threads_late(number)) from None


def _interop_threads_late(number: int) -> str:
    if not _has_interop_threads:
        return ""
    return f"torch.num_interop_threads can only be set before {_ONCE}: {torch.get_num_interop_threads()} stays in force"


# --- random numbers ---------------------------------------------------------------------------------------------------


def of_rank(seed: int, rank: int) -> int:
    """64 bits for one rank: ranks, and seeds, have independent ones by the design of NumPy's SeedSequence."""
    return int(numpy.random.SeedSequence(seed, spawn_key=(rank,)).generate_state(1, numpy.uint64)[0])


def _seed(requested: int | dict[str, Any]) -> None:
    """Sow a seed; or, of a ``seed`` that is to differ ``by_rank``, what is derived for this process."""
    seed = requested if isinstance(requested, int) else of_rank(requested["seed"], ranks_and_process_group.rank_or_0())
    random.seed(seed)
    numpy.random.seed(seed if isinstance(requested, int) else [seed % 2**32, seed >> 32])  # it takes words of 32 bits
    # every device; workers of a DataLoader draw theirs from it. Without an accelerator manual_seed formats three tracebacks.
    (torch.manual_seed if torch.accelerator.is_available() else torch.default_generator.manual_seed)(seed)


def _save() -> dict[str, Any]:
    state = {"python": random.getstate(), "numpy": numpy.random.get_state(), "torch": torch.get_rng_state()}
    for name in ("cuda", "npu"):
        module = getattr(torch, name, None)
        if module is not None and module.is_initialized():
            state[name] = module.get_rng_state_all()
    return state


def _load(state: dict[str, Any]) -> None:
    random.setstate(state["python"])
    numpy.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    for name in ("cuda", "npu"):
        if name in state:
            getattr(torch, name).set_rng_state_all(state[name])


SWITCHES = (
    Switch("rng.saved", lambda: None, lambda _: None, satisfied=lambda _: True, state=(_save, _load), restore="closing"),
    Switch("rng.seed", torch.initial_seed, _seed, satisfied=lambda _: False, restore="kept"),
    _mode("torch.deterministic", _deterministic, _set_deterministic, "warn_only", usual=False),
    Switch(
        "torch.deterministic.fill_uninitialized_memory",
        lambda: _DETERMINISTIC.fill_uninitialized_memory,
        lambda on: setattr(_DETERMINISTIC, "fill_uninitialized_memory", on),
    ),
    Switch("torch.flush_denormal", lambda: _smallest / 2 == 0.0, _write_denormals, scope="inherited"),
    Switch("torch.mkldnn.deterministic", _C._get_mkldnn_deterministic, _C._set_mkldnn_deterministic),
    Switch(
        "torch.num_threads",
        torch.get_num_threads,
        _write_threads,
        state=(_save_threads, _load_threads),
        scope="inherited",
        blocked=_threads_blocked,
    ),
    Switch(
        "torch.num_interop_threads",
        torch.get_num_interop_threads,
        _write_interop_threads,
        restore=f"it is read only before {_ONCE}",
        blocked=_interop_threads_late,
    ),
    _mode("torch.anomaly_mode", _anomaly, torch.set_anomaly_enabled, "without check_nan", usual=True),
    Switch("torch.autograd.multithreading", _C._is_multithreading_enabled, _C._set_multithreading_enabled, scope="thread"),
    Switch("torch.default_device", _read_default_device, torch.set_default_device, scope="thread"),
    Switch("torch.nn.max_call_depth", lambda: _CallDepth.limit, _CallDepth.write),
    Switch("torch.default_dtype", lambda: str(torch.get_default_dtype())),
    Switch("torch.grad_enabled", torch.is_grad_enabled),
    Switch("torch.inference_mode", torch.is_inference_mode_enabled),
    Switch("torch.autocast.cpu", lambda: str(torch.get_autocast_dtype("cpu")) if torch.is_autocast_enabled("cpu") else None),
    Switch("torch.autocast.cuda", lambda: str(torch.get_autocast_dtype("cuda")) if torch.is_autocast_enabled("cuda") else None),
    Switch("torch.mkldnn.enabled", lambda: torch.backends.mkldnn.enabled),
    Switch("torch.mkldnn.allow_tf32", lambda: torch.backends.mkldnn.allow_tf32),
    Switch("torch.quantized.engine", lambda: torch.backends.quantized.engine),
    Switch("torch.cpu_capability", torch.backends.cpu.get_cpu_capability),
)
