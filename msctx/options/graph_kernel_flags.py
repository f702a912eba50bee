"""The flags of graph_kernel_flags: MindSpore's 51, each with what it does here, or why nothing does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from msctx.options.kinds import Bool, Choice, Int, Text, TextList
from msctx.options.option import DEVICES, FLAGS_SOURCE, UNSET, Option

GROUP = "graph_kernel_flags"

Operators = TextList("names of operators separated by commas: PyTorch's (add, mm) or CANN's (Add, MatMul)")
Names = TextList("names separated by commas; docs/graph_kernel_flags.md lists them")
Count = Int(0, 2**31 - 1)
CPU = ("cpu",)

LEVELS = Choice(
    {
        0: "no fusion, one library kernel per node",
        1: "basic fusion of neighbouring operators",
        2: "also common subexpressions and simplified arithmetic",
        3: "also parallel and stitched kernels; may be unstable",
    }
)
PARTS = Choice(
    {0: "operators on single elements", 1: "also sums and other reductions", 2: "every operator that inductor has code for"}
)
FEATURES = Choice(
    {
        "avx2": "vectors of 256 bits on x86",
        "avx512": "vectors of 512 bits on x86",
        "neon": "vectors of 128 bits on ARM",
        "sve256": "vectors of 256 bits on ARM",
    }
)
SHARE = Choice({0: "kernels of element-wise operators alone", 1: "also those with reductions"})

SIMPLIFY = (
    "the simplifications are cse, remove_noop_ops, constant_fold_uniform_value, and inductor's patterns such as pointless_view"
)
NO_CCE = "CANN's library of CCE operators is not part of PyTorch"
NO_PACKETS = "arithmetic on shapes is no operator in torch's graphs: inductor computes it in the wrapper of its kernels"
NO_TARGET = "the code is compiled for the machine that runs it"
NO_COMM = "inductor fuses no operator with a collective; options of several devices decide how those overlap"


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag.

    Attributes:
        name: without the two dashes.
        type: the annotation that validates its value.
        help: what it does here; what it would do, for one without an effect.
        why_not: why it has no effect, on any device.
        example: a value.
        devices: where it has an effect.
    """

    name: str
    type: Any
    help: str
    why_not: str = ""
    example: Any = True
    devices: tuple[str, ...] = DEVICES
    default: Any = UNSET

    def option(self) -> Option:
        return Option(
            f"{GROUP}.{self.name}",
            self.type,
            help=self.help,
            example=self.example,
            default=self.default,
            devices=self.devices,
            source="mindspore.set_context" if self.name in CATALOGUED else FLAGS_SOURCE,
        )


CATALOGUED = ("opt_level", "dump_as_text")
"""Those that are rows of the catalogue, too."""

