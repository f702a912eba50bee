"""What becomes of each graph that Dynamo captures; the shapes that inputs may have: gears, each with code of its own, and ranges."""

from __future__ import annotations

import functools
import inspect
import os
import re
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy, deepcopy
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch

from msctx.errors import GraphError
from msctx.graph import report
from msctx.notices import warn
from msctx.observers import compile_trace
from msctx.options.switch_values import Compilation, Shapes
from msctx.themes.graph_kernel_flags import DUMP, DUMPS


class Compiled(BaseException):
    """Ends a call that was to compile, and not to run. No ``Exception``: programs must not catch it."""


@dataclass(frozen=True, eq=False)
class Backend:
    """A back end of torch.compile."""

    wanted: Compilation

    def __call__(self, graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        _note_forwards()
        compile_trace.draw(graph)
        made = self._compile(graph, inputs)
        return _stop if self.wanted.only else made

    def _compile(self, graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        from msctx.graph.pre_grad_passes import apply, compile_sides  # they take Dynamo

        own = deepcopy(graph.graph) if self.wanted.scope_passes else graph.graph
        keeps = self.wanted.keeps
        if keeps is not None and keeps < 1 and torch.is_grad_enabled() and (drawn := _draws(graph)):
            warn(f"memory_optimize_level=O1: code with {drawn} is not recomputed, which would draw other random numbers")
            keeps = 1.0
        tracing: dict[str, Any] = {} if keeps is None else {"activation_memory_budget": keeps}
        if self.wanted.only:  # no backward pass will come that has its graph compiled
            tracing["force_non_lazy_backward_lowering"] = True
        try:
            with torch._functorch.config.patch(tracing):
                changed = apply(graph, self.wanted.scope_passes)
                return compile_sides(changed, inputs, self.wanted.region, _compiler(self.wanted, graph, inputs))
        except torch._dynamo.exc.RestartAnalysis:  # it captures again
            raise
        except Exception as error:
            if self.wanted.whole:
                raise
            report.not_compiled(graph, error)
            graph.graph = own  # as the program has it
            return graph.forward


RANDOM = re.compile(
    r"drop|rrelu|rand|bernoulli|normal_?$|multinomial|poisson|exponential|uniform|cauchy|geometric|gumbel|lstm|gru|rnn"
)


def _draws(graph: torch.fx.GraphModule) -> str:
    """The name of an operator that draws random numbers: torch's budget for activations recomputes it with others."""
    for node in (node for part in graph.modules() if isinstance(part, torch.fx.GraphModule) for node in part.graph.nodes):
        name = str(getattr(node.target, "__name__", node.target)) if node.op in ("call_function", "call_method") else ""
        if "attention" in name and (node.kwargs.get("dropout_p") or node.args[4:5] not in ((), (0,))):
            return name
        is_off = (
            node.kwargs.get("training") is False or node.args[2:3] == (False,) or 0 in (node.kwargs.get("p"), *node.args[1:2])
        )
        if RANDOM.search(name) and not ("drop" in name and is_off):
            return name
    return ""


def _compiler(wanted: Compilation, graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    on_npu = any(isinstance(one, torch.Tensor) and one.device.type == "npu" for one in inputs)
    if wanted.fused is False or (wanted.ready_made and not on_npu):
        from torch._dynamo.backends.debugging import aot_eager

        return aot_eager
    if on_npu:
        return _torchair(wanted)
    if wanted.races and not (wanted.only or wanted.region or _draws(graph)):
        from msctx.graph.contest import entered

        return functools.partial(entered, wanted)
    from msctx.graph.inductor_compile import compiler

    return compiler(wanted)


def _torchair(wanted: Compilation) -> Callable[..., Any]:
    """torch_npu's compiler, which hands whole graphs to CANN."""
    torchair = import_module("torchair")
    config = torchair.CompilerConfig()
    config.experimental_config.frozen_parameter = wanted.frozen
    if dict(wanted.flags).get(DUMP):
        os.makedirs(DUMPS, exist_ok=True)
        config.debug.graph_dump.type, config.debug.graph_dump.path = "txt", DUMPS
    made: Callable[..., Any] = torchair.get_npu_backend(compiler_config=config)
    if wanted.frozen:
        made = functools.partial(_with_weights_as_inputs, made)
    return functools.partial(_as_a_part, made) if wanted.region else made


def _as_a_part(compiler: Callable[..., Any], graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    """torch has the first call of a part answered with fake tensors, and makes it by itself for code of its AotAutograd alone."""
    if context := torch._guards.TracingContext.try_get():
        context.fakify_first_call = False
    made: Callable[..., Any] = compiler(graph, inputs)
    return made


def _with_weights_as_inputs(
    compiler: Callable[..., Any], graph: torch.fx.GraphModule, inputs: Sequence[Any]
) -> Callable[..., Any]:
    """torchair freezes the parameters among a graph's inputs; under inductor's freezing, Dynamo leaves them in the module."""
    there = dict(graph.named_parameters(remove_duplicate=False))
    made = torch.fx.GraphModule(graph, deepcopy(graph.graph))
    weights: list[torch.nn.Parameter] = []
    first = next(iter(made.graph.nodes))
    for node in [node for node in made.graph.nodes if node.op == "get_attr" and node.target in there]:
        with made.graph.inserting_before(first):
            node.replace_all_uses_with(placeholder := made.graph.placeholder(node.name))
        placeholder.meta = node.meta
        made.graph.erase_node(node)
        weights.append(there[node.target])
    made.recompile()
    run = compiler(made, [*weights, *inputs])
    return (lambda *args: run(*weights, *args)) if weights else run


def _stop(*_: Any) -> Any:
    raise Compiled


class _Here(threading.local):
    module: torch.nn.Module | None = None
    """The outermost that runs."""


here = _Here()


@functools.cache
def backend(wanted: Compilation) -> Backend:
    """One object for each: Dynamo tells compiled code apart by it."""
    return Backend(wanted)


_forwards: dict[weakref.ref[type[torch.nn.Module]], weakref.ref[Callable[..., Any]]] = {}
"""Classes of modules in compiled code, and their forward then. Dynamo has no guard on it, and none on the absence of global hooks."""
_hooks: list[int] = []


def _global_hooks() -> list[int]:
    of: Any = torch.nn.modules.module
    kinds = of._global_forward_pre_hooks, of._global_forward_hooks, of._global_backward_pre_hooks, of._global_backward_hooks
    return [number for kind in kinds for number in kind]


def _note_forwards() -> None:
    for kind in {type(one) for one in here.module.modules()} if here.module is not None else ():
        if kind.forward is kind.forward:
            _forwards.setdefault(weakref.ref(kind), weakref.ref(kind.forward))


def is_of_before() -> bool:
    """Whether a class of modules that compiled code contains has another forward now, or all modules have other hooks."""
    return _hooks != _global_hooks() or any(
        (kind := ref()) is not None and kind.forward is not forward() for ref, forward in [*_forwards.items()]
    )


def forget() -> None:
    """Give equal policies other back ends from now on."""
    global _hooks
    _forwards.clear()
    _hooks = _global_hooks()
    backend.cache_clear()


# --- the shapes of inputs -----------------------------------------------------------------------------------------------

_MARKS = ("_dynamo_", "_has_dynamo_", "_specialize_on")


def named(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call by the names that *function* gives them; those of ``*args`` with their places."""
    try:
        signature = inspect.signature(function)
        bound = signature.bind(*args, **kwargs).arguments
    except (TypeError, ValueError):  # the call itself will raise, or there is no signature
        return {f"args.{i}": value for i, value in enumerate(args)} | dict(kwargs)
    found: dict[str, Any] = {}
    for name, value in bound.items():
        kind = signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            found |= {f"{name}.{i}": one for i, one in enumerate(value)}
        else:
            found |= value if kind is inspect.Parameter.VAR_KEYWORD else {name: value}
    return found


TOO_FEW = "{} has shapes of {} inputs, and {} is called with fewer tensors: {}."


def _check_gear(wanted: Shapes, what: str, inputs: Mapping[str, Any]) -> None:
    names = [name for name, _ in wanted.gears[0]]
    tensors = {name: value for name, value in inputs.items() if isinstance(value, torch.Tensor)}
    if wanted.named:
        if absent := ", ".join(name for name in names if name not in tensors):
            takes = ", ".join(inputs) or "no arguments"
            raise GraphError(f"input_shape names {absent}, and {what} is called with no such tensors. It takes {takes}.")
        tensors = {name: tensors[name] for name in names}
    if len(tensors) < len(names):
        raise GraphError(TOO_FEW.format("input_shape", len(names), what, len(tensors)))
    given = tuple((name, tuple(tensor.shape)) for name, tensor in zip(names, tensors.values(), strict=False))
    if given not in wanted.gears:
        raise GraphError.shape(f"{what} is called with {text(given)}", "dynamic_dims", [*map(text, wanted.gears)])


@contextmanager
def of_shape(wanted: Shapes, what: str, inputs: Mapping[str, Any]) -> Iterator[None]:
    """Inside, Dynamo compiles for the gear of a call's inputs, or for their ranges.

    Raises:
        GraphError: they have no gear, a size is outside its range, there are other dimensions, or fewer tensors.
    """
    if wanted.gears:
        _check_gear(wanted, what, inputs)
    tensors = {name: value for name, value in inputs.items() if isinstance(value, torch.Tensor)}
    if len(tensors) < len(wanted.ranges):
        raise GraphError(TOO_FEW.format("dynamic_inputs_shape_range", len(wanted.ranges), what, len(tensors)))
    touched: list[tuple[torch.Tensor, dict[str, Any]]] = []
    try:
        for (name, tensor), ranges in zip(tensors.items(), wanted.ranges, strict=False):
            allowed = [", ".join(map(_range, ranges)) or "a scalar"]
            if tensor.ndim != len(ranges) or not all(
                low <= size <= high or low < 0 for size, (low, high) in zip(tensor.shape, ranges, strict=True)
            ):
                shape = f"{what} is called with {text(((name, tuple(tensor.shape)),))}"
                raise GraphError.shape(shape, "dynamic_inputs_shape_range", allowed)
            touched.append((tensor, _marks(tensor)))
            for dim, (low, high) in enumerate(ranges if wanted.dynamic is not False else ()):
                if low < 0:
                    torch._dynamo.maybe_mark_dynamic(tensor, dim)
                elif low < high and tensor.shape[dim] > 1:  # a size of 1 is code of its own
                    torch._dynamo.mark_dynamic(tensor, dim, min=max(low, 2), max=high)
        yield
    finally:
        for tensor, before in touched:
            for key in _marks(tensor):
                delattr(tensor, key)
            vars(tensor).update(before)


def _marks(tensor: torch.Tensor) -> dict[str, Any]:
    """Dynamo's, among the tensor's attributes; the program may have made some."""
    return {key: copy(value) for key, value in vars(tensor).items() if key.startswith(_MARKS)}


def _range(ends: tuple[int, int]) -> str:
    low, high = ends
    return "any" if low < 0 else str(low) if low == high else f"{low}~{high}"


def text(shapes: tuple[tuple[str, tuple[int, ...]], ...]) -> str:
    return "; ".join(f"{name}:{','.join(map(str, shape)) or 0}" for name, shape in shapes)
