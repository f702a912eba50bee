"""Random number generators of Python, NumPy and torch, as switches."""

from __future__ import annotations

import random
from typing import Any

import numpy
import torch

from msctx.native import distributed
from msctx.switches.base import Switch


def of_rank(seed: int, rank: int) -> int:
    """64 bits for one rank: ranks, and seeds, have independent ones by the design of NumPy's SeedSequence."""
    return int(numpy.random.SeedSequence(seed, spawn_key=(rank,)).generate_state(1, numpy.uint64)[0])


def _seed(requested: int | dict[str, Any]) -> None:
    """Sow a seed; or, of a ``seed`` that is to differ ``by_rank``, what is derived for this process."""
    seed = requested if isinstance(requested, int) else of_rank(requested["seed"], distributed.rank_or_0())
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
)
