"""Compiles graphs by inductor as graph_kernel_flags and the options about passes want it."""

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
from torch._inductor.custom_graph_pass import CustomPartitionerFn

from msctx.graph import breaks, epilogues, fusion_dump, names, weights
from msctx.graph.frozen import Compile, frozen
from msctx.graph.groups import COMPILED, REDUCTIONS, Rules, fuse, groups_in, meant, names_of
from msctx.graph.names import split
from msctx.graph.passes import (
    PASSES,
    SIMPLIFYING_PASSES,
    SIMPLIFYING_PATTERNS,
    Patterns,
    entries,
    patterns,
)
from msctx.notices import warn
from msctx.options.fusion_passes import ALL, BUFFER, GRAPH, TWINS, known
from msctx.options.graph import Compilation

BESIDE = {"aggressive_fusion": True, "score_fusion_memory_threshold": 0}
"""With these inductor fuses loops that share no data, on a CPU too."""
AGAIN = dict.fromkeys(
    ("ban_recompute_reductions", "ban_recompute_used_far_apart", "ban_recompute_materialized_backward",
     "ban_recompute_long_fusible_chains"),
    False,
)  # fmt: skip
"""Lets AOTAutograd compute again what it otherwise keeps for the backward pass."""
BITS = {"avx2": 256, "avx512": 512, "neon": 128, "sve256": 256}
LEVEL_3 = ("batch_linear", "batch_linear_lhs")
GROUPING = (
    *("enable_cluster_ops", "enable_cluster_ops_only", "disable_cluster_ops", "fusion_ops_level", "composite_op_limit_size"),
    *("reduce_fuse_depth", "enable_dynamic_shape_fusion"),
)


@functools.cache
def own_code() -> str:
    """A digest of the passes here: what another version of them has put into torch's caches is compiled anew."""
    sources = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()


