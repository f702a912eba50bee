"""check_bprop: what a hand-written backward returns is compared with the inputs it belongs to, before torch casts and sums it.

torch makes a node for each call of a ``torch.autograd.Function`` (operators with ``register_autograd`` are such Functions), and asks
the node for ``apply`` when the backward pass reaches it. A node that is made while the option is on gets an ``apply`` of its own: so
the scope of the forward pass decides, and no class of a user is touched. Hooks on the node would see the gradients too late: torch
has cast and summed them by then.
"""

from __future__ import annotations

import inspect
import re
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NoReturn

import torch
from torch.autograd.function import BackwardCFunction, _is_setup_context_defined

from msctx import locks
from msctx.errors import GradientDtypeError, GradientError


class Patch:
    """A method that is replaced in its class while some thread wants it; the threads that want it ask :meth:`is_on`."""

    def __init__(self, owner: type, name: str, replacement: Any) -> None:
        self._owner, self._name, self._replacement = owner, name, replacement
        self._lock = locks.plain()
        self._here = threading.local()
        self._wanted_by: weakref.WeakSet[Any] = weakref.WeakSet()
        self.found: Any = None
        """What the class itself had; ``None``: it inherited the method."""

    def is_on(self) -> bool:
        return getattr(self._here, "wanted", None) is not None and not getattr(self._here, "paused", False)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Off in this thread, without a change to the class."""
        before, self._here.paused = getattr(self._here, "paused", False), True
        try:
            yield
        finally:
            self._here.paused = before

    def turn(self, on: bool) -> None:
        with self._lock:
            self._here.wanted = type(self)._Wanted() if on else None
            if on:
                self._wanted_by.add(self._here.wanted)
            is_there = vars(self._owner).get(self._name) is self._replacement
            if bool(self._wanted_by) is is_there:
                return
            if not is_there:
                self.found = vars(self._owner).get(self._name)
                setattr(self._owner, self._name, self._replacement)
            elif self.found is None:
                delattr(self._owner, self._name)
            else:
                setattr(self._owner, self._name, self.found)

    class _Wanted:
        """Lives as long as a thread wants the patch, and no longer than the thread."""


def _made(node: Any) -> None:
    if NODES.is_on() and is_users(node._forward_cls):
        me = weakref.ref(node)  # the node itself would keep its graph alive
        node.apply, node.apply_boxed = partial(_apply, me, "apply"), partial(_apply, me, "apply_boxed")


NODES = Patch(BackwardCFunction, "__init__", _made)


def _apply(node: Callable[[], Any], name: str, *gradients: Any) -> Any:
    here = node()
    given = getattr(type(here), name)(here, *gradients)
    _check(here, given if isinstance(given, tuple) else (given,))
    return given


def _check(node: Any, given: tuple[Any, ...]) -> None:
    needed = node.needs_input_grad
    if len(given) != len(needed):
        source = Source(node._forward_cls)
        count, inputs = len(given) - source.hidden, len(needed) - source.hidden
        source.wrong(
            GradientError,
            f"returned {count} gradient{'s' * (count != 1)} for {inputs} input{'s' * (inputs != 1)}",
            f"return one for each input ({', '.join(map(source.argument, range(inputs)))}), None where there is none",
        )
    edges = (edge for edge in node.next_functions if edge[0] is not None)
    for index, (value, (function, place)) in enumerate(
        (value, next(edges)) if is_needed else (None, (None, 0)) for value, is_needed in zip(given, needed, strict=True)
    ):
        if value is not None:
            _compare(node, index, value, function, place)


def _compare(node: Any, index: int, value: Any, function: Any, place: int) -> None:
    """One gradient with what the input it belongs to asks for."""
    if not isinstance(value, torch.Tensor):
        source = Source(node._forward_cls)
        text = f"returned a {type(value).__name__} as the gradient of {source.argument(index)}"
        source.wrong(GradientDtypeError, text, "return a tensor or None")
    wanted = function._input_metadata[place]
    if not wanted.is_nested_tensor and [*value.shape] != [*wanted.shape]:
        source = Source(node._forward_cls)
        text = (
            f"returned a gradient of shape {[*value.shape]} for {source.argument(index)}, whose shape is {[*wanted.shape]} "
            "(torch alone would sum it where it could)"
        )
        source.wrong(GradientError, text, "sum or reshape it to the input's shape")
    dtype = getattr(getattr(function, "variable", None), "grad_dtype", wanted.dtype)
    if dtype not in (None, value.dtype):
        source = Source(node._forward_cls)
        casts = "" if value.is_complex() and not dtype.is_complex else " (torch alone would cast it)"
        text = f"returned a gradient of dtype {value.dtype} for {source.argument(index)}, whose dtype is {dtype}{casts}"
        source.wrong(GradientDtypeError, text, "cast it to the input's dtype")


_OPERATORS, _TRANSFORMS = "torch._library.autograd", "torch._functorch.autograd_function"
"""The modules in which torch makes Functions of what users wrote: of operators, and under ``torch.func``."""


def is_users(function: type) -> bool:
    """Whether a Function is a user's; torch's own (of compiled code, of checkpoints, …) are torch's to test."""
    return function.__module__.partition(".")[0] != "torch" or function.__module__ in (_OPERATORS, _TRANSFORMS)


