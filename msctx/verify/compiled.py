"""Compiled code beside eager code, in a run that goes on eagerly.

Each graph that Dynamo captures runs on the same inputs as it is, compiled, and in float64, forward and backward. The first two may
differ by rounding: by a multiple of the smaller one's error against float64, or of what a change in the inputs' last bits does.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import Any, NamedTuple

import torch
from torch import fx, nn

from msctx.verify import graph
from msctx.verify.wire import Message

Backend = Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Any]]

FACTOR = 8
"""How often the error of one side may hold that of the other."""
ROUNDINGS = 4
"""Units in the last place that are no difference, even where one side has no error at all."""
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
        return self.name.startswith("gradient")


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
        """Inside, what ``torch.compile`` compiles comes here, and so does each call of an outermost module."""
        compile_, call = torch.compile, nn.Module.__call__
        here = threading.local()
        made: weakref.WeakKeyDictionary[nn.Module, Any] = weakref.WeakKeyDictionary()

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

        def outermost(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or getattr(here, "is_inside", False):
                return call(module, *args, **kwargs)
            here.is_inside = True
            try:
                if isinstance(module, (torch.jit.ScriptModule, fx.GraphModule)) or hasattr(module, "_orig_mod"):
                    return call(module, *args, **kwargs)
                if module not in made:
                    made[module] = compiling(module)
                return made[module](*args, **kwargs)
            finally:
                here.is_inside = False

        torch.compile, nn.Module.__call__ = compiling, outermost  # type: ignore[method-assign]
        try:
            with torch._dynamo.config.patch(suppress_errors=True), torch._inductor.config.patch(fallback_random=True):
                yield
        finally:
            torch.compile, nn.Module.__call__ = compile_, call  # type: ignore[method-assign]

    def _beside(self, theirs: Backend) -> Backend:
        def backend(gm: fx.GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
            if self._has_found:
                return gm
            try:
                trial = Trial(gm, theirs, examples)
            except Exception as error:
                self._note(f"a graph does not compile ({type(error).__name__}: {error})")
                return gm

            def run(*inputs: Any) -> Any:
                if not self._has_found:
                    self._hold(trial, inputs)
                return gm(*inputs)

            return run

        return backend

    def _hold(self, trial: Trial, inputs: Sequence[Any]) -> None:
        self._count += 1
        try:
            held = trial.hold(inputs)
        except graph.NotComparable as error:
            self._note(f"a graph was not compared: {error}")
            return
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
            NotComparable: there are tensors that are not like most, or it does not run in float64.
        """
        sample = graph.Sample(inputs)
        try:
            eager, nudged = sample.run(self.gm), sample.run(self.gm, nudge=True)
            reference = sample.run(self._wide, wide=True)
        except Exception as error:
            raise graph.NotComparable(f"it does not run on copies, or in float64 ({type(error).__name__}: {error})") from None
        compiled = sample.run(self._compiled)
        return [_held(name, eager[name], compiled[name], reference[name], nudged[name]) for name in eager]

    def first_node(self, inputs: Sequence[Any]) -> tuple[fx.Node, list[Held]]:
        """The first node whose results differ, searched for by halves, and these."""
        nodes = [node for node in self.gm.graph.nodes if node.op not in ("placeholder", "get_attr", "output")]
        low, high, shown = 0, len(nodes) - 1, list[Held]()
        while low < high:
            middle = (low + high) // 2
            part = Trial(graph.up_to(self.gm, nodes[middle]), self._backend, inputs)
            if found := [one for one in part.hold(inputs) if not one.agrees]:
                high, shown = middle, found
            else:
                low = middle + 1
        return graph.maker(nodes[high]), shown


def _held(name: str, eager: torch.Tensor, compiled: torch.Tensor, reference: torch.Tensor, nudged: torch.Tensor) -> Held:
    if compiled.shape != eager.shape or compiled.dtype != eager.dtype:
        return Held(name, 0.0, float("inf"), agrees=False)
    size = _norm(reference)
    errors = {side: _distance(found, reference) for side, found in (("eager", eager), ("compiled", compiled))}
    floor = ROUNDINGS * torch.finfo(eager.dtype).eps if eager.dtype.is_floating_point or eager.is_complex() else INTEGERS
    small, large = sorted(errors.values())
    agrees = large <= FACTOR * (small + _distance(nudged, eager)) + floor * size or small == large
    relative = {side: error / (size or 1.0) for side, error in errors.items()}
    return Held(name, **relative, agrees=agrees)


def _norm(tensor: torch.Tensor) -> float:
    values = graph.in_float64(tensor)
    return float(values[values.isfinite()].norm())


def _distance(one: torch.Tensor, other: torch.Tensor) -> float:
    """The norm of the difference; infinite where only one is finite, or two infinite values are not the same."""
    a, b = graph.in_float64(one), graph.in_float64(other)
    is_finite = a.isfinite() & b.isfinite()
    if not torch.equal(a[~is_finite].nan_to_num(), b[~is_finite].nan_to_num()):
        return float("inf")
    return float((a - b)[is_finite].norm())


def _finding(trial: Trial, inputs: Sequence[Any], differing: Sequence[Held]) -> Message:
    found = {"kind": "compiled", "operator": "a graph", "values": _values(differing)}
    try:
        node, shown = trial.first_node(inputs)
    except Exception as error:
        return found | {"reason": f"it is not known where: its parts do not run alone ({type(error).__name__}: {error})"}
    worst = max(shown or differing, key=lambda one: max(one.eager, one.compiled))
    return found | {
        "operator": graph.name_of(node),
        "module": graph.module_of(node),
        "direction": "backward" if all(one.is_gradient for one in shown or differing) else "forward",
        "source": graph.line_of(node),
        "reason": f"the {'compiled' if worst.compiled > worst.eager else 'eager'} code is off",
        "values": _values(shown or differing),
    }


def _values(held: Sequence[Held]) -> list[dict[str, Any]]:
    return [{"tensor": one.name, "eager": one.eager, "compiled": one.compiled} for one in held]
