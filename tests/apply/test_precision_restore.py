"""The precision switches are restored exactly from any state that programs bring about with torch's APIs, old and new."""

import pytest
import torch

from msctx.context import ledger

TF32 = ("torch.cudnn.allow_tf32", "torch.cuda.matmul.allow_tf32")


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
honest = told or "does not reach cuDNN" in row.reason
assert follows_generic() or honest, "torch.backends.fp32_precision no longer reaches cuDNN, and nobody said so"
"""
    if passes(PRISTINE + code) == "set from the start\n":
        pytest.skip("this torch has cuDNN's nodes set from the start, and can set them to that again")
