"""Switches of watched models: where parameters and activations are, what is computed again, and when ranks communicate."""

from __future__ import annotations

from functools import partial

from msctx.memory import offload, parameters, prefetch, recompute, reductions, weight_format
from msctx.switches.base import Switch

SWITCHES = (
    Switch(
        name="models.saved_on_host",
        read=partial(offload.is_on, "activations"),
        write=partial(offload.turn, "activations"),
        scope="thread",
    ),
    Switch(name="models.parameters", read=parameters.read, write=parameters.write),
    Switch(name="models.copies_of_parameters", read=parameters.copies, write=parameters.copy_for_operators, scope="thread"),
    Switch(name="models.weight_format", read=weight_format.read, write=weight_format.write),
    Switch(name="models.recompute", read=recompute.read, write=recompute.write),
    *(
        Switch(name=name, read=partial(reductions.read, way), write=partial(reductions.write, way))
        for name, way in (
            ("models.gradients_postponed", "postponed"),
            ("models.gradients_bundled", "bundled"),
        )
    ),
    *(
        Switch(name=name, read=partial(prefetch.read, way), write=partial(prefetch.write, way))
        for name, way in (("models.gathered_ahead_forward", "forward"), ("models.gathered_ahead_backward", "backward"))
    ),
)
