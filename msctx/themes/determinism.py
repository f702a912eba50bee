"""The same bits: from run to run, for any number of threads, in any batch; and the random numbers."""

from __future__ import annotations

from typing import Any

from msctx.options import Setting
from msctx.options.kinds import Bool, Int, OnOff, TextKind
from msctx.options.option import Option, extension
from msctx.options.rules import TRUE, Forbids, Needs, Rule, When, is_set
from msctx.themes.base import STAYS, On, Outcome, approximated, as_it_is, honoured, reason, refused
from msctx.themes.convolution_and_algorithm_policy import assignments_of, conv_policy

# fmt: off
OPTIONS = (
    Option("deterministic", OnOff, default="OFF", example="ON", groups=("session",), also=("set_deterministic",),
        ge="ge.deterministic", documented=("deterministic", "session.deterministic"),
        help="ON makes every operator give the same bits for the same input from run to run on the same machine, by torch's "
             "own deterministic switches and those of the device's libraries; an operator that cannot do so raises. OFF "
             "takes these switches back and promises nothing."),
    extension("seed", Int(0, 2**32 - 1), example=0,
        help="Seeds Python's random, NumPy and torch (every device) when the context is entered; workers of a torch "
             "DataLoader draw their seeds from torch's generator and so follow. The generators are left as they are at exit "
             "unless seed_scope is set."),
    extension("seed_scope", Bool, example=True,
        help="Saves the state of the generators of Python, NumPy and torch at entry and restores it at exit, so that "
             "random numbers drawn inside do not change those drawn after."),
    extension("seed_by_rank", Bool, example=True,
        help="Derives a seed for each rank: numpy.random.SeedSequence(seed, spawn_key=(rank,)). The rank is that of the process "
             "group, else the launcher's, else 0."),
    extension("deterministic_warn_only", Bool, default=False, example=True,
        help="With deterministic=ON: an operator that has no deterministic implementation warns instead of raising."),
    extension("deterministic_except", TextKind("names of operators or modules separated by blanks", separator=" "),
        example="upsample_bilinear2d decoder.*",
        help="The operators and modules that deterministic=ON leaves out, such as those that have no deterministic kernel and would "
             "raise; * matches any characters. Their backward passes are left out, too. A warning lists names that match nothing."),
    extension("fill_uninitialized_memory", Bool, example=False,
        help="With deterministic=ON torch fills new uninitialised tensors (NaN, or the largest integer), so that a program "
             "that reads them gives the same bits each time. ON implies it; false saves the fill where the program is known "
             "not to read them."),
    extension("thread_invariant", Bool, default=False, example=True, devices=("cpu",),
        help="Convolutions and matmuls give the same bits for any number of threads. Where no algorithm is requested "
             "they run msctx's own kernels; float32 and float64 matmuls run MKL's strict mode where that can "
             "be had, which must be set before MKL first computes, and stays. Nothing is promised for other operators. What "
             "runs on a GPU does not depend on the CPU's threads."),
    extension("batch_invariant", Bool, default=False, example=True, devices=("cpu", "cuda"),
        help="Convolutions and matmuls give each image, or row, the same bits whatever else is in the batch, as "
             "thread_invariant does for the number of threads, which is part of it."),
)
# fmt: on

RULES: tuple[Rule, ...] = (
    *(
        Needs(detail, (When("deterministic", ("ON",)),), "inert")
        for detail in (When("deterministic_warn_only"), When("deterministic_except"), When("fill_uninitialized_memory", TRUE))
    ),
    Needs(When("seed_by_rank", TRUE), (When("seed", test=is_set),), "inert"),
    Forbids(When("thread_invariant", (False,)), When("batch_invariant", TRUE), "inert", "batch_invariant=True includes it"),
)

CUDA_ON = {"torch.cudnn.benchmark": False, "env.CUBLAS_WORKSPACE_CONFIG": ":4096:8", "env.NCCL_ALGO": "Ring"}
NPU_ON = {"env.HCCL_DETERMINISTIC": "true", "env.TE_PARALLEL_COMPILER": "1"}
AS_EAGER = ("torch.inductor.fallback_random", "torch.inductor.emulate_precision_casts")
"""By these, compiled code draws the random numbers of eager code, and rounds to 16 bits where it does."""
NOT_FILLED = "torch_npu fills no new memory"
READ_ONCE = ("CUBLAS_WORKSPACE_CONFIG", "HCCL_DETERMINISTIC", "TE_PARALLEL_COMPILER")
MKL = {"torch.mkl.cbwr": "AUTO,STRICT"}
"""MKL's strict mode: matmuls keep their bits, and no kernels of msctx's own need run."""
GO_ON = reason("the generators continue after the block", "set seed_scope=True to restore them")
ALONE = "no process group or launcher numbers the processes: this one counts as rank 0"


