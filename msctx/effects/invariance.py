"""thread_invariant and batch_invariant: bits that depend neither on the number of threads nor on what else is in a batch."""

from typing import Any

from msctx.effects.algorithms import carried_out
from msctx.effects.base import NOTHING_ASKED, STAYS, Outcome, Want, approximated, effect, refused

MKL = {"torch.mkl.cbwr": "AUTO,STRICT"}
"""MKL's strict mode: products of matrices keep their bits, and no kernels of msctx's own need run."""
NEITHER = "sums (products of a vector in compiled code, too), sigmoid, SiLU and GELU, normalisations"


@effect("thread_invariant")
def thread_invariant(want: Want) -> Outcome:
    return _invariant(want, f"{NEITHER} and the gradients of biases")


@effect("batch_invariant")
def batch_invariant(want: Want) -> Outcome:
    if want.device == "cuda" and want.value:
        return refused("msctx has no matrix products and convolutions for CUDA")
    return _invariant(want, f"{NEITHER} and what adds over the batch")


def _invariant(want: Want, nothing_for: str) -> Outcome:
    if not want.value:
        return NOTHING_ASKED
    if want.facts.native:
        return refused(want.facts.native)
    assignments, lacking = dict[str, Any](carried_out(want)), ""
    if want.option.name == "batch_invariant" and want.other("mode") == 0:
        lacking = f"; nor for other compiled code, since {want.facts.inductor}" if want.facts.inductor else ""
        assignments |= {} if lacking else {"torch.inductor.batch_invariant": True}
    by_mkl = f"those of float32 and float64 run in MKL's strict mode, which {STAYS}"
    how = f"products run msctx's own kernels, since {want.facts.mkl}" if want.facts.mkl else by_mkl
    what = "convolutions, attention, LSTM and matrix products"
    differs = f"holds for {what}; {how}; nothing is promised for {nothing_for}{lacking}"
    return approximated(assignments if want.facts.mkl else assignments | MKL, differs)
