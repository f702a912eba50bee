"""The options of set_context about how programs are compiled and run: modes, fusion, caches, threads (catalogue: execution)."""

from typing import Annotated

from msctx.options import graph_kernel_flags
from msctx.options.kinds import Bool, Choice, Int, OnOff, Path, TextKind
from msctx.options.option import Option

# fmt: off
OPTIONS = (
    Option("mode", Choice({
            0: "whole models are compiled with torch.compile (GRAPH_MODE)",
            1: "operators run one by one, eagerly (PYNATIVE_MODE)",
        }, {"GRAPH_MODE": 0, "PYNATIVE_MODE": 1}), default=1, example="GRAPH_MODE",
        help="Whether programs are compiled or run eagerly; PYNATIVE_MODE runs eagerly also where a function was wrapped "
             "for compilation before."),
    Option("enable_graph_kernel", Bool, default=False, example=True,
        help="Whether compiled graphs have their operators fused into generated kernels (inductor) or run one library "
             "kernel per node. graph_kernel_flags wins over it."),
    Option("graph_kernel_flags",
        Annotated[str, TextKind("flags such as --opt_level=2", comma_list=True, separator=" ", empty=True)], default="",
        example="--opt_level=2 --dump_as_text", content="GRAPH_KERNEL_FLAGS",
        help="Fine control of operator fusion as flags in one text, separated by blanks: --opt_level=0..3 sets how far "
             "fusion goes, --dump_as_text writes what the passes did, --path=FILE reads flags from a JSON file. A bare flag means "
             "true; a list of flags is taken too."),
    *graph_kernel_flags.OPTIONS,
    Option("enable_reduce_precision", Bool, default=True, example=False,
        help="What happens when an operator has no kernel for the dtype of its input: true runs it in the nearest dtype "
             "that has one and casts back, with a warning; false lets the error through."),
    Option("aoe_tune_mode", Choice({
            "online": "variants of kernels are measured while the program runs",
            "offline": "nothing is measured; problems are recorded in work_path, for performance",
        }), example="online", also=("device_context.ascend.op_tuning.aoe_tune_mode",),
        help="Automatic tuning of kernels, now or later; aoe_config.job_type sets what is tuned."),
    Option("aoe_config.job_type", Choice({
            "1": "sub-graphs: how operators are grouped and fused",
            "2": "single operators, such as matrix products and convolutions",
        }, {1: "1", 2: "2"}), default="2", example="1", also=("device_context.ascend.op_tuning.aoe_job_type",),
        help="What aoe_tune_mode tunes."),
    Option("check_bprop", Bool, default=False, example=True,
        help="Checks each hand-written backward function (torch.autograd.Function, register_autograd): there must be a gradient "
             "for every input, of the input's shape and dtype, else an error names the function. Calls made inside the scope are "
             "checked, wherever their backward runs."),
    Option("max_call_depth", Int(1, 2**31 - 1), default=1000, example=2000, also=("set_recursion_limit",),
        help="How deep module calls may nest before a RuntimeError ends what is most likely an endless recursion; Python's "
             "own recursion limit is raised where it would be reached first."),
    Option("grad_for_scalar", Bool, default=False, example=True,
        help="Whether the gradient functions of msctx also differentiate with respect to arguments that are plain Python "
             "numbers; otherwise these count as constants."),
    Option("enable_compile_cache", Bool, default=False, example=True,
        help="Keeps compiled graphs on disk in compile_cache_path and loads them in the next run if the code is the same. "
             "false really switches the caches off, also those that torch keeps by itself."),
    Option("compile_cache_path", Path, default=".", example="compile_cache",
        help="The directory for the compiled graphs of enable_compile_cache; it is made when missing, and each rank of a "
             "distributed run has a folder of its own in it."),
    Option("inter_op_parallel_num", Int(0, 1024), default=0, example=4, defaults={"runtime": 5},
        also=("runtime.dispatch_threads_num",),
        help="How many independent operators may run side by side: the size of torch's inter-op thread pool, which can be "
             "set once and only before its first use. 0 leaves the choice to torch."),
    Option("runtime_num_threads", Int(0, 1024), default=30, example=8, defaults={"device_context": 25},
        also=("device_context.cpu.op_tuning.threads_num",),
        help="How many threads one CPU operator may use (torch.set_num_threads). 0 leaves torch's number; with a GPU or NPU "
             "as target it concerns the host's share of the work. MindSpore's default is 30, or the number of cores if that "
             "is less."),
    Option("disable_format_transform", Bool, default=False, example=True, devices=("cpu", "cuda"),
        help="true keeps convolutions in the layout NCHW; false allows compiled models to be moved to channels_last where "
             "that is faster (inductor's layout_optimization). MindSpore knows it for CUDA alone."),
    Option("support_binary", Bool, default=False, example=True,
        help="Lets functions without Python source (.pyc, .so) take part in compilation; sources that are needed are kept "
             "in a preparing run of MindSpore's; torch.compile reads bytecode, and needs none."),
    Option("memory_optimize_level", Choice({
            "O0": "speed first: nothing is computed twice",
            "O1": "memory first: activations are recomputed in the backward pass, allocators give back what is idle",
        }), default="O0", example="O1", also=("runtime.set_memory.optimize_level",),
        help="What is preferred, speed or a small footprint: O1 computes blocks of watched models again in the backward "
             "pass (as few as max_device_memory asks for) and lets allocators hold less. Up to MindSpore 2.3 the default on "
             "Ascend was O1."),
    Option("memory_offload", OnOff, default="OFF", example="ON",
        help="ON moves tensors that wait for the backward pass from the device to host memory and fetches them back in "
             "time; memory_optimize_level=O1 switches it off. Refused where the CPU is all there is."),
    Option("jit_syntax_level", Choice({
            0: "what cannot be captured is an error; allows export (STRICT)",
            1: "between the other two, and acts as 2 (COMPATIBLE)", 2: "what cannot be captured runs eagerly (LAX)",
        }, {"STRICT": 0, "COMPATIBLE": 1, "LAX": 2}), default=2, example="STRICT",
        help="How strict compilation is about Python code that cannot be captured in a graph."),
)
# fmt: on
