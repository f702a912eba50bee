"""deterministic: torch's full recipe for the same bits from run to run."""

from msctx.effects.algorithms import conv_policy
from msctx.effects.base import NOTHING_ASKED, STAYS, Outcome, Want, approximated, effect, honoured, inert, refused
from msctx.options.observation import DeterministicExcept

CUDA_ON = {"torch.cudnn.benchmark": False, "env.CUBLAS_WORKSPACE_CONFIG": ":4096:8", "env.NCCL_ALGO": "Ring"}
NPU_ON = {"env.HCCL_DETERMINISTIC": "true", "env.TE_PARALLEL_COMPILER": "1"}
AS_EAGER = ("torch.inductor.fallback_random", "torch.inductor.emulate_precision_casts")
"""By these, compiled code draws the random numbers of eager code, and rounds to 16 bits where it does."""
NOT_FILLED = (
    "torch_npu leaves new memory of the device as it is: what a program reads before it writes it differs from run to run"
)
READ_ONCE = ("CUBLAS_WORKSPACE_CONFIG", "HCCL_DETERMINISTIC", "TE_PARALLEL_COMPILER")


@effect("deterministic")
def deterministic(want: Want) -> Outcome:
    """ON is the whole recipe; OFF takes back what ON sets, and touches nothing else.

    The recipe follows torchtitan's list. ``fill_uninitialized_memory`` is part of ON: without it a program that reads
    uninitialised memory gives other bits each time. The variables make cuBLAS, NCCL and HCCL keep their summation order: NCCL's NVLS
    adds in the switches of NVLink, in an order of their own (nccl#1497); its rings are what Megatron-LM's deterministic mode takes.
    """
    on = want.value == "ON"
    if on and want.device == "ascend" and want.facts.cann is not None and want.facts.cann < (8, 5):
        version = ".".join(map(str, want.facts.cann))
        return refused(f"under CANN {version} torch_npu switches determinism off again for each operator; CANN 8.5 is needed")
    torch_wide = {
        "torch.deterministic": on,
        "torch.deterministic.warn_only": on and want.other("deterministic_warn_only", False),
        "torch.inductor.deterministic": on,
    }
    if on:
        torch_wide["torch.deterministic.fill_uninitialized_memory"] = want.other("fill_uninitialized_memory", True)
    if want.other("mode") == 0:
        torch_wide |= dict.fromkeys(AS_EAGER, on)
    torch_wide |= conv_policy(want)
    by_device = {
        "cpu": {"torch.mkldnn.deterministic": on},
        "cuda": {"torch.cudnn.deterministic": on} | (CUDA_ON if on else {}),
        "ascend": NPU_ON if on else {},
    }
    variables = [name for name in READ_ONCE if f"env.{name}" in by_device[want.device]]
    reason = f"{STAYS}, since libraries read it once: {', '.join(variables)}" if variables else ""
    if want.device == "ascend" and torch_wide.get("torch.deterministic.fill_uninitialized_memory"):
        return approximated(torch_wide | by_device[want.device], f"{NOT_FILLED}; {reason}")
    return honoured(torch_wide | by_device[want.device], reason)


@effect("deterministic_warn_only", "fill_uninitialized_memory")
def detail(want: Want) -> Outcome:
    if want.other("deterministic") != "ON":
        return inert("it is a detail of deterministic=ON, which is not set")
    if want.device == "ascend" and want.option.name == "fill_uninitialized_memory":
        return refused(NOT_FILLED) if want.value else NOTHING_ASKED
    return honoured(reason="part of deterministic=ON")


@effect("deterministic_except")
def deterministic_except(want: Want) -> Outcome:
    if want.other("deterministic") != "ON":
        return inert("it is a detail of deterministic=ON, which is not set")
    if want.facts.native:
        return refused(want.facts.native)
    found = DeterministicExcept(tuple(want.value.split()))
    return approximated(
        {"observers.deterministic_except": found},
        "torch's flag belongs to the process: what another thread computes at that moment is left out, too; libraries keep what "
        "deterministic=ON set for them, and compiled code what it was compiled for",
    )
