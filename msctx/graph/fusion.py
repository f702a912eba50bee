"""Compiles graphs by inductor with the settings that graph_kernel_flags and the options about passes mean."""

from __future__ import annotations

import functools
import hashlib
import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch._dynamo.backends.debugging import aot_eager, boxed_nop
from torch._dynamo.convert_frame import compile_lock
from torch._inductor import config
from torch._inductor.compile_fx import compile_fx, compile_fx_inner
from torch._inductor.pattern_matcher import PatternMatcherPass

from msctx.graph import breaks, epilogues, weights
from msctx.graph.frozen import Compile, frozen
from msctx.notices import warn
from msctx.options.policies import ALL, BUFFER, GRAPH, TWINS, Compilation
from msctx.themes.graph_kernel_flags import FUNCTORCH, PATTERN, settings_of

NOT_FROZEN = "frozen_variable: weights are not frozen in code that computes gradients; use torch.no_grad()"


@functools.cache
def own_code() -> str:
    """A digest of the passes here: what another version of them has put into torch's caches is compiled anew."""
    sources = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()


class Way:
    """What one policy means for inductor.

    Attributes:
        config: settings of inductor.
        aot: settings of AOTAutograd.
        patterns: which patterns of inductor's pattern matcher are replaced, by name; ``None``: all.
        tag: what distinguishes its code in torch's caches.
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
            found |= weights.SETTINGS
        self.patterns: Callable[[str], bool] | None = None
        if found.get("pattern_matcher", True) and not (by_default and all(named.values())):
            self.patterns = lambda name: named.get(name, by_default or name == "_")  # "_": decompositions, which must happen
        self.aot = {name.removeprefix(FUNCTORCH): found.pop(name) for name in [*found] if name.startswith(FUNCTORCH)}
        self.config = found
        about = own_code(), wanted.flags, wanted.fusion_switches, wanted.weights, wanted.epilogues, wanted.products
        self.tag = hashlib.sha256(repr(about).encode()).hexdigest()[:16]

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """Under Dynamo's lock, as all that torch.compile does."""

        shared: Any = importlib.import_module("torch.compiler.config")  # mypy does not see its methods
        with ExitStack() as stack:
            stack.enter_context(compile_lock)
            stack.enter_context(torch._functorch.config.patch(self.aot))
            stack.enter_context(shared.patch(cache_key_tag=f"{shared.cache_key_tag}{self.tag}"))
            if self.patterns:
                stack.enter_context(_only(self.patterns))
            if self.wanted.weights:
                stack.enter_context(weights.not_copied())
            yield


@contextmanager
def _only(allow: Callable[[str], bool]) -> Iterator[None]:
    """Inductor replaces the patterns of these names alone."""
    passes = _passes()
    found = [one.patterns for one in passes]
    for one in passes:
        one.patterns = _Allowed(one.patterns, allow)
    try:
        yield
    finally:
        for one, whole in zip(passes, found, strict=True):
            one.patterns = whole


class _Allowed(dict[Any, Any]):
    """The patterns of a pass without those that are not allowed. Inductor adds others when it first compiles: to the whole."""

    def __init__(self, whole: Any, allow: Callable[[str], bool]) -> None:
        super().__init__(whole)
        self._whole, self._allow = whole, allow

    def __getitem__(self, key: Any) -> Any:
        super().__setitem__(key, entries := self._whole[key])
        return _Entries(entries, self._allow)


class _Entries:
    def __init__(self, entries: list[Any], allow: Callable[[str], bool]) -> None:
        self.append, self.insert = entries.append, entries.insert
        self._entries, self._allow = entries, allow

    def __iter__(self) -> Iterator[Any]:
        return iter([one for one in self._entries if self._allow(_name(one))])


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
    if not (wanted.flags or wanted.fusion_switches or wanted.frozen or wanted.weights or wanted.products):
        inner = functools.partial(_or_eagerly, wanted, compile_fx_inner)
        return functools.partial(compile_fx, inner_compile=inner, config_patches=dict(wanted.config))
    compile = functools.partial(_compile, wanted)
    return functools.partial(_frozen, compile) if wanted.frozen else compile


def _frozen(compile: Compile, graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    if not torch.is_grad_enabled():
        return frozen(compile, graph, inputs)
    warn(NOT_FROZEN)
    return compile(graph, inputs)


def _compile(wanted: Compilation, graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:

    way = Way(wanted)
    inner = functools.partial(_or_eagerly, wanted, functools.partial(_inner, way))
    with way.in_force(), config.patch(way.config):
        made: Any = compile_fx(graph, inputs, inner_compile=inner, config_patches=way.config)
    return made  # type: ignore[no-any-return]


def _or_eagerly(
    wanted: Compilation, inner: Callable[..., Any], graph: fx.GraphModule, inputs: Sequence[Any], **how: Any
) -> Any:
    """What *inner* makes of a graph. A backward pass that it cannot compile runs eagerly: its forward pass has run already."""

    if wanted.whole or not how.get("is_backward"):
        return inner(graph, inputs, **how)
    own = fx.GraphModule(graph, deepcopy(graph.graph))  # passes change the other one
    try:
        return inner(graph, inputs, **how)
    except Exception as error:
        breaks.not_compiled(own, error)
        return boxed_nop(own, [])


def _inner(way: Way, graph: fx.GraphModule, inputs: Sequence[Any], **how: Any) -> Any:
    """In place of inductor's own step from a graph of ATen operators to code; the backward pass comes here later."""

    epilogue, products = way.wanted.epilogues, way.wanted.products is not None
    if (epilogue or products) and how.get("is_inference"):
        epilogues.fold(graph, epilogue, products)
    with way.in_force():
        return compile_fx_inner(graph, inputs, **how)