class Way:
    """What one policy means for inductor."""

    def __init__(self, wanted: Compilation) -> None:
        self.flags = flags = dict(wanted.flags)
        self.level = flags.get("opt_level", 2)
        self.config: dict[str, Any] = dict(wanted.config)
        self.aot: dict[str, Any] = {}
        self.patterns, self.passes = Patterns(), dict[str, bool]()
        self.buffers = True
        """Whether kernels are fused at all."""
        self.unknown = [name for _, name, _ in wanted.fusion_switches if not known(name)]
        self._by_level()
        self._by_switches(wanted.fusion_switches)
        self._by_lists()
        self._by_values()
        if wanted.frozen:
            self.config["freezing"] = True
        self.rules = self._rules()
        if self.rules:
            self.config["fallback_random"] = True  # the random numbers of eager code, which operators outside of groups draw
        self.dumps = bool(flags.get("dump_as_text"))
        inductor, aot = entries(self.passes)
        self.config, self.aot = inductor | self.config, aot | self.aot
        if self.dumps:
            self.config |= {"fx_graph_cache": False, **fusion_dump.hooks()}
        if self.rules:
            self.aot["donated_buffer"] = False  # the numbers of what may be written over are those of the graph's inputs
        if self.dumps or self.rules or any(name in flags for name in names.LISTS):
            self.aot["enable_autograd_cache"] = False  # what it loads has been through no pass
        self.weights, self.epilogues, self.products = wanted.weights, wanted.epilogues, wanted.products is not None
        about = own_code(), wanted.flags, wanted.fusion_switches, wanted.weights, wanted.epilogues, wanted.products
        self.tag = hashlib.sha256(repr(about).encode()).hexdigest()[:16]

    def _by_level(self) -> None:
        if self.level == 1:
            self.passes |= dict.fromkeys(SIMPLIFYING_PASSES, False)
            self.patterns.base = False
        if self.level == 3:
            self.passes |= dict.fromkeys(LEVEL_3, True)
            self.config |= {**BESIDE, "combo_kernels": True, "benchmark_fusion": True}

    def _by_switches(self, switches: Sequence[tuple[str, str, str]]) -> None:
        """Single entries win over ALL, wherever they stand."""
        for group, name, state in sorted(switches, key=lambda switch: switch[1] != ALL):
            if name == ALL and group == GRAPH:
                self.patterns.base = state == "on" and self.patterns.base
            elif name == ALL and group == BUFFER:
                self.buffers = state == "on"
            for twin in TWINS.get(name, ()):
                self._switch(twin, state == "on")

    def _switch(self, name: str, on: bool) -> None:
        if name in PASSES:
            self.passes[name] = on
        else:
            self.patterns.named[name] = on

    def _by_lists(self) -> None:
        lists = {flag: split(text) for flag, text in self.flags.items() if flag in names.LISTS}
        if (only := lists.get("enable_simplify_exprs_only")) is not None:
            for name in (*SIMPLIFYING_PASSES, *SIMPLIFYING_PATTERNS):
                self._switch(name, name in only)
        for name in lists.get("disable_simplify_exprs", ()):
            if name in SIMPLIFYING_PASSES or name in SIMPLIFYING_PATTERNS:
                self._switch(name, False)
        if (only := lists.get("enable_fusion_pattern_only")) is not None:
            self.patterns.only(only)
        self.patterns.named |= dict.fromkeys(lists.get("disable_fusion_pattern", ()), False)
        for flag, on in (("enable_pass", True), ("disable_pass", False)):
            self.passes |= dict.fromkeys((name for name in lists.get(flag, ()) if name in PASSES), on)

    def _by_values(self) -> None:
        flags, config = self.flags, self.config
        if (on := flags.get("enable_parallel_fusion")) is not None:
            off = {"aggressive_fusion": False, "score_fusion_memory_threshold": 10}
            config |= {**(BESIDE if on else off), "combo_kernels": on}
        if (part := flags.get("parallel_ops_level")) is not None:
            config["combo_kernels_pointwise_only"] = part == 0
        if flags.get("enable_horizontal_fusion") is False:
            config["cpp.max_horizontal_fusion_size"] = 1
        if (on := flags.get("enable_parallel_op_combine")) is not None:
            self.passes["batch_linear_post_grad"] = on
        if (on := flags.get("enable_auto_tensor_inplace")) is not None:
            config["inplace_buffers"] = on
        if (on := flags.get("exact_precision_mode")) is not None:
            config["emulate_precision_casts"] = on
        if flags.get("enable_vectorization") is False:
            config["cpp.simdlen"] = 1
        elif (feature := flags.get("cpu_feature")) is not None:
            config["cpp.simdlen"] = BITS[feature]
        if (threads := flags.get("cpu_refer_thread_num")) is not None:
            config["cpp.threads"] = threads
        if (on := flags.get("enable_debug_mode")) is not None:
            config |= {"cpp.enable_kernel_profile": on, "comment_origin": on}
        if (variants := flags.get("online_tuning")) is not None:
            config["max_autotune"] = variants > 0
        if flags.get("disable_matmul_post_fusion"):
            config["epilogue_fusion"] = False
            self.patterns.named["addmm"] = False
        if flags.get("enable_recompute_fusion"):
            self.aot |= AGAIN
        elif "enable_recompute_fusion" in flags:
            config["custom_partitioner_fn"] = KeepAll()
        limits = flags.get("recompute_peak_threshold"), flags.get("recompute_increment_threshold")
        if flags.get("enable_recompute_fusion", True) and limits != (None, None):
            config["custom_partitioner_fn"] = KeepUpTo(*(limit or 0 for limit in limits))

    def _names(self, flag: str) -> frozenset[str] | None:
        if flag not in self.flags:
            return None
        return frozenset().union(*meant(split(self.flags[flag])).values())

    def _rules(self) -> Rules | None:
        """None: graphs go to inductor as wholes."""
        flags = self.flags
        if self.level != 1 and self.buffers and not any(name in flags for name in GROUPING):
            return None
        return Rules(
            part=-1 if not self.buffers else flags.get("fusion_ops_level", REDUCTIONS if self.level == 1 else COMPILED),
            only=self._names("enable_cluster_ops_only") if self.buffers else None,
            more=self._names("enable_cluster_ops") or frozenset() if self.buffers else frozenset(),
            less=self._names("disable_cluster_ops") or frozenset(),
            size=flags.get("composite_op_limit_size", 0),
            depth=flags.get("reduce_fuse_depth"),
            beside=flags.get("enable_horizontal_fusion", self.level != 1),
            dynamic=flags.get("enable_dynamic_shape_fusion", True),
            least=2 if self.level == 1 or not self.buffers else 1,
        )

    # --- decompositions

    def decompositions(self) -> dict[Any, Callable[..., Any]] | None:
        """The table by which operators are decomposed; None: inductor's own."""
        from torch._decomp import decomposition_table
        from torch._inductor.decomposition import select_decomp_table

        lists = {
            flag: meant(split(self.flags[flag])) for flag in names.OPERATOR_FLAGS if "expand" in flag and flag in self.flags
        }
        if not lists and not self.flags.get("disable_matmul_post_fusion"):
            return None
        table = dict(select_decomp_table())
        wanted: dict[str, tuple[tuple[str, str], ...]] = {}
        for flag in ("enable_expand_ops_only", "enable_expand_ops"):
            for name, of in lists.get(flag, {}).items():
                for one in of:
                    wanted[one] = (*wanted.get(one, ()), (flag, name))
        if (only := lists.get("enable_expand_ops_only")) is not None:
            kept = frozenset().union(*only.values())
            table = {op: function for op, function in table.items() if _name(op) in kept or _is_needed(op)}
        always = frozenset().union(*lists.get("enable_expand_ops", {}).values())
        if self.flags.get("disable_matmul_post_fusion"):
            always |= {"addmm", "baddbmm"}
        for op, function in decomposition_table.items():
            if _name(op) in always:
                table[op] = function  # inductor's own may decline
            elif _name(op) in wanted:
                table.setdefault(op, function)
        for op in [op for op in table if wanted.get(_name(op))]:
            table[op] = _noticed(table[op], wanted[_name(op)])
        gone = frozenset().union(*lists.get("disable_expand_ops", {}).values())
        return {op: function for op, function in table.items() if _name(op) not in gone}


