"""Warns of an optimizer's step whose gradients went through float16 and were not scaled: those below 6e-8 have vanished."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from types import FrameType
from typing import Any

from msctx.native import precision
from msctx.notices import warn
from msctx.options.precision_rules import precision_of

SCALED: weakref.WeakSet[Any] = weakref.WeakSet()
"""The optimizers whose step that is under way has gradients which were scaled, by no GradScaler.step."""
TEXT = (
    "an optimizer steps with gradients from float16 that are not scaled; those below 6e-8 vanish. Use scaler = ctx.grad_scaler(), "
    "scaler.scale(loss).backward(), scaler.step(optimizer) and scaler.update(); in a loop that is not yours, LossScaling; under "
    "Hugging Face's Trainer, call callback.scaling(loss) in a compute_loss of your own"
)


class _Here(threading.local):
    """How many operators of backward passes had computed in float16 when the policy in force began, and at the last step."""

    begun = stepped = 0
    is_low = has_warned = False


_here = _Here()


def _halves(traced: bool = False) -> int:
    return int(precision.library().msctx_precision_halves(traced))


def policies_changed() -> None:
    """What is in force in this thread is another."""
    before, _here.is_low = _here.is_low, any(precision_of(p.text).needs_scaler for p in precision.here.policies.values())
    if _here.is_low and not before:
        _here.begun = _here.stepped = _halves()
        _here.has_warned = False


def left_over() -> list[str]:
    """The warning at the end of a block whose gradients no optimizer has used: none where somebody has a scaler, to step later."""
    if not _here.is_low or _halves() <= _here.stepped or _has_scaler():
        return []
    _here.stepped = _halves()
    return [TEXT]


def _has_scaler() -> bool:
    from torch.amp import GradScaler

    kinds: list[type[GradScaler]] = [GradScaler]
    for kind in kinds:
        kinds += kind.__subclasses__()
    # Not gc.get_objects: a tuple that another thread is just making must have no second reference
    return any(issubclass(type(found), GradScaler) and found.is_enabled() for found in gc.get_referrers(*kinds))


def stepped(optimizer: Any) -> None:
    """An optimizer has stepped in this thread."""
    if _here.is_low:
        _here.stepped = _halves()
        is_from_half = _here.stepped > _here.begun or _halves(traced=True)
        if is_from_half and optimizer not in SCALED and not _here.has_warned and not _is_in_scaler():
            warn(TEXT)
            _here.has_warned = True
    SCALED.discard(optimizer)


def _is_in_scaler() -> bool:
    from torch.amp import GradScaler

    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not GradScaler.step.__code__:
        frame = frame.f_back
    return frame is not None and frame.f_locals["self"].is_enabled()
