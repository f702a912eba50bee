"""The 51 flags of MindSpore's graph_kernel_flags: the settings of inductor that each one means, or why there is none."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import starmap
from platform import machine
from types import MappingProxyType
from typing import Any

from msctx.options.kinds import Bool, Choice, Int, Kind, Text, TextKind
from msctx.options.option import FLAGS_SOURCE, Option
from msctx.themes.base import reason

GROUP = "graph_kernel_flags"
FUNCTORCH = "functorch."
"""The prefix of settings of torch._functorch.config; the others are those of torch._inductor.config."""
PATTERN = "pattern."
"""The prefix of the names of patterns of inductor's pattern matcher: whether each is replaced."""
DUMP = "dump_as_text"
DUMPS = "graph_kernel_dump"

Names = TextKind("names separated by commas", ",")
Count = Int(0, 2**31 - 1)
CPU, CUDA = ("cpu",), ("cuda",)

LEVELS = Choice(
    {
        0: "no fusion, one library kernel per node",
        1: "basic fusion of neighbouring operators",
        2: "also common subexpressions and simplified arithmetic",
        3: "also parallel and stitched kernels; may be unstable",
    }
)
BITS = {"avx2": 256, "avx512": 512, "neon": 128, "sve256": 256}
FEATURES = Choice({name: f"vectors of {bits} bits on {'x86' if 'avx' in name else 'ARM'}" for name, bits in BITS.items()})
SHARE = Choice({0: "only kernels of element-wise operators", 1: "also those with reductions"})

NONE = "no counterpart in inductor"
PLAIN = reason(NONE, "set opt_level=1, which simplifies nothing")
OTHERS = reason(NONE, "set fusion_switch_file, which switches patterns")
NO_TARGET = "the code is compiled for the machine that runs it"
NEVER = {False: "inductor never does it"}
WIDE = "fused kernels compute 16-bit types in float32"
BATCHES = {name: {"min_fuse_set_size": 2} for name in ("batch_linear", "batch_linear_lhs")}


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Flag(Option):
    """One flag: an option with what it means to inductor."""

    settings: Mapping[str, Mapping[Any, Any] | Callable[[Any], Any]] = field(default_factory=dict)
    """Setting of inductor → its value by that of the flag. Other values of the flag leave the setting alone."""
    why_not: str = ""  # why it has no effect, on any device
    refused: Mapping[Any, str] = field(default_factory=dict)  # values without a counterpart, each with the reason
    holds: Mapping[Any, str] = field(
        default_factory=dict
    )  # values that describe what is so anyway; in lower case, with _ for -
    example: Any = True
    source: str = FLAGS_SOURCE

    @property
    def word(self) -> str:
        """Its name without the two dashes."""
        return self.name.removeprefix(f"{GROUP}.")


def _flag(word: str, kind: Kind, **more: Any) -> Flag:
    return Flag(f"{GROUP}.{word}", kind, **more)


def _refused(
    word: str, kind: Kind, help: str, example: Any, why: str = NONE, holds: Mapping[Any, str] = MappingProxyType({})
) -> Flag:
    return _flag(word, kind, help=help, example=example, why_not=why, holds=holds)


