"""thread_invariant and batch_invariant: bits that depend neither on the number of threads nor on what else is in a batch."""

from typing import Any

from msctx.effects.algorithms import carried_out
from msctx.effects.base import NOTHING_ASKED, STAYS, Outcome, Want, approximated, effect, not_built, refused

MKL = {"torch.mkl.cbwr": "AUTO,STRICT"}
"""MKL's strict mode: products of matrices keep their bits; those of a matrix and a vector do not."""
NEITHER = "matrix-vector products (mv), attention kernels, sums, normalisations"


@effect("thread_invariant")
def thread_invariant(want: Want) -> Outcome:
    return _invariant(want, f"{NEITHER} and the gradients of biases")


@effect("batch_invariant")
def batch_invariant(want: Want) -> Outcome:
    if want.device == "cuda" and want.value:
        return not_built("matrix products and convolutions of msctx's own on CUDA")
    return _invariant(want, f"{NEITHER}, products of tiny matrices (bmm), and what adds over the batch")


def _invariant(want: Want, nothing_for: str) -> Outcome:
    if not want.value:
        return NOTHING_ASKED
    if want.facts.native:
        return refused(want.facts.native)
    assignments: dict[str, Any] = carried_out(want)
    if want.facts.mkl:
        differs = (
            f"holds for convolutions; nothing is promised for matrix products, since {want.facts.mkl}; nor for {nothing_for}"
        )
        return approximated(assignments, differs)
    products = f"matrix products by MKL (mm, addmm, linear, bmm), whose mode {STAYS}"
    differs = f"holds for convolutions and {products}; nothing is promised for {nothing_for}"
    return approximated(assignments | MKL, differs)
