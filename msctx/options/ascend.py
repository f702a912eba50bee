"""The keys of ascend_config: precision, operator compilation, dumps and raw CANN options (catalogue: ascend)."""

from typing import Annotated

from msctx.options.kinds import Bool, Choice, Flag, Int, Path, Text, TextKind
from msctx.options.option import Option

SOURCE = "mindspore.set_context(ascend_config)"

OPTIONS = (
    Option(
        name="precision_mode",
        type=Choice(
            "force_fp16",
            "force_fp32",
            "allow_fp32_to_fp16",
            "allow_fp32_to_bf16",
            "allow_mix_precision",
            "allow_mix_precision_fp16",
            "allow_mix_precision_bf16",
            "must_keep_origin_dtype",
            aliases={"cube_fp16in_fp32out": "force_fp32"},
        ),
        help="In which dtype the operators of a whole program compute: force_* for every operator that can, allow_fp32_to_* "
        "lowers the matrix operators alone, allow_mix_precision* is autocast by lists of operators, and must_keep_origin_dtype "
        "forbids casts, also those of an enclosing autocast. It excludes precision_mode_v2.",
        groups=("ascend_config", "session"),
        source=SOURCE,
        example="allow_mix_precision_bf16",
    ),
    Option(
        name="jit_compile",
        type=Choice("auto", "true", "false", aliases={True: "true", False: "false"}),
        help="Whether kernels are compiled for the shapes at hand (true), taken ready-made from the libraries (false), or "
        "compiled for static shapes and taken ready-made for changing ones (auto).",
        default="auto",
        groups=("ascend_config", "session"),
        source=SOURCE,
        example=False,
    ),
    Option(
        name="atomic_clean_policy",
        type=Flag,
        help="How the memory that accumulating operators add into is zeroed: 0 all of it together, 1 just before each "
        "operator, which needs less memory and some more time. Unset, MindSpore means 1, while a CANN session means 0.",
        default=1,
        groups=("ascend_config", "session"),
        source=SOURCE,
        example=0,
    ),
    Option(
        name="matmul_allow_hf32",
        type=Bool,
        help="Whether float32 matrix products may compute in HF32, the NPU's shortened float32 (11 bits of mantissa). NVIDIA's "
        "format is another one: see matmul_allow_tf32.",
        default=False,
        groups=("ascend_config",),
        source=SOURCE,
        example=True,
    ),
    Option(
        name="conv_allow_hf32",
        type=Bool,
        help="Whether float32 convolutions may compute in HF32, the NPU's shortened float32 (11 bits of mantissa). NVIDIA's "
        "format is another one: see conv_allow_tf32.",
        default=True,
        groups=("ascend_config",),
        source=SOURCE,
        example=False,
    ),
    Option(
        name="exception_dump",
        type=Choice("0", "1", "2", aliases={0: "0", 1: "1", 2: "2"}),
        help='What is saved when an operator fails: "0" nothing, "1" inputs and outputs of any operator, "2" the inputs of an '
        "operator of the compute library. Gone from MindSpore since 2.6; a session's word for it is enable_exception_dump.",
        default="2",
        groups=("ascend_config",),
        source=SOURCE,
        example="1",
    ),
    Option(
        name="op_precision_mode",
        type=Path,
        help="An .ini file that gives single operators, by type or by name, a mode of computing: high_precision, "
        "high_performance, support_out_of_bound_index (check the indices of gather and scatter) and others. It wins over "
        "op_select_implmode and optypelist_for_implmode.",
        groups=("ascend_config", "session", "atc"),
        source=SOURCE,
        example="op_precision.ini",
    ),
    Option(
        name="ge_options",
        type=dict[Choice("global", "session"), dict[Text, Text]],
        help="CANN's graph engine options in its own words, ge.* keys and values as text, on the levels global and session. On "
        "an NPU they are handed on; elsewhere those that have a counterpart here act as that option does. They win over the "
        "same option set in ascend_config.",
        groups=("ascend_config",),
        source=SOURCE,
        example={"global": {"ge.opSelectImplmode": "high_precision"}, "session": {"ge.exec.atomicCleanPolicy": "1"}},
    ),
    Option(
        name="parallel_speed_up_json_path",
        type=Annotated[str, TextKind("a path, or null for none", empty=True)] | None,
        help="A JSON file of switches that let communication between devices overlap with computation, or that bundle "
        "collectives: enable_task_opt, enable_grad_comm_opt and others. null or empty text: none.",
        default=None,
        groups=("ascend_config",),
        source=SOURCE,
        example="parallel_speed_up.json",
    ),
    Option(
        name="host_scheduling_max_threshold",
        type=Int(0),
        help="Compiled graphs of static shape with fewer operators than this are launched operator by operator from the host, "
        "as graphs of changing shape are, rather than as one recorded graph; 0 means none are.",
        default=0,
        groups=("ascend_config",),
        source=SOURCE,
        example=20,
    ),
)
