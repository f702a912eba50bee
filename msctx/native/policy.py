"""What the native core is asked to do: a few fields, each behind a switch; any of them sends the whole to the library."""

from __future__ import annotations

import threading
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

_lock = threading.Lock()
_fields = dict(NOTHING)


def read(field: str) -> Any:
    return _fields[field]


def write(field: str, value: Any) -> None:
    with _lock:
        before = _fields[field]
        _fields[field] = value
        try:
            _send()
        except BaseException:
            _fields[field] = before
            raise


def _send() -> None:
    if not any(_fields[field] for field in ASKING):
        if (library := core.loaded()) is not None:
            library.clear_policy()
            tuning.keep(library)
        return
    library = core.load()
    watching.refresh(library)
    library.set_policy(
        {direction: _fields[f"conv_{direction}_algo"] for direction in core.DIRECTIONS},
        _rules(),
        _fields["conv_workspace_limit"],
        _fields["conv_max_error"],
        _fields["fallback"],
        tuning.table(library, _fields["tuning_file"]) if _measures() else 0,
        deterministic=_fields["deterministic"],
        thread_invariant=_fields["thread_invariant"],
        allow_tf32=_fields["conv_allow_tf32"],
        allow_fp32_emulation=_fields["allow_fp32_emulation"],
        frozen_weights=_fields["frozen_weights"],
    )


def _rules() -> tuple[Rule, ...]:
    """Those asked for; after them, for images of few channels, what no other option decides."""
    asked = rules_of(_fields["conv_algo_rules"]) if _fields["conv_algo_rules"] else ()
    open_for = tuple((d, "normal") for d in core.DIRECTIONS if not _fields[f"conv_{d}_algo"])
    return (*asked, Rule(FEW_CHANNELS, open_for)) if _fields["enable_small_channel"] and open_for else asked


def _measures() -> bool:
    rules = _fields["conv_algo_rules"] or ""
    return "performance" in rules or any(_fields[f"conv_{direction}_algo"] == "performance" for direction in core.DIRECTIONS)