def _name(op: Any) -> str:
    packet = getattr(op, "_overloadpacket", op)
    return str(getattr(packet, "__name__", op))


def _is_needed(op: Any) -> bool:
    """Whether it must be decomposed, since it writes into its inputs or has no kernel."""
    schema = getattr(op, "_schema", None)
    return schema is None or schema.is_mutable or getattr(op, "namespace", "aten") != "aten"


def _noticed(function: Callable[..., Any], asked: Sequence[tuple[str, str]]) -> Callable[..., Any]:
    @functools.wraps(function)
    def noticed(*args: Any, **kwargs: Any) -> Any:
        names.matched(asked)
        return function(*args, **kwargs)

    return noticed


# --- what the backward pass keeps -------------------------------------------------------------------------------------


class KeepAll(CustomPartitionerFn):
    """The backward pass computes nothing again."""

    def __call__(self, gm: fx.GraphModule, joint_inputs: Any, **kwargs: Any) -> tuple[fx.GraphModule, fx.GraphModule]:
        from torch._functorch.partitioners import default_partition

        kwargs.pop("compiler", None)
        return default_partition(gm, joint_inputs, **kwargs)

    def uuid(self) -> object:
        return type(self).__name__


class KeepUpTo(CustomPartitionerFn):
    """The backward pass computes again where it would keep more than *most* bytes, and saves more than *least* by that."""

    def __init__(self, most: int, least: int) -> None:
        self.most, self.least = most, least

    def __call__(self, gm: fx.GraphModule, joint_inputs: Any, **kwargs: Any) -> tuple[fx.GraphModule, fx.GraphModule]:
        from torch._functorch.partitioners import min_cut_rematerialization_partition

        all_kept = KeepAll()(deepcopy(gm), joint_inputs, **kwargs)
        again = min_cut_rematerialization_partition(gm, joint_inputs, **kwargs)
        kept, less = (_saved(forward, kwargs["num_fwd_outputs"]) for forward, _ in (all_kept, again))
        return again if kept > self.most and kept - less > self.least else all_kept

    def uuid(self) -> object:
        return type(self).__name__, self.most, self.least


def _saved(forward: fx.GraphModule, outputs: int) -> int:
    """The bytes that a forward graph makes and returns for the backward pass, after the *outputs* of the program."""
    from torch._inductor.fx_utils import get_node_storage

    results: Any = forward.graph.output_node().args[0]
    own = {get_node_storage(node): node.meta["val"] for node in results[outputs:] if isinstance(node, fx.Node)}
    for node in forward.graph.find_nodes(op="placeholder"):
        own.pop(get_node_storage(node), None)
    return sum(value.numel() * value.element_size() for value in own.values() if isinstance(value, torch.Tensor))


# --- compiling --------------------------------------------------------------------------------------------------------


def compiler(wanted: Compilation) -> Callable[..., Any]:
    """What compiles the graphs of a policy that inductor fuses."""
    from torch._inductor.compile_fx import compile_fx, compile_fx_inner

    if not (wanted.flags or wanted.fusion_switches or wanted.frozen or wanted.weights or wanted.products):
        inner = functools.partial(_or_eagerly, wanted, compile_fx_inner)
        return functools.partial(compile_fx, inner_compile=inner, config_patches=dict(wanted.config))
    compile = functools.partial(_compile, wanted)
    return functools.partial(_frozen, compile) if wanted.frozen else compile