# fmt: off
FLAGS = (
    _flag("opt_level", LEVELS, example=3, default=2, source="mindspore.set_context",
        help="How far operators of compiled graphs are fused; it wins over enable_graph_kernel, also to switch fusion on. "
             "Unset, fusion is at 2 where enable_graph_kernel is true.",
        settings={
            "pattern_matcher": {1: False}, "joint_graph_constant_folding": {1: False}, "disabled_passes": {1: "remove_noop_ops"},
            "functorch.cse": {1: False},
            "combo_kernels": {3: True}, "aggressive_fusion": {3: True}, "score_fusion_memory_threshold": {3: 0},
            "benchmark_fusion": {3: True}, "pre_grad_fusion_options": {3: BATCHES},
        }),
    _flag(DUMP, Bool, default=False, source="mindspore.set_context",
        help="Writes each graph before and after the passes, and its kernels before and after fusion, as text into the folder "
             f"{DUMPS}; without fusion there is nothing to write.",
        settings={
            "trace.enabled": {True: True}, "trace.debug_dir": {True: DUMPS}, "fx_graph_cache": {True: False},
            "functorch.enable_autograd_cache": {True: False},
        }),
    _flag("enable_parallel_fusion", Bool,
        help="Whether kernels that share no data become one: combined kernels on a GPU, loops in one parallel region on a CPU.",
        settings={"combo_kernels": bool, "aggressive_fusion": bool, "score_fusion_memory_threshold": {True: 0, False: 10}}),
    _flag("enable_horizontal_fusion", Bool, example=False, devices=CPU,
        help="Whether operators that read the same data become one kernel.",
        settings={"cpp.max_horizontal_fusion_size": {True: 16, False: 1}}),
    _flag("parallel_ops_level", SHARE, example=0, devices=CUDA, help="Which kernels enable_parallel_fusion combines.",
        settings={"combo_kernels_pointwise_only": {0: True, 1: False}}),
    _flag("enable_parallel_op_combine", Bool, help="Whether several linear layers of one shape become one batched matmul.",
        settings={"post_grad_fusion_options": {True: {"batch_linear_post_grad": {"min_fuse_set_size": 2}}, False: {}}}),
    _flag("disable_matmul_post_fusion", Bool,
        help="Fuses no addition and no activation into a matmul; the bias of a linear layer stays in it.",
        settings={"epilogue_fusion": {True: False, False: True}, "pattern.addmm": {True: False, False: True}}),
    _flag("enable_recompute_fusion", Bool,
        help="The backward pass recomputes cheap operators, reductions included, instead of keeping their results.",
        settings={"functorch.aggressive_recomputation": {True: True}, "functorch.ban_recompute_reductions": {True: False}},
        refused={False: "inductor has no setting that keeps all results"}),
    _flag("enable_auto_tensor_inplace", Bool, example=False, settings={"inplace_buffers": bool},
        help="Whether a kernel may write its result over an input that is not read any more."),
    _flag("exact_precision_mode", Bool, settings={"emulate_precision_casts": bool},
        help="Rounds to float16 and bfloat16 inside of fused kernels wherever unfused operators would."),
    _flag("cpu_feature", FEATURES, example="avx2", devices=CPU, settings={"cpp.simdlen": BITS},
        help="The vector instructions that generated kernels use; a processor without them gets scalar code."),
    _flag("enable_vectorization", Bool, example=False, devices=CPU, settings={"cpp.simdlen": {False: 1}},
        help="Whether generated kernels use the processor's vector instructions; false wins over cpu_feature."),
    _flag("cpu_refer_thread_num", Int(1, 2**15), example=2, devices=CPU, settings={"cpp.threads": int},
        help="How many threads generated kernels use."),
    _flag("enable_debug_mode", Bool, settings={"cpp.enable_kernel_profile": bool, "comment_origin": bool},
        help="Generated kernels report themselves to the profiler by name, and their code names the operators that they come from."),
    _flag("online_tuning", Count, example=1, settings={"max_autotune": bool},
        help="Measures variants of kernels and templates while compiling (max_autotune); 0 measures nothing. On a CPU it needs "
             "frozen_variable."),
    *starmap(_refused, (
        ("enable_cluster_ops", Names, "Operators that may also be in a fused kernel.", "MatMul"),
        ("enable_cluster_ops_only", Names, "The only operators in fused kernels.", "add,mul"),
        ("disable_cluster_ops", Names, "Operators in no fused kernel.", "exp"),
        ("fusion_ops_level", Int(0, 2), "Which operators may be in a fused kernel.", 1),
        ("composite_op_limit_size", Count, "The largest number of operators in a fused kernel.", 20),
        ("reduce_fuse_depth", Count, "How many operators in a row are fused before a reduction.", 2),
        ("enable_dynamic_shape_fusion", Bool, "Whether graphs with dynamic shapes are fused.", False,
            reason(NONE, "set compile_dynamic_mode=False for code of one size"),
            {True: "graphs with dynamic shapes are fused like others"}),
        ("enable_expand_ops", Names, "Operators that are also decomposed into simpler ones.", "native_dropout"),
        ("enable_expand_ops_only", Names, "The only operators that are decomposed.", "gelu"),
        ("disable_expand_ops", Names, "Operators that are not decomposed.", "gelu"),
        ("enable_simplify_exprs_only", Names, "The only simplifications.", "cse", PLAIN),
        ("disable_simplify_exprs", Names, "Simplifications that are off.", "cse", PLAIN),
        ("enable_pass", Names, "Passes that are also on.", "batch_linear", OTHERS),
        ("disable_pass", Names, "Passes that are off.", "reorder_for_locality", OTHERS),
        ("enable_fusion_pattern_only", Names, "The only patterns that are replaced.", "addmm", OTHERS),
        ("disable_fusion_pattern", Names, "Patterns that are not replaced.", "addmm", OTHERS),
        ("enable_stitch_fusion", Bool, "Fuses reductions with what follows them through shared memory.", True),
        ("recompute_peak_threshold", Count, "The least bytes kept for the backward pass that it recomputes.", 2**20),
        ("recompute_increment_threshold", Count, "The least bytes that recomputing must save.", 2**16),
        ("enable_low_precision", Bool, "Computes in lower precision inside of fused kernels.", True,
            f"precision_mode sets the dtypes, and {WIDE}", {False: "precision_mode sets the dtypes"}),
        ("cpu_arch", Text, "The architecture that code is made for.", "X86_64", NO_TARGET,
            {machine().lower(): NO_TARGET}),
        ("cpu_type", Text, "The processor that code is made for.", "skylake-avx512", NO_TARGET),
        ("target_os", Text, "The system that code is made for.", "linux", NO_TARGET, {sys.platform: NO_TARGET}),
        ("repository_path", Text, "A file of kernels that AKG has tuned.", "kernels.json",
            reason(NONE, "set tuning_file, which keeps what is tuned here")),
        ("kernel_generator", Text, "What generates kernels: AKG, AKG_MLIR or DVM.", "AKG", "inductor generates all kernels"),
        ("enable_dynamic_batch", Bool, "Compiles for any size of the batch.", True,
            "compile_dynamic_mode, input_shape and dynamic_dims decide which sizes are dynamic"),
        ("enable_csr_fusion", Bool, "Fuses operators on CSR matrices.", True, NONE, NEVER),
        ("enable_lite_conv_tuning", Bool, "Tunes convolutions of MindSpore Lite.", True,
            reason("it belongs to MindSpore Lite", "set conv_fprop_algo=performance, which measures convolutions"), NEVER),
        ("enable_allreduce_prologue_fusion", Bool, "Fuses operators into the collective after them.", True, NONE, NEVER),
        ("enable_allreduce_epilogue_fusion", Bool, "Fuses operators into the collective before them.", True, NONE, NEVER),
        ("enable_cce_lib", Bool, "Runs operators of CANN's CCE library.", True, NONE, NEVER),
        ("enable_cce_lib_ops", Names, "Operators that also run from the CCE library.", "MatMul"),
        ("enable_cce_lib_ops_only", Names, "The only operators of the CCE library.", "MatMul"),
        ("disable_cce_lib_ops", Names, "Operators not from the CCE library.", "MatMul"),
        ("enable_packet_ops_only", Names, "The only operators on shapes that are packed.", "Reshape"),
        ("disable_packet_ops", Names, "Operators on shapes that are not packed.", "Reshape"),
    )),
)
# fmt: on


def settings_of(flags: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that the values of flags mean; where two flags have one setting, the later row wins."""
    found: dict[str, Any] = {}
    for flag in FLAGS:
        for name, values in flag.settings.items() if flag.word in flags else ():
            value = flags[flag.word]
            if callable(values):
                found[name] = values(value)
            elif value in values:
                found[name] = values[value]
    return found