class Source:
    """Where a Function was written, for messages."""

    def __init__(self, function: Any) -> None:
        self.hidden = 0
        """Inputs that torch adds to the user's, at the end."""
        function, is_traced = _users_of(function)
        while function.__module__ == _TRANSFORMS and (inner := _enclosed(function.backward, "autograd_function")):
            function = inner
        backward = function.backward if function.vjp is torch.autograd.Function.vjp else function.vjp
        self.name = f"{function.__qualname__}.{backward.__name__}"
        self._names = [] if is_traced else _parameters(function)
        self._other = "an input" if is_traced else "input {}"
        """torch.compile has put the inputs into another order."""
        if function.__module__ == _OPERATORS:
            self.hidden = 1
            if inner := _enclosed(backward, "orig_backward"):
                backward, self.hidden = inner, 2
            operator = _enclosed(backward, "op")
            backward = _enclosed(backward, "info")._backward_fn or backward
            self.name = f"{getattr(backward, '__qualname__', 'backward')} of the operator {operator.name()}"
            self._names = [] if self.hidden == 2 else [argument.name for argument in operator._schema.arguments]
        code = getattr(inspect.unwrap(backward), "__code__", None)
        self.place = f"{code.co_filename}:{code.co_firstlineno}" if code else "no source"

    def argument(self, index: int) -> str:
        return self._names[index] if index < len(self._names) else self._other.format(index)

    def wrong(self, kind: type[Exception], text: str, advice: str, option: str = "check_bprop") -> NoReturn:
        raise kind(f"{self.name} ({self.place}) {text}; {advice} ({option}=True of the msctx context reports this)")


def _users_of(function: Any) -> tuple[Any, bool]:
    """The Function that torch.compile has traced, where *function* is what it has put into its graph; and whether it is so."""
    if function.__module__ != _TRANSFORMS or not hasattr(graph := _enclosed(function.backward, "bwd"), "graph"):
        return function, False
    nodes = [*graph.graph.nodes, *_enclosed(function.forward, "fwd").graph.nodes]
    traces = "\n".join(node.meta.get("stack_trace") or "" for node in nodes)
    found = {(file, int(line)) for file, line in re.findall(r'File "(.*)", line (\d+)', traces)}
    for one in _subclasses(torch.autograd.Function):
        for method in (one.backward, one.vjp, one.forward):
            code = getattr(inspect.unwrap(method), "__code__", None)
            if code and any((code.co_filename, line) in found for *_, line in code.co_lines()) and is_users(one):
                return one, True
    return function, True


def _subclasses(kind: Any) -> Iterator[Any]:
    for one in kind.__subclasses__():
        yield one
        yield from _subclasses(one)


def _enclosed(function: Any, name: str) -> Any:
    return inspect.getclosurevars(function).nonlocals.get(name)


def _parameters(function: Any) -> list[str]:
    """The names of the inputs; of ``*args`` there are none."""
    parameters = [*inspect.signature(function.forward).parameters.values()]
    own = parameters if _is_setup_context_defined(function.setup_context) else parameters[1:]
    return [p.name for p in own if p.kind is not p.VAR_POSITIONAL]
