"""Inductor's passes and patterns by name, and how each is switched."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

INDUCTOR, AOT, DISABLED, BEFORE, AFTER = "inductor", "aot", "disabled", "before", "after"
"""An entry of inductor's configuration, or of AOTAutograd's; a pass that a list of names disables; fusions of several operators of
one kind, before gradients are derived and after."""

PASSES: Mapping[str, tuple[str, str]] = {
    "cse": (AOT, "cse"),
    "constant_fold_uniform_value": (INDUCTOR, "joint_graph_constant_folding"),
    "remove_noop_ops": (DISABLED, "remove_noop_ops"),
    "pattern_matcher": (INDUCTOR, "pattern_matcher"),
    "reorder_for_locality": (INDUCTOR, "reorder_for_locality"),
    "reinplace_inplaceable_ops": (DISABLED, "reinplace_inplaceable_ops"),
    "conv_1x1_as_mm": (INDUCTOR, "conv_1x1_as_mm"),
    "epilogue_fusion": (INDUCTOR, "epilogue_fusion"),
    "loop_ordering_after_fusion": (INDUCTOR, "loop_ordering_after_fusion"),
    "online_softmax": (INDUCTOR, "online_softmax"),
    "split_reductions": (INDUCTOR, "split_reductions"),
    "b2b_gemm_pass": (INDUCTOR, "b2b_gemm_pass"),
    "efficient_conv_bn_eval": (INDUCTOR, "efficient_conv_bn_eval_fx_passes"),
    **dict.fromkeys(("group_linear", "batch_linear_post_grad"), (AFTER, "")),
    **dict.fromkeys((f"batch_aten_{name}" for name in ["tanh", "sigmoid", "relu", "add", "sub", "div", "mul"]), (AFTER, "")),
    **dict.fromkeys(
        (f"batch_{name}" for name in ["linear", "linear_lhs", "layernorm", "tanh", "sigmoid", "relu", "nan_to_num", "clamp"]),
        (BEFORE, ""),
    ),
}
"""Name → how it is switched. Those that correctness needs are not among them."""
SIMPLIFYING_PASSES = ("cse", "constant_fold_uniform_value", "remove_noop_ops")
SIMPLIFYING_PATTERNS = (
    *("pointless_convert", "pointless_view", "pointless_view_pair", "pointless_permute_pair", "pointless_cumsum_replacement"),
    *("mul_softmax_pattern", "div_softmax_pattern", "bmm_to_mm", "fix_iota_device", "scatter_upon_const_tensor"),
)
COMBINED = {"min_fuse_set_size": 2}
"""How many operators of one kind are worth being one."""


def entries(passes: Mapping[str, bool]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What switches passes on and off: entries of inductor's configuration, and of AOTAutograd's."""
    from torch._inductor import config

    found: dict[str, dict[str, Any]] = {INDUCTOR: {}, AOT: {}}
    off, before, after = list[str](), {**config.pre_grad_fusion_options}, {**config.post_grad_fusion_options}
    for name, on in passes.items():
        how, key = PASSES[name]
        if how in found:
            found[how][key] = on
        elif how == DISABLED:
            off += [] if on else [key]
        elif on:
            (before if how == BEFORE else after)[name] = {**COMBINED}
        else:
            (before if how == BEFORE else after).pop(name, None)
    if off:
        found[INDUCTOR]["disabled_passes"] = ",".join(filter(None, (config.disabled_passes, *off)))
    if (before, after) != (config.pre_grad_fusion_options, config.post_grad_fusion_options):
        found[INDUCTOR] |= {"pre_grad_fusion_options": before, "post_grad_fusion_options": after}
    return found[INDUCTOR], found[AOT]


def name_of(entry: Any) -> str:
    """The name of a pattern: of what replaces it."""
    handler = getattr(entry, "handler", None)
    return getattr(entry, "pattern_name", None) or getattr(handler, "__name__", None) or type(entry).__name__


def patterns() -> set[str]:
    """The names of the patterns that inductor has now; some it makes when it first compiles."""
    from torch._inductor.fx_passes import freezing_patterns, joint_graph, post_grad, split_cat
    from torch._inductor.pattern_matcher import PatternMatcherPass

    found: set[str] = set()
    for module in (joint_graph, post_grad, freezing_patterns, split_cat):
        for value in vars(module).values():
            several = [*value.values()] if isinstance(value, dict) else value
            for one in several if isinstance(several, list) else [value]:
                if isinstance(one, PatternMatcherPass):
                    found |= {name_of(entry) for entries in one.patterns.values() for entry in entries}
    return found


class Patterns:
    """Which patterns are replaced: *base*, but for those that are named."""

    def __init__(self) -> None:
        self.base, self.named = True, dict[str, bool]()

    def only(self, names: Iterable[str]) -> None:
        self.base, self.named = False, dict.fromkeys(names, True)

    @property
    def narrows(self) -> bool:
        return not self.base or not all(self.named.values())

    def allow(self, name: str) -> bool:
        return self.named.get(name, self.base)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Inductor replaces these alone. To be entered under Dynamo's lock, as all that torch.compile does."""
        from torch._inductor.pattern_matcher import PatternMatcherPass

        if not self.narrows:
            yield
            return
        original = PatternMatcherPass.apply

        def apply(passed: PatternMatcherPass, graph: Any) -> int:
            whole = passed.patterns
            passed.patterns = defaultdict(list, {key: [e for e in es if self.allow(name_of(e))] for key, es in whole.items()})
            try:
                return original(passed, graph)
            finally:
                passed.patterns = whole

        PatternMatcherPass.apply = apply  # type: ignore[method-assign,assignment]
        try:
            yield
        finally:
            PatternMatcherPass.apply = original  # type: ignore[method-assign]
