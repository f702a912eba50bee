"""check_bprop_values: the gradients of a hand-written backward against differences of its forward, in float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd import Function

from msctx import notices
from msctx.errors import GradientError, named
from msctx.observers.checked_gradients import NODES, Patch, Source, is_users

STEP = 1e-6
"""How far the inputs are moved; as torch's gradcheck does."""
TOLERANCE = 1e-3
"""The largest difference, as a share of the size of the terms that are summed; that of gradcheck."""
ROUNDING = 1e-8
"""As much of the outputs a difference may be rounded off, after the division by the step."""


class _Skip(Exception):
    """Why a call cannot be compared."""


def _apply(function: Any, *args: Any, **kwargs: Any) -> Any:
    call = VALUES.found.__get__(None, function)
    if VALUES.is_on() and NODES.is_on() and _is_differentiated(function, args):
        _compare(function, call, args, kwargs)  # before the call: it may change its inputs
    return call(*args, **kwargs)


VALUES = Patch(Function, "apply", classmethod(_apply))


def _is_differentiated(function: Any, args: Sequence[Any]) -> bool:
    return (
        is_users(function)
        and torch.is_grad_enabled()
        and any(isinstance(value, torch.Tensor) and value.requires_grad for value in args)
        and not torch._C._are_functorch_transforms_active()
        and not torch.compiler.is_compiling()
    )


def _compare(function: Any, call: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    source = Source(function)
    far = {value.device for value in args if isinstance(value, torch.Tensor) and value.device.type != "cpu"}
    kind = next((device.type for device in far), "cuda")
    try:
        # what the Function calls in turn is checked where it is called itself; copies in float64 have dtypes of their own
        with NODES.paused(), VALUES.paused(), torch.random.fork_rng(far, device_type=kind):
            _Comparison(call, args, kwargs).run(source)
    except _Skip as why:
        text = f"check_bprop_values leaves out {source.name} ({source.place}): {why}"
        notices.warn("check_bprop_values", text, text)


class _Comparison:
    """The derivative along a random direction, by the backward and by differences."""

    def __init__(self, call: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        self.call, self.args, self.kwargs = call, [_copy(value) for value in args], kwargs
        self.points = {
            i: self.args[i] for i, value in enumerate(args) if isinstance(value, torch.Tensor) and value.requires_grad
        }
        self.random = torch.Generator().manual_seed(0)

    def run(self, source: Source) -> None:
        for point in self.points.values():
            point.requires_grad_()
        outputs = self.outputs(self.points)
        self.chosen = [i for i, y in enumerate(outputs) if isinstance(y, torch.Tensor) and y.requires_grad]
        if not self.chosen:
            return
        results = [outputs[i] for i in self.chosen]
        self.weights = [self.like(y) for y in results]
        try:
            found = torch.autograd.grad(results, [*self.points.values()], self.weights, allow_unused=True)
        except Exception as error:
            raise _Skip(f"its backward raises in float64 ({named(error)})") from None
        self.gradients = {i: g for i, g in zip(self.points, found, strict=True) if g is not None}
        moving = {i: self.points[i] for i in self.gradients}
        with torch.no_grad():
            self.base = self.results(self.points)
            if any(not torch.equal(y, again.detach()) for y, again in zip(self.base, results, strict=True)):
                raise _Skip("two calls with the same inputs differ, or its values are not numbers")
            if self.wrong(moving):
                for index, point in moving.items():
                    if text := self.wrong({index: point}):
                        break
                else:
                    index, text = -1, self.wrong(moving)
                name = "its inputs together" if index < 0 else source.argument(index)
                source.wrong(
                    GradientError,
                    f"returned a gradient of {name} that is not that of its forward: {text}",
                    "compare it with the formula",
                    "check_bprop_values",
                )

    def outputs(self, points: dict[int, torch.Tensor]) -> Sequence[Any]:
        """Of a call with copies, since it may change its inputs."""
        args = [points.get(i, value) for i, value in enumerate(self.args)]
        try:
            outputs = self.call(*(x.clone() if isinstance(x, torch.Tensor) else x for x in args), **self.kwargs)
        except Exception as error:
            raise _Skip(f"its forward raises in float64 ({named(error)})") from None
        return outputs if isinstance(outputs, (tuple, list)) else [outputs]

    def results(self, points: dict[int, torch.Tensor]) -> list[torch.Tensor]:
        outputs = self.outputs(points)
        return [outputs[i] for i in self.chosen]

    def like(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.layout is not torch.strided:
            raise _Skip("it has tensors that are not dense")
        return torch.randn(tensor.shape, dtype=tensor.dtype, generator=self.random).to(tensor.device)

    def wrong(self, points: dict[int, torch.Tensor]) -> str:
        """What differs when these inputs move; ``""``: nothing."""
        moves = {i: self.like(point) for i, point in points.items()}

        def at(step: float) -> list[torch.Tensor]:
            return self.results(self.points | {i: points[i] + step * move for i, move in moves.items()})

        def bend(step: float, up: list[torch.Tensor], down: list[torch.Tensor]) -> float:
            """How far the slopes on the two sides are apart."""
            sides = zip(self.weights, up, self.base, down, strict=True)
            return abs(_sum([_terms(w, (u - 2 * y + d) / step) for w, u, y, d in sides]))

        up, down = at(STEP), at(-STEP)
        slopes = [_terms(w, (u - d) / (2 * STEP)) for w, u, d in zip(self.weights, up, down, strict=True)]
        ours = [_terms(g, moves[i]) for i, g in self.gradients.items() if i in moves]
        size = max(_norm(slopes), _norm(ours))
        allowed = TOLERANCE * size + ROUNDING * _norm([_terms(w, y) for w, y in zip(self.weights, self.base, strict=True)])
        expected, given = _sum(slopes), _sum(ours)
        if not math.isfinite(expected - given):
            raise _Skip("its values or gradients are not finite")
        near = bend(STEP, up, down)
        if near > allowed and bend(4 * STEP, at(4 * STEP), at(-4 * STEP)) < 2 * near:  # curvature would grow with the step
            raise _Skip("it is not smooth at these inputs")
        if abs(expected - given) <= allowed:
            return ""
        return f"along a random direction {given:.6g}, where differences of the forward give {expected:.6g}"


def _copy(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    wide = torch.float64 if value.is_floating_point() else torch.complex128 if value.is_complex() else value.dtype
    made = value.detach().to(wide, copy=True)
    if made.dtype != wide:
        raise _Skip(f"casts to {wide} on {value.device.type} give {made.dtype}")
    return made


def _terms(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """What is added up in the inner product."""
    return (left.conj() * right).real if left.is_complex() else left * right


def _norm(terms: list[torch.Tensor]) -> float:
    return math.sqrt(sum(float(one.square().sum()) for one in terms))


def _sum(terms: list[torch.Tensor]) -> float:
    return sum(float(one.sum()) for one in terms)
