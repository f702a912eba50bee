"""What the native core is asked to do on a kind of device: a few fields, each behind a switch. They are sent as one."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from msctx import locks
from msctx.native import core, tuning, watching
from msctx.options.conv_rules import FEW_CHANNELS, Rule, asked_by, rules_of

NOTHING: dict[str, Any] = {
    "conv_fprop_algo": None,
    "conv_dgrad_algo": None,
    "conv_wgrad_algo": None,
    "conv_algo_rules": None,
    "conv_workspace_limit": None,
    "conv_max_error": None,
    "fallback": "warn",
    "deterministic": False,
    "thread_invariant": False,
    "enable_small_channel": False,
    "conv_allow_tf32": False,
    "allow_fp32_emulation": True,
    "frozen_weights": False,
    "tuning_file": None,
}
ASKING = (
    "conv_fprop_algo",
    "conv_dgrad_algo",
    "conv_wgrad_algo",
    "conv_algo_rules",
    "thread_invariant",
    "enable_small_channel",
)
"""The fields that ask for something; the others only say how."""

OF_THE_CPU = ("thread_invariant", "enable_small_channel", "frozen_weights", "conv_max_error")
"""The fields that CUDA's policy lacks. Nothing there depends on the number of the CPU's threads; kernels of our own are there for
depthwise convolutions alone; no weights are kept; and cuDNN does not state its errors."""


class Policy:
    """What is asked for at a place, which is one of :data:`core.PLACES`."""

    def __init__(self, place: str) -> None:
        self.place = place
        self.fields = {name: nothing for name, nothing in NOTHING.items() if place == "cpu" or name not in OF_THE_CPU}
        self._sent = dict(self.fields)
        """The fields as the library has them."""

    @property
    def load(self) -> Callable[[], core.Core]:
        """What brings the library that carries it out."""
        return core.load if self.place == "cpu" else core.load_with_cuda

    def read(self, field: str) -> Any:
        return self.fields[field]

    def write(self, field: str, value: Any) -> None:
        with _lock:
            before = self.fields[field]
            self.fields[field] = value
            try:
                if not _together:
                    self.send()
            except BaseException:
                self.fields[field] = before
                raise

    def send(self) -> None:
        """Let the library have the fields, if it does not."""
        if self.fields == self._sent:
            return
        said = {**NOTHING, **self.fields}
        if any(said[field] for field in ASKING):
            library = self.load()
            watching.refresh(library)
            number = tuning.table(library, said["tuning_file"], self.place) if _measures(said) else 0
            library.set_policy(self.place, _as_asked(tuple(said.values()), number))
        elif (loaded := core.loaded()) is not None:
            loaded.clear_policy(self.place)
            tuning.keep(loaded)
        self._sent = dict(self.fields)


_lock = locks.reentrant()
_together: list[int] = []
"""The threads that are in a block."""


def _after_fork() -> None:
    _together[:] = [thread for thread in _together if thread == threading.get_ident()]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@contextmanager
def together() -> Iterator[Callable[[], None]]:
    """Send what is written in the block as one, at its end; or when the function that it yields is called, which may raise."""
    with _lock:
        _together.append(threading.get_ident())
    try:
        yield _send
    finally:
        with _lock:
            _together.remove(threading.get_ident())
            if not _together:
                _send()


def _send() -> None:
    with _lock:
        for one in PLACES.values():
            one.send()


@lru_cache(maxsize=64)
def _as_asked(values: tuple[Any, ...], table: int) -> Any:
    """The values of :data:`NOTHING`'s fields as the library takes them."""
    said = dict(zip(NOTHING, values, strict=True))
    return core.policy_of(
        {direction: said[f"conv_{direction}_algo"] for direction in core.DIRECTIONS},
        _rules(said),
        said["conv_workspace_limit"],
        said["conv_max_error"],
        said["fallback"],
        table,
        deterministic=said["deterministic"],
        thread_invariant=said["thread_invariant"],
        allow_tf32=said["conv_allow_tf32"],
        allow_fp32_emulation=said["allow_fp32_emulation"],
        frozen_weights=said["frozen_weights"],
    )


def switch_of(field: str, place: str) -> str:
    """The name of a field's switch."""
    return f"native.{field}" if place == "cpu" else f"native.{place}.{field}"


PLACES = {place: Policy(place) for place in core.PLACES}


def _rules(said: Mapping[str, Any]) -> tuple[Rule, ...]:
    """Those asked for; after them, for images of few channels, what no other option decides."""
    asked = rules_of(said["conv_algo_rules"]) if said["conv_algo_rules"] else ()
    open_for = tuple((d, "normal") for d in core.DIRECTIONS if not said[f"conv_{d}_algo"])
    return (*asked, Rule(FEW_CHANNELS, open_for)) if said["enable_small_channel"] and open_for else asked


def _measures(said: Mapping[str, Any]) -> bool:
    named = {direction: said[f"conv_{direction}_algo"] for direction in core.DIRECTIONS}
    return any(name == "performance" for _, name in asked_by(named, said["conv_algo_rules"]))
