"""Random number generators of Python, NumPy and torch, as switches."""

from __future__ import annotations

import random
from typing import Any

import numpy
import torch

from msctx.switches.base import Switch


def _seed(seed: int) -> None:
    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)  # every device; workers of a DataLoader draw theirs from it


def _save() -> dict[str, Any]:
    state = {"python": random.getstate(), "numpy": numpy.random.get_state(), "torch": torch.get_rng_state()}
    for name in ("cuda", "npu"):
        module = getattr(torch, name, None)
        if module is not None and module.is_initialized():
            state[name] = module.get_rng_state_all()
    return state


def _load(state: dict[str, Any]) -> None:
    if not isinstance(state, dict):
        return
    random.setstate(state["python"])
    numpy.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    for name in ("cuda", "npu"):
        if name in state:
            getattr(torch, name).set_rng_state_all(state[name])


SWITCHES = (
    Switch(
        name="rng.saved",
        read=lambda: None,
        write=lambda _: None,
        satisfied=lambda _: True,
        save=_save,
        load=_load,
        restore="closing",
    ),
    Switch(name="rng.seed", read=torch.initial_seed, write=_seed, satisfied=lambda _: False, restore="kept"),
)
