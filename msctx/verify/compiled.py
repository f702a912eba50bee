"""Compiled code beside eager code: each call of an outermost module runs both ways on copies of its inputs.

The program continues with its own eager results, so errors do not add up from call to call.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.compiler import is_dynamo_compiling
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils import _pytree as pytree

from msctx.errors import named, user_frame
from msctx.native import module_calls
from msctx.observers import steps
from msctx.verify.rows import differing, ran


@contextmanager
def compared(send: Callable[[dict[str, Any]], object]) -> Iterator[None]:
    """Inside, this process runs eagerly, and *send* gets each comparison."""
    comparison = _Comparison(send)
    handles = (
        register_module_forward_pre_hook(comparison.begin),
        register_module_forward_hook(comparison.end, with_kwargs=True, always_call=True),
    )
    warnings.filterwarnings("ignore", module_calls.WARNS)
    with torch.compiler.set_stance("force_eager"), steps.counting(lambda step: send({"does": "ends the step"})):
        yield
    for handle in handles:
        handle.remove()


class _Comparison:
    def __init__(self, send: Callable[[dict[str, Any]], object]) -> None:
        self._send = send
        self._twins: WeakKeyDictionary[nn.Module, tuple[nn.Module, Callable[..., Any]]] = WeakKeyDictionary()
        self._around: nn.Module | None = None
        self._met: list[tuple[nn.Module, Any]] | None = None

    def begin(self, module: nn.Module, args: Any) -> None:
        if is_dynamo_compiling() or self._around or torch.jit.is_tracing() or torch._C._are_functorch_transforms_active():  # type: ignore[attr-defined]
            return
        self._around = module
        with suppress(Exception):  # a copy made after the call might fail at tensors that the call has left in the module
            self._twin(module)

    def end(self, module: nn.Module, args: Any, *more: Any) -> None:
        """*more*: keyword arguments and results; after an exception there are no keyword arguments."""
        if is_dynamo_compiling():
            return
        if self._met is not None:
            self._met.append((module, _copies((args, more[0]))))
        elif self._around is module:
            try:
                if len(more) > 1:
                    self._send({"does": "a call", **self._compared(module, (args, more[0]))})
            finally:
                self._around = None

    def _compared(self, module: nn.Module, given: Any) -> dict[str, Any]:
        name = type(module).__name__
        try:
            if not (values := self._differing(module, given)):
                return {"row": ran({"operator": name, "inputs": [], "outputs": []})}
            found = {"operator": name, "values": values, "source": user_frame()[0]}
            return {"finding": found | self._first_inside(module, given)}
        except Exception as error:  # the training goes on
            return {"note": f"{name} was not compared ({named(error).partition(chr(10))[0]})"}

    def _first_inside(self, module: nn.Module, given: Any) -> dict[str, Any]:
        """The innermost module that differs when it is compiled by itself."""
        twin, _ = self._twin(module)
        names = {one: name for name, one in twin.named_modules()}
        met: list[tuple[nn.Module, Any]] = []
        self._met = met
        _results(twin, twin, given)
        self._met = None
        for inner, its in met:  # in the order in which they end
            if values := self._differing(inner, its):
                return {"operator": type(inner).__name__, "module": names[inner], "values": values}
        return {"reason": "no module inside it differs when it is compiled by itself"}

    def _twin(self, module: nn.Module) -> tuple[nn.Module, Callable[..., Any]]:
        """A copy of the module with its present values, eager and compiled."""
        if module not in self._twins:
            twin = deepcopy(module)
            self._twins[module] = twin, torch.compile(twin, options={"fallback_random": True})
        twin, compiled = self._twins[module]
        with torch.no_grad():
            for a, b in zip([*twin.parameters(), *twin.buffers()], [*module.parameters(), *module.buffers()], strict=True):
                a.copy_(b)
        return twin.train(module.training), compiled

    def _differing(self, module: nn.Module, given: Any) -> dict[str, str]:
        """The results and gradients that differ by more than rounding, and by how much."""
        twin, compiled = self._twin(module)
        eager = _results(twin, twin, given)
        self._twin(module)  # the call may have changed buffers
        with torch.compiler.set_stance("default"):
            found = _results(compiled, twin, given)
        eps = _eps([*twin.parameters(), *eager.values(), *pytree.tree_leaves(given)])
        for_all = eps ** (1 / 3) * max((_largest(a) for name, a in eager.items() if name.startswith("gradient")), default=0.0)
        limits = {name: for_all if name.startswith("gradient") else eps**0.5 * _largest(a) for name, a in eager.items()}
        texts = {name: differing(a, found[name], limits[name]) for name, a in eager.items()}
        return {name: text for name, text in texts.items() if text}


def _results(run: Callable[..., Any], twin: nn.Module, given: Any) -> dict[str, torch.Tensor]:
    """Floating-point results, and the gradients of a weighted sum of them."""
    args, kwargs = given = _copies(given)
    with torch.random.fork_rng():
        made = [leaf for leaf in pytree.tree_leaves(run(*args, **kwargs)) if _is_inexact(leaf)]
        found = {f"output {number}": leaf.detach() for number, leaf in enumerate(made)}
        ends = [leaf for leaf in made if leaf.requires_grad]
        inputs = [(f"input {number}", leaf) for number, leaf in enumerate(pytree.tree_leaves(given)) if _is_inexact(leaf)]
        starts = {f"gradient of {name}": leaf for name, leaf in [*twin.named_parameters(), *inputs] if leaf.requires_grad}
        if ends and starts:
            draw = torch.Generator().manual_seed(0)
            weights = [torch.randn(end.shape, generator=draw).to(end) for end in ends]
            gradients = torch.autograd.grad(ends, [*starts.values()], weights, materialize_grads=True)
            found |= dict(zip(starts, gradients, strict=True))
    return found


def _copies(given: Any) -> Any:
    return pytree.tree_map(
        lambda x: x.detach().clone().requires_grad_(x.requires_grad) if isinstance(x, torch.Tensor) else x, given
    )


def _is_inexact(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and (leaf.is_floating_point() or leaf.is_complex())


def _eps(leaves: list[Any]) -> float:
    """Of the lowest dtype that takes part."""
    tensors = [leaf for leaf in leaves if _is_inexact(leaf)]
    lowered = [torch.get_autocast_dtype(kind) for leaf in tensors if torch.is_autocast_enabled(kind := leaf.device.type)]
    return max(torch.finfo(dtype).eps for dtype in [*(leaf.dtype for leaf in tensors), *lowered])


def _largest(tensor: torch.Tensor) -> float:
    return float(tensor.abs().nan_to_num(0.0, 0.0).max()) if tensor.numel() else 0.0