# fmt: off
FLAGS = (
    Flag("opt_level", LEVELS, example=3, default=2,
        help="How far operators of compiled graphs are fused; it wins over enable_graph_kernel, also to switch fusion on. "
             "Unset, fusion is at 2 where enable_graph_kernel is true."),
    Flag("dump_as_text", Bool, default=False,
        help="Writes what each pass of the fusion did as text into the folder graph_kernel_dump; without fusion there is "
             "nothing to write."),
    # what may be in one kernel
    Flag("enable_cluster_ops", Operators, example="MatMul",
        help="Operators that may be in a fused group beside those that may anyway."),
    Flag("enable_cluster_ops_only", Operators, example="add,mul",
        help="The only operators that may be in a fused group; all others run as library kernels."),
    Flag("disable_cluster_ops", Operators, example="exp",
        help="Operators that are in no fused group: each runs as a library kernel."),
    Flag("fusion_ops_level", PARTS, example=1,
        help="Which operators may be in a fused group: 0 those on single elements, 1 reductions too, 2 all."),
    Flag("composite_op_limit_size", Count, example=20,
        help="The largest number of operators in one fused group; larger groups are divided. 0 means any number."),
    Flag("reduce_fuse_depth", Count, example=2,
        help="How many operators in a row are fused before a reduction; what comes earlier is another group."),
    Flag("enable_dynamic_shape_fusion", Bool, example=False,
        help="Whether graphs with dynamic shapes are fused; false runs them one library kernel per node."),
    Flag("disable_matmul_post_fusion", Bool,
        help="Adds no bias and fuses no activation into a matrix product: inductor's epilogues and its addmm pattern are off."),
    # what is decomposed
    Flag("enable_expand_ops", Operators, example="native_dropout",
        help="Operators that are decomposed into simpler ones beside those that inductor decomposes."),
    Flag("enable_expand_ops_only", Operators, example="gelu",
        help="The only operators that are decomposed into simpler ones."),
    Flag("disable_expand_ops", Operators, example="gelu",
        help="Operators that are not decomposed into simpler ones."),
    # passes
    Flag("enable_simplify_exprs_only", Names, example="cse",
        help=f"The only simplifications that are applied; {SIMPLIFY}."),
    Flag("disable_simplify_exprs", Names, example="cse",
        help=f"Simplifications that are not applied; {SIMPLIFY}."),
    Flag("enable_pass", Names, example="batch_linear",
        help="Passes that are on beside those that are on anyway."),
    Flag("disable_pass", Names, example="reorder_for_locality",
        help="Passes that are off."),
    Flag("enable_fusion_pattern_only", Names, example="addmm",
        help="The only patterns of inductor's pattern matcher that are replaced."),
    Flag("disable_fusion_pattern", Names, example="addmm",
        help="Patterns of inductor's pattern matcher that are not replaced."),
    # kernels side by side
    Flag("enable_parallel_fusion", Bool,
        help="Whether kernels that share no data become one: combined kernels on a GPU, loops in one parallel region on a CPU."),
    Flag("enable_horizontal_fusion", Bool, example=False, devices=CPU,
        help="Whether operators that read the same data become one kernel."),
    Flag("parallel_ops_level", SHARE, example=0, devices=("cuda",),
        help="Which kernels enable_parallel_fusion combines."),
    Flag("enable_parallel_op_combine", Bool,
        help="Whether several linear layers of one shape become one batched product."),
    Flag("enable_stitch_fusion", Bool,
        help="Fuses reductions with what follows them through memory that a block shares.",
        why_not="inductor stitches kernels wherever they have an outer loop in common, and has no switch for it"),
    # memory
    Flag("enable_recompute_fusion", Bool, example=False,
        help="Whether the backward pass computes cheap operators again, reductions included, instead of keeping their results; "
             "false keeps all results."),
    Flag("recompute_peak_threshold", Count, example=2**20,
        help="Computes again only where the results that the backward pass would keep have more bytes than this."),
    Flag("recompute_increment_threshold", Count, example=2**16,
        help="Computes again only where that saves more bytes than this."),
    Flag("enable_auto_tensor_inplace", Bool, example=False,
        help="Whether a kernel may write its result over an input that nobody reads any more."),
    # numerics
    Flag("exact_precision_mode", Bool,
        help="Rounds to float16 and bfloat16 inside of fused kernels wherever unfused operators would."),
    Flag("enable_low_precision", Bool,
        help="Computes in lower precision inside of fused kernels.",
        why_not="precision_mode sets the dtypes, and fused kernels compute 16-bit types in float32"),
    # the CPU
    Flag("enable_vectorization", Bool, example=False, devices=CPU,
        help="Whether generated kernels use the processor's vector instructions."),
    Flag("cpu_feature", FEATURES, example="avx2", devices=CPU,
        help="The vector instructions that generated kernels use; a processor without them gets scalar code."),
    Flag("cpu_refer_thread_num", Int(1, 2**15), example=2, devices=CPU,
        help="How many threads generated kernels use."),
    Flag("cpu_arch", Text, example="X86_64", help="The architecture that code is made for.", why_not=NO_TARGET),
    Flag("cpu_type", Text, example="skylake-avx512", help="The processor that code is made for.", why_not=NO_TARGET),
    Flag("target_os", Text, example="linux", help="The system that code is made for.", why_not=NO_TARGET),
    # tools
    Flag("enable_debug_mode", Bool,
        help="Generated kernels report themselves to the profiler by name, and their code names the operators that they come from."),
    Flag("online_tuning", Count, example=1,
        help="Measures variants of kernels and templates while compiling (max_autotune); 0 measures nothing. On a CPU it needs "
             "frozen_variable."),
    Flag("repository_path", Text, example="kernels.json", help="A file of kernels that AKG has tuned.",
        why_not="it is a file of AKG's own; tuning_file and work_path keep what is tuned here"),
    Flag("kernel_generator", Text, example="AKG", help="What generates kernels: AKG, AKG_MLIR or DVM.",
        why_not="inductor generates all kernels"),
    Flag("enable_dynamic_batch", Bool, help="Compiles for any size of the batch.",
        why_not="compile_dynamic_mode, input_shape and dynamic_dims decide which sizes are dynamic"),
    Flag("enable_csr_fusion", Bool, help="Fuses operators on CSR matrices.",
        why_not="inductor generates no code for sparse matrices"),
    Flag("enable_lite_conv_tuning", Bool, help="Tunes convolutions of MindSpore Lite.",
        why_not="it belongs to MindSpore Lite; conv_fprop_algo=performance measures convolutions"),
    Flag("enable_allreduce_prologue_fusion", Bool, help="Fuses operators into the collective after them.", why_not=NO_COMM),
    Flag("enable_allreduce_epilogue_fusion", Bool, help="Fuses operators into the collective before them.", why_not=NO_COMM),
    Flag("enable_cce_lib", Bool, help="Runs operators of the CCE library.", why_not=NO_CCE),
    Flag("enable_cce_lib_ops", Operators, example="MatMul", help="Operators that also run from the CCE library.", why_not=NO_CCE),
    Flag("enable_cce_lib_ops_only", Operators, example="MatMul", help="The only operators of the CCE library.", why_not=NO_CCE),
    Flag("disable_cce_lib_ops", Operators, example="MatMul", help="Operators not from the CCE library.", why_not=NO_CCE),
    Flag("enable_packet_ops_only", Operators, example="Reshape", help="The only operators on shapes that are packed.",
        why_not=NO_PACKETS),
    Flag("disable_packet_ops", Operators, example="Reshape", help="Operators on shapes that are not packed.",
        why_not=NO_PACKETS),
)
# fmt: on

OPTIONS = tuple(flag.option() for flag in FLAGS)
WHY_NOT = {f"{GROUP}.{flag.name}": flag.why_not for flag in FLAGS if flag.why_not}
