"""The keys of ascend_config: precision, operator compilation, dumps and raw CANN options (catalogue: ascend)."""

from functools import partial
from typing import Annotated

from msctx.options.kinds import AnyText, Bool, Choice, Flag, Int, Path, Text, TextKind
from msctx.options.option import Option

SOURCE = "mindspore.set_context(ascend_config)"
SPEED_UP = "parallel_speed_up_json_path"


def renamed(name: str) -> tuple[str, ...]:
    """Where later releases of MindSpore have a key of parallel_speed_up_json_path."""
    return (f"{SPEED_UP}.{name}", f"ascend_config.{SPEED_UP}.{name}")


ascend_option = partial(Option, groups=("ascend_config",), source=SOURCE)
"""An option of ascend_config alone."""

# fmt: off
OPTIONS = (
    Option("precision_mode", Choice({
            "force_fp16": "float16 for every operator that can; for inference",
            "force_fp32": "float32 for every operator; what matrix operators are given in float16 gives float32",
            "cube_fp16in_fp32out": "matrix operators read float16, also of float32, and give float32; all else as force_fp32",
            "allow_fp32_to_fp16": "matrix operators in float16, others only where float32 has no kernel",
            "allow_fp32_to_bf16": "matrix operators in bfloat16, others only where float32 has no kernel",
            "allow_mix_precision": "autocast to float16, by lists of operators",
            "allow_mix_precision_fp16": "autocast to float16, by lists of operators; the clearer name",
            "allow_mix_precision_bf16": "autocast to bfloat16, by lists of operators",
            "must_keep_origin_dtype": "no casts at all, also none of an enclosing autocast",
        }, hints={
            "bf16": "allow_mix_precision_bf16", "bfloat16": "allow_mix_precision_bf16", "amp": "allow_mix_precision_bf16",
            "fp16": "allow_mix_precision_fp16", "float16": "allow_mix_precision_fp16", "half": "allow_mix_precision_fp16",
            "fp32": "force_fp32", "float32": "force_fp32",
        }), example="allow_mix_precision_bf16", groups=("ascend_config", "session"),
        also=("device_context.ascend.op_precision.precision_mode",), ge="ge.exec.precision_mode", source=SOURCE,
        help="In which dtype the operators of a whole program compute. It excludes precision_mode_v2. CANN's own choice, "
             "where nobody makes one, depends on the chip and on whether it trains or infers. The words are MindSpore's; "
             "spelled session.precision_mode, or in ge_options, force_fp32 is cube_fp16in_fp32out, and allow_fp32_to_bf16 "
             "keeps float32, as CANN's page has it."),
    Option("jit_compile", Choice({
            "auto": "compiled for static shapes, ready-made kernels for changing ones",
            "true": "kernels are compiled for the shapes at hand",
            "false": "ready-made kernels of the libraries, compiled only where none exists",
        }, {True: "true", False: "false"}), default="auto", example=False, groups=("ascend_config", "session"),
        also=("device_context.ascend.op_tuning.op_compile",), ge="ge.jit_compile", source=SOURCE,
        help="Whether kernels are compiled for the shapes at hand or taken ready-made from the libraries."),
    Option("atomic_clean_policy", Flag, default=1, example=0, defaults={"session": 0}, groups=("ascend_config", "session"),
        ge="ge.exec.atomicCleanPolicy", source=SOURCE,
        help="How the memory that accumulating operators add into is zeroed: 0 all of it together, 1 just before each "
             "operator, which needs less memory and some more time. Unset, MindSpore means 1, while a CANN session means 0."),
    ascend_option("matmul_allow_hf32", Bool, default=False, example=True,
        also=("device_context.ascend.op_precision.matmul_allow_hf32",),
        help="Whether float32 matrix products may compute in HF32, the NPU's shortened float32 (11 bits of mantissa). "
             "NVIDIA's format is another one: see matmul_allow_tf32."),
    ascend_option("conv_allow_hf32", Bool, default=True, example=False,
        also=("device_context.ascend.op_precision.conv_allow_hf32",),
        help="Whether float32 convolutions may compute in HF32, the NPU's shortened float32 (11 bits of mantissa). NVIDIA's "
             "format is another one: see conv_allow_tf32."),
    ascend_option("exception_dump", Choice({
            "0": "nothing is saved", "1": "inputs and outputs of any operator that fails",
            "2": "only the inputs, and only for operators of the compute cores",
        }, {0: "0", 1: "1", 2: "2"}), default="2", example="1",
        help="What is saved when an operator fails. Gone from MindSpore since 2.6; a session's word for it is "
             "enable_exception_dump."),
    Option("op_precision_mode", Path, example="op_precision.ini", groups=("ascend_config", "session", "atc"),
        also=("device_context.ascend.op_precision.op_precision_mode",), ge="ge.exec.op_precision_mode",
        content="OP_PRECISION_MODE", source=SOURCE,
        help="An .ini file that gives single operators, by type or by name, a mode of computing: high_precision, "
             "high_performance, support_out_of_bound_index (check the indices of gather and scatter) and others. It wins "
             "over op_select_implmode and optypelist_for_implmode."),
    ascend_option("ge_options.global", dict[Text, AnyText], example={"ge.opSelectImplmode": "high_precision"},
        help="Options of CANN's graph engine for the whole process, in its own words: ge.* keys and values as text. A key "
             "that is an option here acts as that option does and wins over it; the others are handed on to CANN. Both "
             "ge_options and the group ascend_config apply to Ascend alone."),
    ascend_option("ge_options.session", dict[Text, AnyText], example={"ge.exec.atomicCleanPolicy": "1"},
        help="Options of CANN's graph engine for one session, in its own words: ge.* keys and values as text, taken as "
             "those of ge_options.global are; here too ge_options and the group ascend_config apply to Ascend alone."),
    ascend_option("parallel_speed_up_json_path", Annotated[str, TextKind("a path, or null for none", empty=True)] | None,
        default=None, example="parallel_speed_up.json", content="SPEED_UP",
        help="A JSON file of switches that let communication between devices overlap with computation, or that bundle "
             "collectives: enable_task_opt, enable_grad_comm_opt and others. null or empty text: none."),
    ascend_option("parallel_speed_up_json_path.recompute_comm_overlap", Bool, default=False, example=True,
        also=renamed("recomputation_communication_overlap"),
        help="Lets activations that are recomputed in the backward pass be computed while communication is on its way. "
             "Without recomputation there is nothing to overlap."),
    ascend_option("parallel_speed_up_json_path.matmul_grad_comm_overlap", Bool, default=False, example=True,
        also=renamed("grad_matmul_communication_overlap"),
        help="In the backward pass of a matrix product: computes the gradient of the weight while the gradient of the input "
             "is communicated."),
    ascend_option("parallel_speed_up_json_path.enable_task_opt", Bool, default=False, example=True,
        also=renamed("enable_communication_fusion"),
        help="Bundles collectives into fewer and larger ones."),
    ascend_option("parallel_speed_up_json_path.enable_grad_comm_opt", Bool, default=False, example=True,
        also=renamed("grad_computation_allreduce_overlap"),
        help="Reduces the gradients of data-parallel training while the backward pass still computes those of earlier "
             "layers."),
    ascend_option("parallel_speed_up_json_path.enable_opt_shard_comm_opt", Bool, default=False, example=True,
        also=renamed("computation_allgather_overlap"),
        help="Gathers weights that are sharded between devices ahead of the layer that needs them, while the forward pass "
             "computes. Needs a sharded optimizer."),
    ascend_option("parallel_speed_up_json_path.enable_concat_eliminate_opt", Bool, default=False, example=True,
        help="Removes concatenations from compiled graphs that only put together again what was split before, as happens "
             "when a batch is computed in two halves."),
    ascend_option("parallel_speed_up_json_path.enable_begin_end_inline_opt", Bool, default=False, example=True,
        help="Compiles the first and the last micro-batch of a pipeline into the surrounding graph instead of into graphs "
             "of their own, so that more may overlap there. Needs pipeline parallelism."),
    ascend_option("parallel_speed_up_json_path.compute_communicate_fusion_level", Choice({
            0: "no fusion of computation with communication", 1: "in the forward pass alone", 2: "in the backward pass alone",
            3: "in both passes",
        }), default=0, example=3, devices=("cuda", "ascend"), also=renamed("computation_communication_fusion_level"),
        help="Where a matrix product and the collective before or after it become one kernel. A CPU has no such kernels."),
    ascend_option("host_scheduling_max_threshold", Int(0), default=0, example=20, ge="ge.exec.hostSchedulingMaxThreshold",
        help="Compiled graphs of static shape with fewer operators than this are launched operator by operator from the "
             "host, as graphs of changing shape are, rather than as one recorded graph; 0 means none are."),
)
# fmt: on