def translate(on: On, setting: Setting) -> Outcome | None:
    """The outcome of one of these options."""
    name, value = setting.option.name, setting.value
    match name:
        case "deterministic":
            return _deterministic(on, value == "ON")
        case "deterministic_warn_only" | "fill_uninitialized_memory" if on.get("deterministic") != "ON":
            return as_it_is()
        case "fill_uninitialized_memory" if on.device == "ascend":
            return refused(NOT_FILLED) if value else as_it_is()
        case "deterministic_warn_only" | "fill_uninitialized_memory":
            return honoured(cause="part of deterministic=ON")
        case "deterministic_except":
            differs = "other threads are left out then, too; libraries and compiled code stay as they are"
            return on.by_core(approximated({"observers.deterministic_except": tuple(value.split())}, differs))
        case "thread_invariant" | "batch_invariant":
            return _invariant(on, is_of_batch=name == "batch_invariant") if value else as_it_is()
        case "seed":
            seed = {"rng.seed": {"seed": value, "by_rank": True} if on.get("seed_by_rank") else value}
            return honoured({"rng.saved": True} | seed) if on.get("seed_scope") else honoured(seed, GO_ON)
        case "seed_scope":
            return honoured({"rng.saved": True} if value else {})
        case "seed_by_rank":  # it is looked up when the generators are seeded: all ranks, and contexts inside, have one plan
            rank = on.facts.rank
            return honoured(cause=ALONE if rank is None else f"this is rank {rank}") if value else as_it_is()
    return None


def _deterministic(on: On, is_on: bool) -> Outcome:
    """ON is the whole recipe; OFF takes back what ON sets, and touches nothing else.

    The recipe follows torchtitan's list. ``fill_uninitialized_memory`` is part of ON: without it a program that reads
    uninitialised memory gives other bits each time. The variables make cuBLAS, NCCL and HCCL keep their summation order: NCCL's NVLS
    adds in the switches of NVLink, in an order of their own (nccl#1497); its rings are what Megatron-LM's deterministic mode takes.
    """
    if is_on and on.device == "ascend" and on.facts.cann is not None and on.facts.cann < (8, 5):
        version = ".".join(map(str, on.facts.cann))
        return refused(f"under CANN {version} torch_npu switches determinism off for each operator", "install CANN 8.5")
    torch_wide: dict[str, Any] = {
        "torch.deterministic": "warn_only" if is_on and on.get("deterministic_warn_only") else is_on,
        "torch.inductor.deterministic": is_on,
    }
    if is_on:
        torch_wide["torch.deterministic.fill_uninitialized_memory"] = on.get("fill_uninitialized_memory", True)
    if on.get("mode") == 0:
        torch_wide |= dict.fromkeys(AS_EAGER, is_on)
    torch_wide |= conv_policy(on)
    by_device: dict[str, dict[str, Any]] = {
        "cpu": {"torch.mkldnn.deterministic": is_on},
        "cuda": {"torch.cudnn.deterministic": is_on} | (CUDA_ON if is_on else {}),
        "ascend": NPU_ON if is_on else {},
    }
    variables = [name for name in READ_ONCE if f"env.{name}" in by_device[on.device]]
    once = f"what libraries read once {STAYS}: {', '.join(variables)}" if variables else ""
    if on.device == "ascend" and torch_wide.get("torch.deterministic.fill_uninitialized_memory"):
        return approximated(torch_wide | by_device[on.device], f"{NOT_FILLED}; {once}")
    return honoured(torch_wide | by_device[on.device], once)


def _invariant(on: On, *, is_of_batch: bool) -> Outcome:
    if on.device == "cuda":
        return refused("msctx has no matmuls and convolutions for CUDA")
    if on.facts.native:
        return refused(on.facts.native)
    assignments, lacking = dict[str, Any](assignments_of(on)) | {"torch.inductor.keeps_products": True}, ""
    if is_of_batch and on.get("mode") == 0:
        lacking = f"; not for other compiled code: {on.facts.inductor}" if on.facts.inductor else ""
        assignments |= {} if lacking else {"torch.inductor.batch_invariant": True}
    by_mkl = f"MKL's strict mode {STAYS}"
    how = f"msctx's kernels run: {on.facts.mkl}" if on.facts.mkl else by_mkl
    differs = f"only for convolutions, attention, LSTM and matmuls{lacking}; {how}"
    return approximated(assignments if on.facts.mkl else assignments | MKL, differs)