def _frozen(compile: Compile, graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    if not torch.is_grad_enabled():
        return frozen(compile, graph, inputs)
    warn(
        "frozen_variable",
        "grad",
        "frozen_variable: weights are not frozen in code that computes gradients; use torch.no_grad()",
    )
    return compile(graph, inputs)


def _compile(wanted: Compilation, graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx

    way = Way(wanted)
    for name in way.unknown:
        warn("fusion_switch_file", name, f"fusion_switch_file: {name} is no fusion pass that msctx knows; it is ignored")
    names.compiling()
    with _in_force(way), config.patch(way.config):
        made: Any = compile_fx(
            graph,
            inputs,
            inner_compile=functools.partial(_or_eagerly, wanted, functools.partial(_inner, way)),
            config_patches=way.config,
            decompositions=way.decompositions(),
        )
    names.matched(_known(way))
    return made  # type: ignore[no-any-return]


@contextmanager
def _in_force(way: Way) -> Iterator[None]:
    from torch._dynamo.convert_frame import compile_lock

    shared: Any = importlib.import_module("torch.compiler.config")  # mypy does not see its methods
    with ExitStack() as stack:
        stack.enter_context(compile_lock)
        stack.enter_context(torch._functorch.config.patch(way.aot))
        stack.enter_context(shared.patch(cache_key_tag=f"{shared.cache_key_tag}{way.tag}"))
        stack.enter_context(way.patterns.applied())
        if way.weights:
            stack.enter_context(weights.not_copied())
        yield


def _or_eagerly(
    wanted: Compilation, inner: Callable[..., Any], graph: fx.GraphModule, inputs: Sequence[Any], **how: Any
) -> Any:
    """What *inner* makes of a graph. A backward pass that it cannot compile runs eagerly: its forward pass has run already."""
    from torch._dynamo.backends.debugging import boxed_nop

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
    from torch._inductor.compile_fx import compile_fx_inner

    is_backward, training = how.get("is_backward", False), not how.get("is_inference")
    has_strides = way.rules is None  # groups report none
    if (way.epilogues or way.products) and not is_backward and (has_strides or not training):
        epilogues.fold(graph, way.epilogues, way.products, training=training)
    _match(way, graph)
    _keep_whole(graph, is_backward)
    with _in_force(way):
        if way.rules is None:
            return compile_fx_inner(graph, inputs, **how)
        return _in_groups(way, graph, how)


def _keep_whole(graph: fx.GraphModule, is_backward: bool) -> None:
    """Let inductor call the operators that a flag keeps whole; by itself it raises for them where CI is set (make_fallback)."""
    from torch._decomp import get_decompositions
    from torch._inductor.lowering import lowerings, make_fallback, require_contiguous, tag_to_layout_constraint
    from torch._library.utils import get_layout_constraint_tag

    for op in dict.fromkeys(node.target for node in graph.graph.nodes):
        if isinstance(op, torch._ops.OpOverload) and op not in lowerings and get_decompositions([op]):
            layout = tag_to_layout_constraint(get_layout_constraint_tag(op, with_default=True))
            make_fallback(op, require_contiguous if is_backward else layout, warn=False, override_decomp=True)


def _in_groups(way: Way, graph: fx.GraphModule, how: dict[str, Any]) -> Callable[[list[Any]], Any]:
    from torch._dynamo.backends.debugging import boxed_nop
    from torch._dynamo.utils import counters
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._inductor.utils import BoxedBool

    assert way.rules is not None
    how = {**how, "static_input_idxs": (), "cudagraphs": BoxedBool(False)}
    found = groups_in(graph, way.rules)
    counters["msctx"]["fused_groups"] += len(found)
    if way.dumps:
        fusion_dump.write("before_grouping", graph)
    with _of_its_parts():
        made = fuse(graph, found, functools.partial(compile_fx_inner, **how))
    if way.dumps:
        fusion_dump.write("after_grouping", made)
    boxed: Callable[[list[Any]], Any] = boxed_nop(made, [])  # it releases each input after its last use
    return boxed


@contextmanager
def _of_its_parts() -> Iterator[None]:
    """What inductor reports to AOTAutograd of the results of a group is not about those of the graph."""
    context = torch._guards.TracingContext.try_get()
    if context is None:
        yield
        return
    strides, context.output_strides = context.output_strides, None
    try:
        yield
    finally:
        context.output_strides = strides


def _match(way: Way, graph: fx.GraphModule) -> None:
    """Which names of lists of operators a graph has."""
    present = frozenset().union(*map(names_of, graph.graph.nodes))
    for flag in names.OPERATOR_FLAGS:
        if flag in way.flags and (flag == "disable_expand_ops" or "cluster" in flag):
            names.matched((flag, name) for name, of in meant(split(way.flags[flag])).items() if of & present)


def _known(way: Way) -> set[tuple[str, str]]:
    """Which names of lists of passes and patterns mean something."""
    made = patterns() if any(flag in way.flags for flag in names.PATTERN_FLAGS) else set()
    of = {
        **dict.fromkeys(names.PASS_FLAGS, PASSES.keys()),
        **dict.fromkeys(names.SIMPLIFICATION_FLAGS, frozenset({*SIMPLIFYING_PASSES, *SIMPLIFYING_PATTERNS})),
        **dict.fromkeys(names.PATTERN_FLAGS, made),
    }
    return {(flag, name) for flag, those in of.items() for name in split(way.flags.get(flag, "")) if name in those}
