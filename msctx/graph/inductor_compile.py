"""Compiles graphs by inductor with the settings that graph_kernel_flags and the options about passes and weights mean."""

from __future__ import annotations

import hashlib
import importlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from torch import fx
from torch._dynamo.backends.debugging import aot_eager, boxed_nop
from torch._dynamo.convert_frame import compile_lock
from torch._guards import TracingContext, tracing
from torch._inductor import config
from torch._inductor.codegen.wrapper import PythonWrapperCodegen
from torch._inductor.compile_fx import compile_fx, compile_fx_inner
from torch._inductor.lowering import fallback_handler, lowerings
from torch._inductor.pattern_matcher import PatternMatcherPass
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv, free_symbols

from msctx.graph import epilogues, report
from msctx.graph.inductor_passes import own_code
from msctx.notices import warn
from msctx.options.switch_values import ALL, BUFFER, GRAPH, TWINS, Compilation
from msctx.themes.graph_kernel_flags import FUNCTORCH, PATTERN, settings_of
from msctx.torch_config_overrides import forced


class Way:
    """What one policy means for inductor.

    Attributes:
        config: settings of inductor.
        aot: settings of AOTAutograd.
        patterns: which patterns of inductor's pattern matcher are replaced, by name; ``None``: all.
        tag: what distinguishes its code in torch's caches, ``""``: nothing but inductor's settings.
    """

    def __init__(self, wanted: Compilation) -> None:
        self.wanted = wanted
        found = dict(wanted.config) | settings_of(dict(wanted.flags))
        found |= {twin: state == "on" for _, name, state in wanted.fusion_switches for twin in TWINS.get(name, ())}
        named = {name.removeprefix(PATTERN): found.pop(name) for name in [*found] if name.startswith(PATTERN)}
        by_default = (GRAPH, ALL, "off") not in wanted.fusion_switches and found.get("pattern_matcher", True)
        if not by_default:
            found["pattern_matcher"] = any(named.values())
        if wanted.frozen:
            found["freezing"] = True
        if wanted.weights:
            found |= SETTINGS
        self.patterns: Callable[[str], bool] | None = None
        if found.get("pattern_matcher", True) and not (by_default and all(named.values())):
            self.patterns = lambda name: named.get(name, by_default or name == "_")  # "_": decompositions, which must happen
        self.aot = {name.removeprefix(FUNCTORCH): found.pop(name) for name in [*found] if name.startswith(FUNCTORCH)}
        self.config = found
        about = wanted.flags, wanted.fusion_switches, wanted.weights, wanted.epilogues
        self.tag = hashlib.sha256(repr((own_code(), about)).encode()).hexdigest()[:16] if any(about) else ""

    def compile(self, graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        with self._in_force(), config.patch(self.config):
            made: Any = compile_fx(graph, inputs, inner_compile=self._inner, config_patches=self.config)
        return made  # type: ignore[no-any-return]

    def _inner(self, graph: fx.GraphModule, inputs: Sequence[Any], **how: Any) -> Any:
        """In place of inductor's own step from a graph of ATen operators to code; the backward pass comes here later.

        A backward pass that cannot be compiled runs eagerly: its forward pass has run already.
        """
        wanted = self.wanted
        checks: AbstractContextManager[None] = nullcontext()
        if wanted.epilogues and how.get("is_inference"):
            epilogues.fold(graph)
            checks = nullcontext() if wanted.region else _not_checked_again()
        is_needed = wanted.whole or not how.get("is_backward")
        own = None if is_needed else copy_of(graph)  # passes change the other one
        try:
            with self._in_force(), checks:
                return compile_fx_inner(graph, inputs, **how)
        except Exception as error:
            if own is None:
                raise
            report.not_compiled(own, error)
            return boxed_nop(own, [])

    @contextmanager
    def _in_force(self) -> Iterator[None]:
        """Under Dynamo's lock, as all that torch.compile does."""
        shared: Any = importlib.import_module("torch.compiler.config")  # mypy does not see its methods
        with ExitStack() as stack:
            stack.enter_context(compile_lock)
            stack.enter_context(torch._functorch.config.patch(self.aot))
            stack.enter_context(shared.patch(cache_key_tag=f"{shared.cache_key_tag}{self.tag}"))
            if self.patterns:
                stack.enter_context(_only(self.patterns))
            if self.wanted.weights:
                stack.enter_context(not_copied())
            if self.wanted.frozen:  # under an algorithm the switch is forced to be off
                stack.enter_context(forced(config, "freezing", True))
            yield


@contextmanager
def _not_checked_again() -> Iterator[None]:
    """Code does not compare sizes and strides of its inputs, some 0.6 us for each weight: Dynamo's guards have."""
    name = "codegen_input_size_asserts"
    before = getattr(PythonWrapperCodegen, name)
    setattr(PythonWrapperCodegen, name, lambda self: None)
    try:
        yield
    finally:
        setattr(PythonWrapperCodegen, name, before)


@contextmanager
def _only(allow: Callable[[str], bool]) -> Iterator[None]:
    """Inductor replaces the patterns of these names alone."""
    passes = _passes()
    found = [one.apply for one in passes]
    for one in passes:
        one.apply = partial(_apply, one, allow)
    try:
        yield
    finally:
        for one, apply in zip(passes, found, strict=True):
            one.apply = apply


def _apply(one: Any, allow: Callable[[str], bool], graph: Any) -> int:
    whole = one.patterns  # to which inductor adds others when it first compiles
    one.patterns = defaultdict(list, {key: [entry for entry in found if allow(_name(entry))] for key, found in whole.items()})
    try:
        return PatternMatcherPass.apply(one, graph)
    finally:
        one.patterns = whole


def _passes() -> list[Any]:
    """Those of inductor that replace patterns."""
    found: list[Any] = []
    for name in ("pre_grad", "joint_graph", "freezing_patterns", "post_grad"):
        for value in vars(importlib.import_module(f"torch._inductor.fx_passes.{name}")).values():
            found += value.values() if isinstance(value, dict) else value if isinstance(value, list) else [value]
    return [*{id(one): one for one in found if isinstance(one, PatternMatcherPass)}.values()]


def _name(entry: Any) -> str:
    """The name of a pattern: of what replaces it."""
    return str(getattr(entry, "pattern_name", None) or getattr(getattr(entry, "handler", None), "__name__", ""))


def compiler(wanted: Compilation) -> Callable[..., Any]:
    """What compiles the graphs of a policy that inductor fuses."""
    if (BUFFER, ALL, "off") in wanted.fusion_switches:
        return aot_eager
    compile = Way(wanted).compile
    return partial(frozen, compile) if wanted.frozen else compile


# --- frozen_variable: weights that compiled code holds as constants ---------------------------------------------------------


def frozen(compile: Callable[..., Any], graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    """Compile a graph whose parameters and buffers become constants; Dynamo notices those that are replaced.

    What has changed in place is seen by a tensor's version and address at each call. Inductor freezes a graph of fixed shapes
    again; where shapes have symbols, whose conditions Dynamo has checked already, the graph runs eagerly. Buffers that the graph
    itself writes, such as statistics, are no constants: they move in every run. A parameter that moves during a run was changed by
    another thread.
    """
    if torch.is_grad_enabled():
        warn("frozen_variable: weights are not frozen in code that computes gradients; use torch.no_grad()")
        return compile(graph, inputs)  # type: ignore[no-any-return]
    weights, buffers = [*graph.parameters()], [*graph.buffers()]
    kept, held = copy_of(graph), weights + buffers
    all_buffers = {*range(len(weights), len(held))}
    at = state_of(held)
    made, own = compile(graph, inputs), all_buffers
    fixed = not has_symbols(kept)

    def run(*args: Any) -> Any:
        nonlocal made, at, own
        before = state_of(held)
        if _moved(at, before) - own:
            warn(f"frozen_variable: weights have changed. {AGAIN if fixed else EAGERLY}")
            made, at, own = _later(compile, kept, args) if fixed else kept.forward, before, all_buffers
        result = made(*args)
        own = own & _moved(before, state_of(held))
        return result

    return run


AGAIN = "Their code is compiled again, after each change."
EAGERLY = "Code for several shapes that holds them runs eagerly; do not use frozen_variable where weights change."


def has_symbols(graph: fx.GraphModule) -> bool:
    values = [node.meta.get("example_value") for node in graph.graph.find_nodes(op="placeholder")]
    return any(free_symbols(value) for value in values if isinstance(value, torch.Tensor | torch.SymInt))


def _later(compile: Callable[..., Any], graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    """Compile a graph of fixed shapes outside of Dynamo, whose guards hold already."""
    mode = FakeTensorMode(shape_env=ShapeEnv())
    given = [mode.from_tensor(one, static_shapes=True) if isinstance(one, torch.Tensor) else one for one in inputs]
    with compile_lock, tracing(TracingContext(mode)):
        return compile(copy_of(graph), given)  # type: ignore[no-any-return]


def compiled_later(wanted: Compilation, graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    return _later(Way(wanted).compile, graph, inputs)


def state_of(held: Sequence[torch.Tensor]) -> list[tuple[int, int]]:
    try:
        return [(value.data_ptr(), value._version) for value in held]
    except RuntimeError:  # inference tensors have no version
        return [(value.data_ptr(), 0 if value.is_inference() else value._version) for value in held]


def _moved(before: Sequence[tuple[int, int]], after: Sequence[tuple[int, int]]) -> set[int]:
    return {place for place, (one, other) in enumerate(zip(before, after, strict=True)) if one != other}


def copy_of(graph: fx.GraphModule) -> fx.GraphModule:
    """A copy that shares the parameters."""
    return fx.GraphModule(graph, deepcopy(graph.graph))


# --- convolutions of compiled code read the weights of a model where they are -----------------------------------------------

SETTINGS = {"layout_optimization": False}
CONVOLUTIONS = torch.ops.aten.convolution.default, torch.ops.aten.convolution_backward.default


@contextmanager
def not_copied() -> Iterator[None]:
    """Inductor copies weights to the strides of a convolution's input, in each call, and with layout_optimization to channels_last.

    A copy belongs to no module, so that no rule for one would hold; and kernels bring a weight into a form of their own. So inductor
    calls the operators as they are. To be entered under Dynamo's lock, as all that torch.compile does, with SETTINGS.
    """
    tables: Any = lowerings
    before = {target: tables[target] for target in CONVOLUTIONS}
    tables.update({target: fallback_handler(target, add_to_fallback_set=False) for target in CONVOLUTIONS})
    try:
        yield
    finally:
        tables.update(before)
