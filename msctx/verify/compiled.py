"""Compiled code beside eager code, in a run that goes on eagerly.

Each graph that Dynamo captures runs on the same inputs as it is, compiled, and in float64, forward and backward. The first two may
differ by rounding: by a multiple of the smaller one's error against float64, or of what other last bits in all that is computed make.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import Any, NamedTuple

import torch
from torch import fx

from msctx.errors import MsctxError, named
from msctx.graph import calls
from msctx.observers import compiled_places
from msctx.verify import graph
from msctx.verify.wire import Message

Backend = Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Any]]

FACTOR = 8
"""How many times larger the error of one side may be; with many digits a quarter of them, since Inductor's order of the sums of batch
norms costs six bits."""
NUDGED = 2
"""Runs with other last bits. What agrees in half of its digits is no difference. Nor is what agrees in three quarters of those of the
largest value of all results, or all gradients, where it is nothing but rounding: what else is small is compared with itself."""
RECOMPILES = 1 << 16
"""Code that is compiled more often than Dynamo's limit would run eagerly."""
INTEGERS = 1e-3
"""The part of integers and truth values that may differ: rounding turns comparisons."""


class Held(NamedTuple):
    """A result of a graph, with the relative errors of both sides against float64 (L2 norms)."""

    name: str
    eager: float
    compiled: float
    agrees: bool

    @property
    def is_gradient(self) -> bool:
        return _is_gradient(self.name)


class CompiledRaises(MsctxError):
    """Compiled code raised."""


