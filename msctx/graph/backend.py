"""What becomes of each graph that Dynamo captures."""

from __future__ import annotations

import functools
import os
import re
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch

from msctx.graph import report
from msctx.native import core
from msctx.notices import warn
from msctx.observers import compile_trace
from msctx.options.switch_values import ALL, BUFFER, Compilation
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
        if (library := core.loaded()) is not None:
            there = [one for one in inputs if isinstance(one, torch.nn.Parameter) and one.device.type == "cpu"]
            given = [one for one in there if one.layout == torch.strided]
            library.c.msctx_compiled_with(core.json_of([[one.untyped_storage()._cdata, one.storage_offset()] for one in given]))
        records = torch.is_grad_enabled() or any(GRADIENTS.search(str(node.target)) for node in _nodes(graph))
        here.without_gradients = False  # also if it cannot be compiled
        made = self._compile(graph, inputs)
        here.without_gradients = not records
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


GRADIENTS = re.compile("grad|inference")
"""In the names of what switches gradients on or off."""
RANDOM = re.compile(
    r"drop|rrelu|rand|bernoulli|normal_?$|multinomial|poisson|exponential|uniform|cauchy|geometric|gumbel|lstm|gru|rnn"
)


def _nodes(graph: torch.fx.GraphModule) -> Iterator[torch.fx.Node]:
    return (node for part in graph.modules() if isinstance(part, torch.fx.GraphModule) for node in part.graph.nodes)


def _draws(graph: torch.fx.GraphModule) -> str:
    """The name of an operator that draws random numbers: torch's budget for activations recomputes it with others."""
    for node in _nodes(graph):
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
    unfused = (BUFFER, ALL, "off") in wanted.fusion_switches
    if wanted.races and not (wanted.only or wanted.region or unfused or compile_trace.is_kept() or _draws(graph)):
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
    without_gradients = False
    """Whether the graph that was just captured records none; until its guards are made."""


here = _Here()


def needed(guards: Sequence[Any]) -> list[bool]:
    """Which guards of Dynamo's can find a change of what runs. A third of a network's are on absent hooks, and most of those cannot.

    Without gradients backward hooks do nothing. Which hooks take keyword arguments matters only if there are hooks.
    """
    without_gradients, here.without_gradients = here.without_gradients, False
    absent = {one.name for one in guards if one.guard_type == "EMPTY_NN_MODULE_HOOKS_DICT"}

    def is_needed(name: str) -> bool:
        if name.endswith(("._backward_hooks", "._backward_pre_hooks")):
            return not without_gradients
        of_all = name.removesuffix("_with_kwargs")
        return of_all == name or of_all not in absent

    return [one.name not in absent or is_needed(one.name) for one in guards]


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
