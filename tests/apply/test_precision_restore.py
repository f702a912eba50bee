"""The precision switches are restored exactly from any state that programs bring about with torch's APIs, old and new."""

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from context_helpers import State
from old_precision import old_flags, old_getters, precision_nodes, put_precision_back

import msctx
from msctx.context import ledger

STARTS: dict[str, Callable[[], Any]] = {
    "old: high": lambda: torch.set_float32_matmul_precision("high"),
    "old: medium": lambda: torch.set_float32_matmul_precision("medium"),
    "old: cublas on": lambda: setattr(torch.backends.cuda.matmul, "allow_tf32", True),
    "old: cudnn off": lambda: setattr(torch.backends.cudnn, "allow_tf32", False),
    "old: cudnn on": lambda: setattr(torch.backends.cudnn, "allow_tf32", True),
    "new: generic tf32": lambda: setattr(torch.backends, "fp32_precision", "tf32"),
    "new: generic ieee": lambda: setattr(torch.backends, "fp32_precision", "ieee"),
    "new: generic bf16": lambda: setattr(torch.backends.mkldnn, "fp32_precision", "bf16"),  # trap 2
    "new: cuda tf32": lambda: setattr(torch.backends.cudnn, "fp32_precision", "tf32"),
    "new: cuda ieee": lambda: setattr(torch.backends.cudnn, "fp32_precision", "ieee"),
    "new: cuda.matmul tf32": lambda: setattr(torch.backends.cuda.matmul, "fp32_precision", "tf32"),
    "new: cuda.matmul ieee": lambda: setattr(torch.backends.cuda.matmul, "fp32_precision", "ieee"),
    "new: cudnn.conv ieee": lambda: setattr(torch.backends.cudnn.conv, "fp32_precision", "ieee"),
    "new: cudnn.conv none": lambda: setattr(torch.backends.cudnn.conv, "fp32_precision", "none"),
    "new: mkldnn.matmul bf16": lambda: setattr(torch.backends.mkldnn.matmul, "fp32_precision", "bf16"),
    "new: mkldnn.matmul tf32": lambda: setattr(torch.backends.mkldnn.matmul, "fp32_precision", "tf32"),
    "old: high, new: cuda.matmul ieee": lambda: (STARTS["old: high"](), STARTS["new: cuda.matmul ieee"]()),
    "old: cublas on, new: mkldnn.matmul bf16": lambda: (STARTS["old: cublas on"](), STARTS["new: mkldnn.matmul bf16"]()),
    "old: cudnn off, new: generic tf32": lambda: (STARTS["old: cudnn off"](), STARTS["new: generic tf32"]()),
}
"""States that programs bring about with torch's public APIs, old and new."""
TF32 = ("torch.cudnn.allow_tf32", "torch.cuda.matmul.allow_tf32")


def answers() -> dict[str, bool]:
    """What of the old API answers; each twice, since torch.backends.cudnn.flags() leaves another state behind than it found."""

    def flags(**more: Any) -> None:
        with torch.backends.cudnn.flags(enabled=True, **more):
            torch.backends.cudnn.allow_tf32  # noqa: B018

    calls: dict[str, Callable[[], Any]] = {
        "cudnn.flags()": flags,
        "cudnn.flags(allow_tf32=True)": lambda: flags(allow_tf32=True),
        "cudnn.allow_tf32": lambda: torch.backends.cudnn.allow_tf32,
        "cuda.matmul.allow_tf32": lambda: torch.backends.cuda.matmul.allow_tf32,
        "get_float32_matmul_precision()": torch.get_float32_matmul_precision,
    }
    found = dict.fromkeys(calls, True)
    for name, call in [*calls.items(), *calls.items()]:
        try:
            call()
        except RuntimeError:
            found[name] = False
    return found


REQUESTED = [
    {name: value for name, value in (("conv_allow_tf32", conv), ("matmul_allow_tf32", matmul)) if value is not None}
    for conv in (None, True, False)
    for matmul in (None, True, False)
]


