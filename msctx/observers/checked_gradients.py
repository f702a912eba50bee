"""check_bprop: the gradients of a hand-written backward are compared with its inputs, before torch casts and sums them.

Each call of a ``torch.autograd.Function`` (operators with ``register_autograd`` are such Functions) makes a node. A node that is made
while the option is on gets its own ``apply``. Hooks on the node would run after torch has cast and summed the gradients. Torch has no
hook for the call: ``Function.apply`` is replaced.
"""

from __future__ import annotations

import inspect
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NoReturn

import torch
from torch.autograd import Function
from torch.autograd.function import BackwardCFunction, _is_setup_context_defined
from torch.compiler import is_dynamo_compiling

from msctx.errors import GradientDtypeError, GradientError
from msctx.native.installed import Held

BEFORE: list[Callable[..., None]] = []
"""Called before a Function of the program, with it, what calls it, and its arguments, in threads where the option is on."""


class Check:
    """Whether an option is on in this thread."""

    def __init__(self) -> None:
        self._here = threading.local()

    def is_on(self) -> bool:
        return getattr(self._here, "on", False)

    def turn(self, on: bool) -> None:
        if on != self.is_on():
            _installed.want(1) if on else _installed.release(1)
        self._here.on = on

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Off in this thread, without a change to the class."""
        before, self._here.on = self.is_on(), False
        try:
            yield
        finally:
            self._here.on = before


NODES = Check()


def _install() -> Callable[[], None]:
    found = vars(Function)["apply"]

    def called(function: Any, *args: Any, **kwargs: Any) -> Any:
        call = found.__get__(None, function)
        if is_dynamo_compiling() or not (NODES.is_on() and is_users(function)):
            return call(*args, **kwargs)
        for before in BEFORE:
            before(function, call, args, kwargs)
        made = call(*args, **kwargs)
        for value in made if isinstance(made, tuple) else (made,):
            node: Any = getattr(value, "grad_fn", None)
            of = node._forward_cls if isinstance(node, BackwardCFunction) else None  # type: ignore[attr-defined]
            if of is not None and (of is function or of.__module__ == _TRANSFORMS):  # torch.func makes another of it
                me = weakref.ref(node)  # the node itself would keep its graph alive
                node.apply, node.apply_boxed = partial(_apply, me, "apply"), partial(_apply, me, "apply_boxed")
        return made

    ours: Any = classmethod(called)
    Function.apply = ours  # type: ignore[method-assign]

    def remove() -> None:
        if vars(Function)["apply"] is ours:  # else somebody has wrapped it since
            Function.apply = found  # type: ignore[method-assign]

    return remove


_installed = Held(_install)


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
    for index, (value, is_needed) in enumerate(zip(given, needed, strict=True)):
        if is_needed:
            function, place = next(edges)
            if value is not None:
                _compare(node, index, value, function, place)


def _compare(node: Any, index: int, value: Any, function: Any, place: int) -> None:
    """One gradient with the metadata of its input."""

    def wrong(kind: type[Exception], text: str, advice: str) -> NoReturn:
        source = Source(node._forward_cls)
        source.wrong(kind, f"returned a {text.format(source.argument(index))}", advice)

    if not isinstance(value, torch.Tensor):
        wrong(GradientDtypeError, f"{type(value).__name__} as the gradient of {{}}", "return a tensor or None")
    wanted = function._input_metadata[place]
    if not wanted.is_nested_tensor and (is_shape := [*value.shape]) != (shape := [*wanted.shape]):
        wrong(
            GradientError, f"gradient of shape {is_shape} for {{}}, whose shape is {shape}", "sum or reshape it to that shape"
        )
    dtype = getattr(getattr(function, "variable", None), "grad_dtype", wanted.dtype)
    if dtype not in (None, value.dtype):
        wrong(GradientDtypeError, f"gradient of dtype {value.dtype} for {{}}, whose dtype is {dtype}", "cast it to that dtype")


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
        if function.__module__ == _TRANSFORMS and (inner := _enclosed(function.backward, "autograd_function")):
            function = inner
        is_traced = function.__module__ == _TRANSFORMS  # torch.compile has put the inputs into another order
        backward = function.backward if function.vjp is torch.autograd.Function.vjp else function.vjp
        self.name = "a Function in compiled code" if is_traced else f"{function.__qualname__}.{backward.__name__}"
        self._names = [] if is_traced else _parameters(function)
        self._other = "an input" if is_traced else "input {}"
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


def _enclosed(function: Any, name: str) -> Any:
    return inspect.getclosurevars(function).nonlocals.get(name)


def _parameters(function: Any) -> list[str]:
    """The names of the inputs; of ``*args`` there are none."""
    parameters = [*inspect.signature(function.forward).parameters.values()]
    own = parameters if _is_setup_context_defined(function.setup_context) else parameters[1:]
    return [p.name for p in own if p.kind is not p.VAR_POSITIONAL]
