"""What becomes of each graph that Dynamo captures; the shapes that inputs may have: gears, each with code of its own, and ranges."""

from __future__ import annotations

import functools
import inspect
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy, deepcopy
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch._prims_common import suggest_memory_format

from msctx.errors import GraphError
from msctx.graph import report
from msctx.observers import compile_trace, modules
from msctx.options.policies import Compilation, Shapes
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
        return _stop if self.wanted.only else _stopping(made) if self.wanted.shapes.gears else made

    def _compile(self, graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        from msctx.graph.captured import apply, compile_sides  # they take Dynamo

        own = deepcopy(graph.graph) if self.wanted.scope_passes else graph.graph
        try:
            with torch._functorch.config.patch(self._tracing()):
                return compile_sides(apply(graph, self.wanted.scope_passes), inputs, self.wanted.region, self._made)
        except torch._dynamo.exc.RestartAnalysis:  # it captures again
            raise
        except Exception as error:
            if self.wanted.whole:
                raise
            report.not_compiled(graph, error)
            graph.graph = own  # as the program has it
            return graph.forward

    def _made(self, graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        return modules.naming(graph, _compiler(self.wanted, inputs)(graph, inputs))

    def _tracing(self) -> dict[str, Any]:
        """Entries of torch._functorch.config. Where nothing runs, no backward pass will come that has its graph compiled."""
        kept = {} if self.wanted.keeps is None else {"activation_memory_budget": self.wanted.keeps}
        only = self.wanted.only or here.only_compiles
        return kept | ({"force_non_lazy_backward_lowering": True} if only else {})


def _compiler(wanted: Compilation, inputs: Sequence[Any]) -> Callable[..., Any]:
    on_npu = any(isinstance(one, torch.Tensor) and one.device.type == "npu" for one in inputs)
    if wanted.fused is False or (wanted.ready_made and not on_npu):
        from torch._dynamo.backends.debugging import aot_eager

        return aot_eager
    if on_npu:
        return _torchair(wanted)
    from msctx.graph.fusion import compiler

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


def _stopping(made: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        return _stop() if here.only_compiles else made(*args)

    return run


class _Here(threading.local):
    only_compiles = False
    """Calls of this thread compile, and do not run."""
    module: torch.nn.Module | None = None
    """The outermost that runs."""


here = _Here()


@functools.cache
def backend(wanted: Compilation) -> Backend:
    """One object for each: Dynamo tells compiled code apart by it."""
    return Backend(wanted)


_forwards: list[tuple[weakref.ref[type[torch.nn.Module]], weakref.ref[Callable[..., Any]]]] = []
"""Classes of modules in compiled code, and their forward then. Dynamo has no guard on it, and none on the absence of global hooks."""
_hooks: list[int] = []


def _global_hooks() -> list[int]:
    of: Any = torch.nn.modules.module
    kinds = of._global_forward_pre_hooks, of._global_forward_hooks, of._global_backward_pre_hooks, of._global_backward_hooks
    return [number for kind in kinds for number in kind]


def _note_forwards() -> None:
    global _forwards
    if here.module is not None:
        known = {kind: forward for kind, forward in _forwards if kind() is not None}
        kinds: set[Any] = {type(one) for one in here.module.modules()}
        found = {weakref.ref(kind): weakref.ref(kind.forward) for kind in kinds if kind.forward is kind.forward}
        _forwards = [*(found | known).items()]


def is_of_before() -> bool:
    """Whether a class of modules that compiled code contains has another forward now, or all modules have other hooks."""
    return _hooks != _global_hooks() or any(
        (kind := ref()) is not None and kind.forward is not forward() for ref, forward in _forwards
    )


def forget() -> None:
    """Give equal policies other back ends from now on."""
    global _forwards, _hooks
    _forwards, _hooks = [], _global_hooks()
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


def gear_of(wanted: Shapes, what: str, inputs: Mapping[str, Any]) -> int:
    """Which gear the inputs of a call have.

    Raises:
        GraphError: they have none of them, with those that there are.
    """
    tensors = _tensors(wanted, what, inputs).values()
    shapes = tuple((name, tuple(tensor.shape)) for (name, _), tensor in zip(wanted.gears[0], tensors, strict=False))
    if shapes not in wanted.gears:
        raise GraphError.shape(f"{what} is called with {text(shapes)}", "dynamic_dims", [*map(text, wanted.gears)])
    return wanted.gears.index(shapes)


def in_gear(wanted: Shapes, gear: int, what: str, inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Name of an argument → zeros that have its shape in *gear*, to compile for it."""
    made = {}
    for (_, shape), (name, tensor) in zip(wanted.gears[gear], _tensors(wanted, what, inputs).items(), strict=False):
        zeros = torch.zeros(shape, dtype=tensor.dtype, device=tensor.device)
        made[name] = zeros.to(memory_format=suggest_memory_format(tensor)).requires_grad_(tensor.requires_grad)
    return made


def _tensors(wanted: Shapes, what: str, inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """The tensors that input_shape means, in its order, by the names of the arguments; those in no gear may follow."""
    names = [name for name, _ in wanted.gears[0]]
    if not wanted.named:
        found = {name: value for name, value in inputs.items() if isinstance(value, torch.Tensor)}
        if len(found) < len(names):
            raise GraphError(_too_few("input_shape", len(names), what, len(found)))
        return found
    absent = [name for name in names if not isinstance(inputs.get(name), torch.Tensor)]
    if absent:
        takes = ", ".join(inputs) or "no arguments"
        raise GraphError(f"input_shape names {', '.join(absent)}, and {what} is called with no such tensors. It takes {takes}.")
    return {name: inputs[name] for name in names}


def _too_few(option: str, wanted: int, what: str, found: int) -> str:
    return f"{option} has shapes of {wanted} inputs, and {what} is called with fewer tensors: {found}."


@contextmanager
def marked(wanted: Shapes, what: str, inputs: Mapping[str, Any]) -> Iterator[None]:
    """Inside, Dynamo compiles for the ranges of the inputs.

    Raises:
        GraphError: a size is outside its range, or there are other dimensions, or more ranges than tensors.
    """
    tensors = {name: value for name, value in inputs.items() if isinstance(value, torch.Tensor)}
    if len(tensors) < len(wanted.ranges):
        raise GraphError(_too_few("dynamic_inputs_shape_range", len(wanted.ranges), what, len(tensors)))
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
