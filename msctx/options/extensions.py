"""Options of our own: what people need around MindSpore's options, and MindSpore has no word for."""

from functools import partial
from typing import Annotated

from msctx.options.conv_rules import PRODUCTS, RulesKind
from msctx.options.kinds import Bool, Choice, Int, MemoryBetween, Path, Share, TextList
from msctx.options.option import Option

extension = partial(Option, source="msctx")
"""An option of our own."""

# fmt: off
OPTIONS = (
    extension("seed", Int(0, 2**32 - 1), example=0,
        help="Seeds Python's random, NumPy and torch (every device) when the context is entered; workers of a torch "
             "DataLoader draw their seeds from torch's generator and so follow. The generators are left as they are at exit "
             "unless seed_scope is set."),
    extension("seed_scope", Bool, example=True,
        help="Saves the state of the generators of Python, NumPy and torch at entry and puts it back at exit, so that "
             "random numbers drawn inside do not change those drawn after."),
    extension("seed_by_rank", Bool, example=True,
        help="Derives a seed for each rank: numpy.random.SeedSequence(seed, spawn_key=(rank,)). The rank is that of the process "
             "group, else the launcher's, else 0."),
    extension("default_device", Bool, example=True,
        help="Makes tensors that name no device be created on the context's device (device_target, device_id). Off unless "
             "asked for: torch does it with a Python mode that costs some microseconds per call."),
    extension("deterministic_warn_only", Bool, example=True,
        help="With deterministic=ON: an operator that has no deterministic implementation warns instead of raising."),
    extension("deterministic_except", TextList("names of operators or modules separated by blanks", separator=" "),
        example="upsample_bilinear2d decoder.*",
        help="The operators and modules that deterministic=ON leaves out, such as those that have no deterministic kernel and would "
             "raise; * matches any characters. Their backward passes are left out, too. A warning lists names that match nothing."),
    extension("fill_uninitialized_memory", Bool, example=False,
        help="With deterministic=ON torch fills new uninitialised tensors (NaN, or the largest integer), so that a program "
             "that reads them gives the same bits each time. ON implies it; false saves the fill where the program is known "
             "not to read them."),
    extension("thread_invariant", Bool, example=True, devices=("cpu",),
        help="Convolutions and matrix products give the same bits for any number of threads. Where no algorithm is asked for "
             "they run msctx's own kernels; float32 and float64 products of matrices run MKL's strict mode where that can "
             "be had, which must be set before MKL first computes, and stays. Nothing is promised for other operators. What "
             "runs on a GPU does not depend on the CPU's threads."),
    extension("batch_invariant", Bool, example=True, devices=("cpu", "cuda"),
        help="Convolutions and matrix products give each image, or row, the same bits whatever else is in the batch, as "
             "thread_invariant does for the number of threads, which is part of it."),
    extension("flush_denormal", Bool, example=True, devices=("cpu",),
        help="Takes numbers below the smallest normal one (1.2e-38 in float32) for zero, as torch.set_flush_denormal does, "
             "in all of the CPU's operators: results so small become 0, and Python's own floats follow; what computes with "
             "many of them is several times faster. On a GPU each kernel was compiled one way or the other."),
    extension("check_bprop_values", Bool, example=True,
        help="With check_bprop=True: the gradients of each hand-written backward function are also compared with differences of its "
             "forward by torch.autograd.gradcheck, in float64 and along a random direction, when it is called; a difference is an "
             "error. The functions must be smooth; those that cannot compute in float64 are left out with a warning."),
    extension("fallback", Choice({
            "warn": "torch's own path runs, with one warning for each problem",
            "error": "the call raises, with every candidate and all of its reasons",
            "silent": "torch's own path runs; only choices() shows it",
        }), example="error",
        help="What happens when a convolution or product cannot run the algorithm that was named for it. Unset it is warn, and error "
             "under strict. strict applies to options, this to single calls."),
    extension("allow_fp32_emulation", Bool, example=False,
        help="Whether msctx's own kernels may compute float32 products from parts of the values on a matrix unit (AMX, or an NPU's), "
             "with sums in float32 and errors like those of float32's own (choices() has each one's bound); values that the "
             "parts cannot carry (Inf, NaN) are computed in float32. Unset they may; false asks for products in float32 "
             "alone, even where conv_allow_tf32 or matmul_allow_tf32 is set, on CUDA too."),
    extension("frozen_weights", Bool, example=True, devices=("cpu", "cuda"),
        help="Declares that weights do not change while the context is open. What algorithms make of a weight of a convolution "
             "(a Winograd transform, for instance) is kept between calls; each call compares all bytes of the weight "
             "with those that it was made of, unless this is set: then only the first call inside does, and a weight that "
             "changes later may go on as it was. Weights are tensors that record gradients and those of models given to "
             "ctx.watch(); what is computed from them is compared each time. "
             "Under a precision_mode the casts of what is given as weight or bias are kept, too. For inference."),
    extension("conv_max_error", Share, example=1e-6, devices=("cpu", "cuda"),
        help="The largest bound of an error, as a share of the largest result, that an algorithm may have for normal, "
             "performance, thread_invariant and batch_invariant to choose it; choices() shows each one's bound. Without it "
             "that is 3e-5, and no bound holds for the products that conv_allow_tf32 allows. An algorithm that is named runs "
             "whatever its bound. Where no bound is low enough under thread_invariant, torch's own path runs, and fallback "
             "reports it. Bounds hold for any data (those of winograd and fft as far as a search found); where results cancel, "
             "as shares of the largest sum of the products' magnitudes. float16 and bfloat16 round more by themselves: it does not "
             "apply to them."),
    extension("conv_workspace_limit",
        MemoryBetween('a size such as "256MB" or "1GB" (MB = 2**20 bytes), or a number of bytes; 0 allows no workspace', 0),
        example="256MB", devices=("cpu", "cuda"),
        help="The most memory that an algorithm may take for one convolution beside its tensors. One that needs more does "
             "not run: choices() shows what it would have needed."),
    extension("conv_algo_rules", Annotated[str, RulesKind()],
        example={"layer1.*": "winograd", "weight=64x3x7x7": {"fprop": "gemm"}}, devices=("cpu", "cuda"),
        help="Algorithms for single convolutions, by module path or by problem; a rule wins over conv_fprop_algo and its "
             "like. The first rule that matches decides. Module paths are known for models given to ctx.watch(model); the "
             "fields of a problem are those that choices() shows."),
    extension("matmul_algo_rules", Annotated[str, RulesKind(PRODUCTS)],
        example={"encoder.*": "bf16x6", "input=*x4096": "strict"}, devices=("cpu", "ascend"),
        help="matmul_algo for single products, by module path or by problem; a rule wins over matmul_algo. The first rule that "
             "matches decides. Module paths are known for the weights of models given to ctx.watch(model); the fields of a "
             "problem are those that choices() shows."),
    extension("matmul_max_error", Share, example=1e-6, devices=("cpu", "cuda"),
        help="As conv_max_error, for matrix products, and matmul_allow_tf32. torch's own products have no stated bound: "
             "under thread_invariant and batch_invariant msctx's own kernel runs then."),
    extension("tuning_file", Path, example="tuning.json", devices=("cpu", "cuda"), is_output=True,
        help="The file in which performance finds what was measured before, and keeps what it measures, in place of the one "
             "in the cache: to be committed beside an experiment, so that the next run makes the same choices and measures "
             "nothing. It need not be there yet, nor its folder. A relative path in a YAML file is meant from the folder of "
             "that file."),
    extension("dump_format", Choice({
            "mindspore": "MindSpore's Dump: rank_0/Net/0/STEP/TYPE.NAME….npy and statistic.csv",
            "msprobe": "msProbe's: stepN/rankR/dump.json, construct.json, stack.json and dump_tensor_data/*.pt",
        }), default="mindspore", example="msprobe",
        help="The layout of the files of session.enable_dump and dump_config, for the tools of MindSpore or msProbe."),
    extension("dump_config", Path, example="dump.json", content="DUMP_CONFIG",
        help="MindSpore's JSON file for dumps (common_dump_settings, e2e_dump_settings), instead of session.enable_dump and the "
             "options beside it: it dumps operators as tensors or statistics, looks for overflow, or saves the inputs of an operator "
             "that raises."),
    extension("replica_check", Int(0, 2**31 - 1), example=50,
        help="Compares the bits of the parameters of data-parallel models given to ctx.watch(model) between the ranks, every so many "
             "steps. The ranks gather digests, a collective. A warning names the first parameter that differs, and the ranks. 0 "
             "compares nothing."),
    extension("strict", Bool, example=True,
        help="Turns every option that would be refused or is inert (but those of a device that is not here) "
             "into an error before anything changes, and a switch that other code changed inside the scope into an error at "
             "exit. Without it each is a single warning."),
)
# fmt: on