class Graphs:
    """What was found in a run since the last step."""

    def __init__(self) -> None:
        self._notes: list[str] = []
        self._nearer = {"eager": 0, "compiled": 0}
        self._has_found = False
        self.forget()

    def forget(self) -> None:
        self._count = 0
        self._finding: Message | None = None

    @property
    def report(self) -> Message:
        return {"count": self._count, "finding": self._finding, "notes": self._notes, "nearer": self._nearer}

    @contextmanager
    def captured(self) -> Iterator[None]:
        """Inside, what ``torch.compile`` compiles comes here, and so does what graph mode does: each call of an outermost module."""
        compile_, modules = torch.compile, calls.found()

        def compiling(
            model: Any = None, *, backend: Any = "inductor", mode: Any = None, options: Any = None, **how: Any
        ) -> Any:
            if model is None:
                return functools.partial(compiling, backend=backend, mode=mode, options=options, **how)
            if backend == "inductor":
                theirs: Backend = torch._TorchCompileInductorWrapper(mode, options, how.get("dynamic"))
            else:
                theirs = torch._TorchCompileWrapper(backend, mode, options, how.get("dynamic"))
            return compile_(model, backend=self._beside(theirs), **how)

        torch.compile = compiling
        calls.forget()
        calls.compile_modules(True)
        try:
            limits: dict[str, Any] = {
                "recompile_limit": RECOMPILES,
                "accumulated_recompile_limit": RECOMPILES,
                "suppress_errors": True,
            }
            with torch._dynamo.config.patch(limits), torch._inductor.config.patch(fallback_random=True):
                yield
        finally:
            torch.compile = compile_
            calls.forget()
            calls.put_back(modules)

    def _beside(self, theirs: Backend) -> Backend:
        def backend(gm: fx.GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
            if self._has_found:
                return gm
            try:
                trial = Trial(gm, theirs, examples)
            except Exception as error:
                self._note(f"a graph does not compile ({named(error)})")
                return gm

            def run(*inputs: Any) -> Any:
                if not self._has_found:
                    self._hold(trial, inputs)
                return gm(*inputs)

            return run

        return backend

    def _hold(self, trial: Trial, inputs: Sequence[Any]) -> None:
        try:
            held = trial.hold(inputs)
        except CompiledRaises as error:
            self._has_found = True
            self._finding = {"kind": "compiled", "operator": "a graph", "reason": f"the compiled code raises {error}"}
            return
        except Exception as error:  # the training goes on
            what = error if isinstance(error, graph.NotComparable) else named(error)
            self._note(f"a graph was not compared: {what}")
            return
        self._count += 1
        for one in held:
            if one.eager != one.compiled:
                self._nearer["eager" if one.eager < one.compiled else "compiled"] += 1
        if differing := [one for one in held if not one.agrees]:
            self._has_found = True
            self._finding = _finding(trial, inputs, differing)

    def _note(self, text: str) -> None:
        if text not in self._notes:
            self._notes.append(text)


class Trial:
    """One graph. *inputs*: those of a call, or what stands for them while Dynamo compiles."""

    def __init__(self, gm: fx.GraphModule, backend: Backend, inputs: Sequence[Any]) -> None:
        self.gm, self._backend = gm, backend
        self._wide = graph.wide(gm)
        self._compiled = backend(deepcopy(gm), inputs)

    def hold(self, inputs: Sequence[Any]) -> list[Held]:
        """Run it on copies of the inputs.

        Raises:
            NotComparable: there are sparse or quantized tensors, or it does not run in float64.
            CompiledRaises: the compiled code does, and the eager code does not.
        """
        if graph.draws_in_a_part(self.gm):
            raise graph.NotComparable("it draws random numbers in a checkpoint, or another part of it")
        eps = graph.lowest_eps(self.gm, inputs)
        sample = graph.Sample(inputs)
        try:
            eager = sample.run(self.gm)
            nudges = [graph.Nudge(eps, seed) for seed in range(NUDGED)]
            nudged = [sample.run(nudge.through(self.gm), nudge=nudge) for nudge in nudges]
            reference = sample.run(self._wide, wide=True)
        except Exception as error:
            raise graph.NotComparable(f"it does not run on copies, or in float64 ({named(error)})") from None
        try:
            compiled = sample.run(self._compiled)
        except Exception as error:
            raise CompiledRaises(named(error)) from None
        scales = [_largest(reference, kind) for kind in ("result", "gradient")]
        return [
            _held(
                name,
                eager[name],
                compiled[name],
                reference[name],
                [one[name] for one in nudged],
                eps,
                scales[_is_gradient(name)],
            )
            for name in eager
        ]

    def first_node(self, inputs: Sequence[Any]) -> tuple[fx.Node, list[Held]]:
        """The first node whose results differ, searched for by halves, and these."""
        nodes = [node for node in self.gm.graph.nodes if node.op not in ("placeholder", "get_attr", "output")]

        def differing(last: int) -> list[Held]:
            part = Trial(graph.up_to(self.gm, nodes[last]), self._backend, inputs)
            return [one for one in part.hold(inputs) if not one.agrees]

        low, high, shown = 0, len(nodes) - 1, differing(-1)
        while low < high and shown:
            middle = (low + high) // 2
            if found := differing(middle):
                high, shown = middle, found
            else:
                low = middle + 1
        return graph.maker(nodes[high]), shown


def _is_gradient(name: str) -> bool:
    return name.startswith("gradient")


def _largest(reference: Mapping[str, torch.Tensor], kind: str) -> float:
    """The largest value of all gradients, or of all results that are no integers: not of inputs, such as masks and indices."""
    found = [graph.in_float64(one) for name, one in reference.items() if name.startswith(kind) and _has_rounding(one)]
    return max((_norm(one[one.isfinite()], float("inf")) for one in found), default=0.0)


def _held(
    name: str,
    eager: torch.Tensor,
    compiled: torch.Tensor,
    reference: torch.Tensor,
    nudged: Sequence[torch.Tensor],
    eps: float,
    scale: float,
) -> Held:
    if compiled.shape != eager.shape or compiled.dtype != eager.dtype:
        return Held(name, 0.0, float("inf"), agrees=False)
    if not _has_rounding(eager):
        return _held_integers(name, eager, compiled, nudged)
    one, other, right, *changed = (graph.in_float64(each) for each in (eager, compiled, reference, *nudged))
    if not _same(_specials(one), _specials(other)):
        agrees = not all(_same(_specials(one), _specials(each)) for each in changed)  # rounding decides what is finite
        return Held(name, _far(one, right), _far(other, right), agrees=agrees)
    is_finite = torch.stack([each.isfinite() for each in (one, right, *changed)]).all(0)
    one, other, right, *changed = (each[is_finite] for each in (one, other, right, *changed))
    floors = {2: eps**0.75 * scale * math.sqrt(one.numel()), float("inf"): eps**0.75 * scale}
    agrees = all(_agree(one, other, right, changed, eps, order, floor) for order, floor in floors.items())
    size = _norm(right, 2) or 1.0
    return Held(name, _norm(one - right, 2) / size, _norm(other - right, 2) / size, agrees=agrees)


def _agree(
    one: torch.Tensor,
    other: torch.Tensor,
    right: torch.Tensor,
    changed: Sequence[torch.Tensor],
    eps: float,
    order: float,
    floor: float,
) -> bool:
    """By the norm of all (2), or the largest difference (inf), which shows single values."""
    small, large = sorted((_norm(one - right, order), _norm(other - right, order)))
    rounding = max(_norm(each - one, order) for each in changed)
    lost, size = max(FACTOR, 1 / math.sqrt(math.sqrt(eps))) * (small + rounding), _norm(right, order)
    return large <= lost + max(math.sqrt(eps) * size, floor if lost >= size else 0.0)


def _has_rounding(tensor: torch.Tensor) -> bool:
    return tensor.dtype.is_floating_point or tensor.is_complex()


def _norm(values: torch.Tensor, order: float) -> float:
    return float(torch.linalg.vector_norm(values, order)) if values.numel() else 0.0


def _held_integers(name: str, eager: torch.Tensor, compiled: torch.Tensor, nudged: Sequence[torch.Tensor]) -> Held:
    """The parts of all that are not as in eager code: of indices no error is small."""
    size = max(eager.numel(), 1)
    part = int((compiled != eager).sum()) / size
    return Held(name, 0.0, part, agrees=part <= INTEGERS + FACTOR * max(int((each != eager).sum()) / size for each in nudged))


def _specials(values: torch.Tensor) -> torch.Tensor:
    """NaN and infinities; 0 for all others."""
    return values.masked_fill(values.isfinite(), 0.0)


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool(torch.allclose(one, other, rtol=0, atol=0, equal_nan=True))


def _far(values: torch.Tensor, right: torch.Tensor) -> float:
    return 0.0 if _same(_specials(values), _specials(right)) else float("inf")


def _finding(trial: Trial, inputs: Sequence[Any], differing: Sequence[Held]) -> Message:
    found = {"kind": "compiled", "operator": "a graph", "values": _values(differing)}
    try:
        node, shown = trial.first_node(inputs)
    except Exception as error:
        return found | {"reason": f"its parts do not run on their own ({named(error)})"}
    if not shown:
        return found | {"reason": "none of its parts differs when it is compiled on its own"}
    worst = max(shown, key=lambda one: max(one.eager, one.compiled))
    return found | {
        "operator": graph.name_of(node),
        "module": compiled_places.module_of(node),
        "direction": "backward" if all(one.is_gradient for one in shown) else "forward",
        "source": compiled_places.line_of(node),
        "reason": f"the {'compiled' if worst.compiled > worst.eager else 'eager'} result is inaccurate",
        "values": _values(shown),
    }


def _values(held: Sequence[Held]) -> list[dict[str, Any]]:
    return [{"tensor": one.name, "eager": one.eager, "compiled": one.compiled} for one in held]
