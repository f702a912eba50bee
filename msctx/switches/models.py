"""Switches of watched models: where their parameters and activations are, in which memory format, and what is computed again."""

from __future__ import annotations

from functools import partial

from msctx.memory import parameters, recompute, saved, weight_format
from msctx.switches.base import Switch

SWITCHES = (
    Switch(
        name="models.saved_on_host",
        read=partial(saved.is_on, "activations"),
        write=partial(saved.turn, "activations"),
        scope="thread",
    ),
    Switch(name="models.parameters", read=parameters.read, write=parameters.write),
    Switch(name="models.copies_of_parameters", read=parameters.copies, write=parameters.copy_for_operators, scope="thread"),
    Switch(name="models.weight_format", read=weight_format.read, write=weight_format.write),
    Switch(name="models.recompute", read=recompute.read, write=recompute.write),
)
