"""What the property tests share: programs of scopes, changes by hand and exceptions, nested at random."""

import os
import random
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy
import pytest
import torch
from hypothesis import HealthCheck
from hypothesis import strategies as st
from samples import values
from torch import _C

from msctx.errors import MsctxError
from msctx.options import OPTIONS, Option, device_of
from msctx.options.kinds import Bool, Choice, Flag, Int, MemoryKind, Share
from msctx.switches import SWITCHES
from msctx.torch_config_overrides import override, put_override

State = Callable[[], dict[str, Any]]
Example = Callable[[], AbstractContextManager[None]]
common = {"suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]}
marks = [
    pytest.mark.usefixtures("elsewhere"),
    pytest.mark.usefixtures("torch_as_found"),
    pytest.mark.filterwarnings("ignore::msctx.errors.MsctxWarning"),
    pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled"),
]


def generators() -> tuple[Any, ...]:
    kind, keys, *rest = numpy.random.get_state()
    return random.getstate(), (kind, keys.tolist(), *rest), torch.get_rng_state().tolist()


# --- programs: scopes, changes by the user and exceptions, nested at random ------------------------------------------------


class Failure(Exception):
    """Raised by a program; some block above may catch it."""


class Stop(BaseException):
    """The same, of the kind that `except Exception` lets through, as KeyboardInterrupt."""


ENDS = Failure, Stop, KeyboardInterrupt, MsctxError
"""How a block may end: msctx refuses what contradicts itself."""


@dataclass(frozen=True)
class Block:
    """Enter something, run the blocks inside it one after the other, perhaps raise, perhaps catch what they raise."""

    entered: Any
    inside: tuple["Block", ...] = ()
    raises: type[BaseException] | None = None
    catches: bool = True


def blocks(entered: st.SearchStrategy[Any]) -> st.SearchStrategy[Block]:
    def around(inside: st.SearchStrategy[Block]) -> st.SearchStrategy[Block]:
        return st.builds(
            Block,
            entered,
            st.lists(inside, max_size=3).map(tuple),
            st.sampled_from([None, None, Failure, Stop, KeyboardInterrupt]),
            st.booleans(),
        )

    return st.recursive(st.builds(Block, entered), around, max_leaves=10)


@dataclass
class Runner:
    """Runs blocks; after each of them the state must be what it was before."""

    enter: Callable[[Any], AbstractContextManager[Any]]
    state: Callable[[], Any]
    depth: int = field(default=0)

    def run(self, block: Block) -> None:
        before = self.state()
        try:
            with self.enter(block.entered):
                for child in block.inside:
                    self.run(child)
                if block.raises:
                    raise block.raises
        except ENDS:
            assert self.state() == before
            if not block.catches:
                raise
        assert self.state() == before

    def run_all(self, program: list[Block]) -> None:
        before = self.state()
        try:
            for block in program:
                self.run(block)
        except ENDS:
            pass
        assert self.state() == before


# --- what a user may change by hand, outside msctx ----------------------------------------------------------------------


def _set_deterministic(value: tuple[bool, bool]) -> None:
    _C._set_deterministic_algorithms(value[0], warn_only=value[1])


def _inductor() -> Any:
    import torch._inductor.config as config

    return config


def _put_variable(value: str | None) -> None:
    os.environ.pop("TORCHINDUCTOR_DETERMINISTIC", None)
    if value is not None:
        os.environ["TORCHINDUCTOR_DETERMINISTIC"] = value


def _get_device() -> str | None:
    return SWITCHES["torch.default_device"].read()


BY_HAND: dict[str, tuple[Callable[[], Any], Callable[[Any], None], list[Any]]] = {
    "deterministic": (
        lambda: (_C._get_deterministic_algorithms(), _C._get_deterministic_algorithms_warn_only()),
        _set_deterministic,
        [(a, b) for a in (True, False) for b in (True, False)],
    ),
    "fill": (
        _C._get_deterministic_fill_uninitialized_memory,
        _C._set_deterministic_fill_uninitialized_memory,
        [True, False],
    ),
    "mkldnn": (_C._get_mkldnn_deterministic, _C._set_mkldnn_deterministic, [True, False]),
    "cudnn": (_C._get_cudnn_deterministic, _C._set_cudnn_deterministic, [True, False]),
    "benchmark": (_C._get_cudnn_benchmark, _C._set_cudnn_benchmark, [True, False]),
    "threads": (torch.get_num_threads, torch.set_num_threads, [1, 2, 3]),
    "anomaly": (
        lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        lambda value: torch.set_anomaly_enabled(*value),
        [(a, b) for a in (True, False) for b in (True, False)],
    ),
    "multithreading": (_C._is_multithreading_enabled, _C._set_multithreading_enabled, [True, False]),
    "recursion": (sys.getrecursionlimit, sys.setrecursionlimit, [3000, 7000]),
    "inductor": (
        lambda: override(_inductor(), "deterministic"),
        lambda value: put_override(_inductor(), "deterministic", value),
        [True, False],
    ),
    "variable": (lambda: os.environ.get("TORCHINDUCTOR_DETERMINISTIC"), _put_variable, ["0", "1", None]),
    "default device": (_get_device, torch.set_default_device, ["cpu", "meta", None]),
    "random numbers": (torch.get_rng_state, lambda s: torch.set_rng_state(s) if torch.is_tensor(s) else torch.rand(s), [1, 7]),
}


@contextmanager
def by_hand(name: str, value: Any) -> Iterator[None]:
    """A user who changes something and, later, puts it back."""
    read, write, _ = BY_HAND[name]
    found = read()
    write(value)
    try:
        yield
    finally:
        write(found)


changes_by_hand = st.sampled_from(sorted(BY_HAND)).flatmap(
    lambda name: st.tuples(st.just(name), st.sampled_from(BY_HAND[name][2]))
)


# --- options, each with values of its own type ----------------------------------------------------------------------------

NOT_DRAWN = {"inter_op_parallel_num", "strict"}
"""What torch takes once in a process, and what refuses most of the others."""
PRINTS = tempfile.TemporaryDirectory()
"""What a context that is entered with one of these makes, it makes here."""
FOLDERS = {"print_file_path": "prints.bin", "compile_cache_path": "graphs", "op_compiler_cache_dir": "kernels"}
SMALL = {"runtime_num_threads": 3, "max_call_depth": 6000}


def _values_of(option: Option, targets: Sequence[str]) -> st.SearchStrategy[Any]:
    if option.name == "device_target":
        return st.sampled_from(targets)
    if option.name in FOLDERS:
        return st.just(f"{PRINTS.name}/{FOLDERS[option.name]}")
    some = st.sampled_from(values(option))
    match option.kind:
        case Choice() as kind if kind in (Bool, Flag):
            return st.sampled_from(kind.choices)
        case Int(minimum=low, maximum=high):
            return st.integers(low, min(SMALL.get(option.name, low + 2), high))
        case MemoryKind(minimum=low):
            return st.sampled_from([size for size in (0, 2**26, 2**30, 2**31) if size >= low] or [low])
        case kind if kind is Share:
            return st.one_of(some, st.floats(1e-9, 0.5))
    return some


def _spellings(option: Option) -> list[str]:
    """Its name, and one in the group of each device that has such a group for it."""
    return [option.name, *{device_of(path): path for path in option.paths if device_of(path) and "." in path}.values()]


def of_every_option(*targets: str) -> st.SearchStrategy[dict[str, Any]]:
    """Some options with values, for a machine with these targets."""
    options = [option for option in OPTIONS.values() if option.name not in NOT_DRAWN and not option.replaced_by]
    drawn = st.sampled_from(options).flatmap(
        lambda option: st.tuples(st.sampled_from(_spellings(option)), _values_of(option, targets))
    )
    return st.lists(drawn, min_size=1, max_size=4).map(dict)