@pytest.mark.parametrize("start", STARTS)
def test_each_state_comes_back_and_the_old_api_answers_where_it_did(held, torch_as_found, exact_state, start):
    found = old_flags(), precision_nodes()
    for requested, seen in product(REQUESTED, (False, True)):
        STARTS[start]()
        check_answers(held, exact_state, requested, seen=seen)
        put_precision_back(*found)


def check_answers(held, exact_state: State, requested: dict[str, bool], *, seen: bool) -> None:
    """Inside a scope, and after it, beside the whole recipe of determinism; and what was asked holds, whoever used flags()."""
    before = answers() if seen else {}
    whole = exact_state(), old_getters()
    options = {"deterministic": "ON", **requested}
    recipe = msctx.explain(options, device="cuda").assignments
    recipe = {name: value for name, value in recipe.items() if not name.startswith("env.")}
    with held(recipe):
        pass
    assert (exact_state(), old_getters()) == whole
    with held(recipe):
        inside = answers()
        state = msctx.state()
    after = answers()
    lost = [name for name, answered in before.items() if answered and not (inside[name] and after[name])]
    assert not lost, (requested, seen)
    about = {
        "conv_allow_tf32": ("torch.cudnn.allow_tf32", "cudnn."),
        "matmul_allow_tf32": ("torch.cuda.matmul.allow_tf32", "matmul"),
    }
    for option, (switch, names) in about.items():
        if option in requested:
            assert state[switch] is requested[option]
            assert all(answered for name, answered in inside.items() if names in name), inside


def test_matrix_products_keep_theirs_while_a_parent_must_not_allow_convolutions(torch_as_found):
    """Whatever scope ends first: the parent's other child belongs to another switch."""
    matmul = torch.backends.cuda.matmul
    torch.backends.fp32_precision = "tf32"
    convolutions = ledger.apply({TF32[0]: False}, ledger.Hold("first"))
    assert (torch.backends.cudnn.conv.fp32_precision, matmul.fp32_precision) == ("ieee", "tf32")
    products = ledger.apply({TF32[1]: False}, ledger.Hold("second"))
    ledger.undo(convolutions)
    assert (torch.backends.cudnn.conv.fp32_precision, matmul.fp32_precision) == ("tf32", "ieee")
    ledger.undo(products)
    assert matmul.fp32_precision == "tf32"


PRISTINE = """
import warnings, torch, msctx
from msctx.context import ledger
node = torch._C._get_fp32_precision_getter
def follows_generic():
    "In a fresh process of torch 2.13 cuDNN's nodes are tf32 only until a parent says otherwise; torch cannot set them to that again."
    with torch.backends.flags(fp32_precision="ieee"):
        return (node("cuda", "conv"), node("cuda", "rnn")) == ("ieee", "ieee")
if not follows_generic():
    raise SystemExit(print("set from the start"))
"""


def test_cudnns_first_state_stays_or_is_restored_or_the_loss_is_reported(passes):
    """Exact, or reported: by a warning, or in the plan; never a silent difference."""
    code = """
msctx.state()
assert follows_generic(), "reading the state wrote a node"
ledger.undo(ledger.apply({"torch.cuda.matmul.allow_tf32": True}, ledger.Hold("one")))
assert follows_generic(), "the switch for matmul wrote cuDNN's nodes"
ledger.undo(ledger.apply({"torch.cudnn.allow_tf32": True}, ledger.Hold("one")))
assert follows_generic(), "nothing was to be written: it was True already"
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    ledger.undo(ledger.apply({"torch.cudnn.allow_tf32": False}, ledger.Hold("one")))
(row,) = msctx.explain({"gpu_config": {"conv_allow_tf32": False}}, device="cuda").rows
honest = told or "no longer reaches cuDNN" in row.reason
assert follows_generic() or honest, "torch.backends.fp32_precision no longer reaches cuDNN, and nobody said so"
"""
    if passes(PRISTINE + code) == "set from the start\n":
        pytest.skip("this torch has cuDNN's nodes set from the start, and can set them to that again")
