"""What the native core is asked to do on a kind of device: a few fields, each behind a switch; any of them sends the whole to it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from msctx.native import core, tuning, watching
from msctx.options.conv_rules import FEW_CHANNELS, Rule, rules_of

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
        self._lock = threading.Lock()

    @property
    def load(self) -> Callable[[], core.Core]:
        """What brings the library that carries it out."""
        return core.load if self.place == "cpu" else core.load_with_cuda

    def read(self, field: str) -> Any:
        return self.fields[field]

    def write(self, field: str, value: Any) -> None:
        with self._lock:
            before = self.fields[field]
            self.fields[field] = value
            try:
                self._send()
            except BaseException:
                self.fields[field] = before
                raise

    def _send(self) -> None:
        said = {**NOTHING, **self.fields}
        if not any(said[field] for field in ASKING):
            if (library := core.loaded()) is not None:
                library.clear_policy(self.place)
                tuning.keep(library)
            return
        library = self.load()
        watching.refresh(library)
        library.set_policy(
            self.place,
            {direction: said[f"conv_{direction}_algo"] for direction in core.DIRECTIONS},
            _rules(said),
            said["conv_workspace_limit"],
            said["conv_max_error"],
            said["fallback"],
            tuning.table(library, said["tuning_file"], self.place) if _measures(said) else 0,
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
    rules = said["conv_algo_rules"] or ""
    return "performance" in rules or any(said[f"conv_{direction}_algo"] == "performance" for direction in core.DIRECTIONS)
