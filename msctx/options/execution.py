"""The options of set_context about how programs are compiled and run: modes, fusion, caches, threads (catalogue: execution)."""

from typing import Annotated

from msctx.options.kinds import Bool, Choice, Int, OnOff, Path, TextKind
from msctx.options.option import Option

OPTIONS = (
    Option(
        name="mode",
        type=Choice(0, 1, aliases={"GRAPH_MODE": 0, "PYNATIVE_MODE": 1}),
        help="0 (GRAPH_MODE) compiles whole models with torch.compile, 1 (PYNATIVE_MODE) runs operator by operator, also where "
        "a function was wrapped for compilation before.",
        default=1,
        example="GRAPH_MODE",
    ),
    Option(
        name="enable_graph_kernel",
        type=Bool,
        help="Whether compiled graphs have their operators fused into generated kernels (inductor) or run one library kernel "
        "per node. graph_kernel_flags wins over it.",
        default=False,
        example=True,
    ),
    Option(
        name="graph_kernel_flags",
        type=Annotated[str, TextKind("flags such as --opt_level=2", comma_list=True, separator=" ", empty=True)],
        help="Fine control of operator fusion as flags in one text, separated by blanks: --opt_level=0..3 says how far fusion "
        "goes, --dump_as_text writes what the passes did. A bare flag means true; a list of flags is taken too.",
        default="",
        example="--opt_level=2 --dump_as_text",
    ),
    Option(
        name="enable_reduce_precision",
        type=Bool,
        help="What happens when an operator has no kernel for the dtype of its input: true runs it in the nearest dtype that "
        "has one and casts back, with a warning; false lets the error through.",
        default=True,
        example=False,
    ),
    Option(
        name="aoe_tune_mode",
        type=Choice("online", "offline"),
        help="Automatic tuning: online measures variants of the kernels while the program runs, offline only records graphs "
        "and shapes for tuning later. aoe_config.job_type says what is tuned.",
        example="online",
    ),
    Option(
        name="aoe_config.job_type",
        type=Choice("1", "2", aliases={1: "1", 2: "2"}),
        help='What aoe_tune_mode tunes: "1" how operators are grouped and fused, "2" the single operators (matrix products, '
        "convolutions).",
        default="2",
        example="1",
    ),
    Option(
        name="check_bprop",
        type=Bool,
        help="Checks each hand-written backward function (torch.autograd.Function): every gradient must have the shape and "
        "dtype of the input that it belongs to, else an error names the function.",
        default=False,
        example=True,
    ),
    Option(
        name="max_call_depth",
        type=Int(1, 2**31 - 1),
        help="How deep module calls may nest before a RuntimeError ends what is most likely an endless recursion; Python's own "
        "recursion limit is raised where it would be reached first.",
        default=1000,
        example=2000,
    ),
    Option(
        name="grad_for_scalar",
        type=Bool,
        help="Whether the gradient functions of msctx also differentiate with respect to arguments that are plain Python "
        "numbers; otherwise these count as constants.",
        default=False,
        example=True,
    ),
    Option(
        name="enable_compile_cache",
        type=Bool,
        help="Keeps compiled graphs on disk in compile_cache_path and loads them in the next run if the code is the same. "
        "false really switches the caches off, also those that torch keeps by itself.",
        default=False,
        example=True,
    ),
    Option(
        name="compile_cache_path",
        type=Path,
        help="The directory for the compiled graphs of enable_compile_cache; it is made when missing, and each rank of a "
        "distributed run has a folder of its own in it.",
        default=".",
        example="compile_cache",
    ),
    Option(
        name="inter_op_parallel_num",
        type=Int(0, 1024),
        help="How many independent operators may run side by side: the size of torch's inter-op thread pool, which can be set "
        "once and only before its first use. 0 leaves the choice to torch.",
        default=0,
        example=4,
    ),
    Option(
        name="runtime_num_threads",
        type=Int(0, 1024),
        help="How many threads one CPU operator may use (torch.set_num_threads). 0 leaves torch's number; with a GPU or NPU as "
        "target it concerns the host's share of the work.",
        default=30,
        example=8,
    ),
    Option(
        name="disable_format_transform",
        type=Bool,
        help="true keeps convolutions in the layout NCHW; false allows models to be moved to channels_last where that is "
        "faster. It speaks of CUDA; MindSpore ignores it elsewhere.",
        default=False,
        example=True,
    ),
    Option(
        name="support_binary",
        type=Bool,
        help="Lets functions without Python source (.pyc, .so) take part in compilation; sources that are needed are kept in a "
        "preparing run. Without it, a function that cannot be read is an error.",
        default=False,
        example=True,
    ),
    Option(
        name="memory_optimize_level",
        type=Choice("O0", "O1"),
        help="What compiled graphs prefer: O0 speed, O1 a small footprint, by planning buffers into shared memory and by "
        "recomputing activations in the backward pass. Up to MindSpore 2.3 the default on Ascend was O1.",
        default="O0",
        example="O1",
    ),
    Option(
        name="memory_offload",
        type=OnOff,
        help="ON moves tensors that wait for the backward pass from the device to host memory and fetches them back in time; "
        "memory_optimize_level=O1 switches it off. Without a meaning on CPU.",
        default="OFF",
        example="ON",
    ),
    Option(
        name="jit_syntax_level",
        type=Choice(0, 1, 2, aliases={"STRICT": 0, "COMPATIBLE": 1, "LAX": 2}),
        help="How strict compilation is about Python: 0 (STRICT) makes each part that cannot be captured an error and allows "
        "export, 2 (LAX) runs such parts eagerly; 1 (COMPATIBLE) lies between and acts as LAX.",
        default=2,
        example="STRICT",
    ),
)
