"""Switches of graph mode."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from msctx.graph import calls, gradients
from msctx.imports import when_imported
from msctx.switches.base import Switch
from msctx.switches.forced import Forced, forced_switch


def _read() -> dict[str, Any] | None:
    return None if calls.compilation is None else asdict(calls.compilation)


def _write(wanted: Any) -> None:
    calls.compilation = wanted


# --- torch.compile's stance: mode=PYNATIVE_MODE -------------------------------------------------------------------------

_FRAMES = "torch._dynamo.eval_frame"
_waiting: list[Callable[[], None]] = []
"""What gives up waiting for Dynamo, which takes a second to load."""


def _is_eager() -> bool:
    frames = sys.modules.get(_FRAMES)
    return bool(_waiting) if frames is None else frames._stance.stance == "force_eager"


def _force_eager(on: bool) -> None:
    """False leaves a stance of the program's own."""
    while _waiting:
        _waiting.pop()()
    if (frames := sys.modules.get(_FRAMES)) is None:
        if on:
            _waiting.append(when_imported(_FRAMES, lambda: _force_eager(True)))
    elif on != _is_eager():
        frames._set_stance(calls.Eager() if on else frames.DynamoStance())


def _stance() -> Any:
    frames = sys.modules.get(_FRAMES)
    return _is_eager() if frames is None else frames._stance


def _put_stance(found: Any) -> None:
    if isinstance(found, bool):
        _force_eager(found)  # also where Dynamo has been loaded since
    else:
        sys.modules[_FRAMES]._set_stance(found)


def _for_scalars(on: bool) -> None:
    gradients.for_scalars = on


SWITCHES = (
    Switch(
        name="graph.compilation",
        read=_read,
        write=_write,
        state=(lambda: calls.compilation, _write),
        satisfied=lambda wanted: bool(calls.compilation == wanted),
    ),
    Switch(name="graph.modules", read=calls.are_compiled, write=calls.compile_modules, state=(calls.found, calls.put_back)),
    Switch(name="graph.grad_for_scalar", read=lambda: gradients.for_scalars, write=_for_scalars),
    Switch(name="torch.dynamo.force_eager", read=_is_eager, write=_force_eager, state=(_stance, _put_stance)),
    forced_switch(
        "torch.dynamo.skip_nnmodule_hook_guards", Forced("torch._dynamo.config", "skip_nnmodule_hook_guards", lambda: True)
    ),
)
