"""check_bprop_values: the backward of a Function against differences of its forward, by ``torch.autograd.gradcheck`` in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import gradcheck
from torch.autograd.gradcheck import GradcheckError

from msctx import notices
from msctx.errors import GradientError, named
from msctx.observers.checked_gradients import BEFORE, NODES, Check, Source

VALUES = Check()


def _before(function: Any, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Before the call: it may change its inputs."""
    is_differentiated = torch.is_grad_enabled() and any(isinstance(x, torch.Tensor) and x.requires_grad for x in args)
    is_plain = not torch._C._are_functorch_transforms_active() and not torch.compiler.is_compiling()
    if VALUES.is_on() and is_differentiated and is_plain:
        _compare(Source(function), call, args, kwargs)


BEFORE.append(_before)


def _compare(source: Source, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Along a random direction of each input, so that gradcheck differentiates one number by a few."""
    draw = torch.Generator().manual_seed(0)

    def direction(like: torch.Tensor) -> torch.Tensor:
        found = torch.randn(like.shape, dtype=like.dtype, generator=draw)
        length = found.norm()
        return found.div_(length).to(like.device)

    wide = [_wide(value) for value in args]
    moves = {i: direction(wide[i]) for i, x in enumerate(args) if isinstance(x, torch.Tensor) and x.requires_grad}
    weights: list[torch.Tensor] = []

    def along(*steps: torch.Tensor) -> torch.Tensor:
        given = [x.clone() if isinstance(x, torch.Tensor) else x for x in wide]
        for (i, move), step in zip(moves.items(), steps, strict=True):
            given[i] = wide[i] + step * move
        torch.manual_seed(0)
        made = call(*given, **kwargs)
        results = [
            y for y in (made if isinstance(made, (tuple, list)) else [made]) if isinstance(y, torch.Tensor) and y.requires_grad
        ]
        weights.extend(map(direction, results[len(weights) :]))
        return torch.stack([(w.conj() * y).real.sum().cpu() for w, y in zip(weights, results, strict=True)]).sum()

    steps = tuple(torch.zeros((), dtype=torch.float64, requires_grad=True) for _ in moves)
    try:
        with NODES.paused(), VALUES.paused(), torch.random.fork_rng():
            gradcheck(along, steps, check_undefined_grad=False)
    except GradcheckError as error:
        text = f"returned a gradient that is not that of its forward: {' '.join(str(error).split())}"
        text += f" (inputs are those that need a gradient: {', '.join(map(source.argument, moves))})"
        source.wrong(GradientError, text, "compare it with the formula", "check_bprop_values")
    except Exception as error:
        text = f"check_bprop_values leaves out {source.name} ({source.place}): it does not run in float64 ({named(error)})"
        notices.warn(text)


def _wide(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    dtype = torch.float64 if value.is_floating_point() else torch.complex128 if value.is_complex() else value.dtype
    return value.detach().to(dtype)
