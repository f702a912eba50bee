"""The operators that policies govern: real ones, each of one class, by names of PyTorch's and CANN's."""

from __future__ import annotations

import pytest
import torch

from msctx.options.kinds import check
from msctx.options.precision_policy import ALIASES, CANN, CLASS_OF, Operators, resolve


def functional(name):
    space, _, plain = name.rpartition("::")
    operator = getattr(getattr(torch.ops, space or "aten"), plain)
    for overload in operator.overloads():
        schema = getattr(operator, overload)._schema
        writes = any(a.alias_info and a.alias_info.is_write for a in schema.arguments)
        if not writes and schema.returns:
            return True
    return False


GONE = {"cholesky", "qr"}  # from torch 2.14 on
NEW = {"linalg_matrix_sqrth"}  # there


def test_operators_exist():
    is_new_torch = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 14)
    missing = GONE if is_new_torch else NEW
    assert [name for name in missing if hasattr(torch.ops.aten, name)] == []
    assert [name for name in CLASS_OF if name not in missing and not functional(name)] == []


def test_names_of_cann_and_aliases_mean_operators():
    for name, ops in CANN.items():
        assert set(ops) <= set(CLASS_OF), name
    for name, op in ALIASES.items():
        assert op in CLASS_OF
        assert functional(name)


def test_what_torch_casts_in_its_builds_for_gpus_alone_is_governed():
    """There, recurrent networks would be cast to float16 by torch's own kernel under any policy."""
    assert {"_cudnn_rnn", "miopen_rnn", "_thnn_fused_lstm_cell", "_thnn_fused_gru_cell"} <= set(CLASS_OF)


def test_all_that_torch_itself_casts_is_governed(passes):
    """Else torch's own casts would be made under a policy that says otherwise; asked where msctx has registered nothing."""
    passes("""
    import torch
    from msctx.options.precision_policy import CLASS_OF
    names = [n for n in torch._C._dispatch_get_all_op_names() if n.startswith("aten::")]
    for key in ("AutocastCPU", "AutocastCUDA"):
        cast = [n for n in names if torch._C._dispatch_has_kernel_for_dispatch_key(n, key)]
        assert len(cast) > 50
        assert [n for n in cast if n[6:].partition(".")[0] not in CLASS_OF] == []
    """)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("mm", ("mm",)),
        ("aten::mm", ("mm",)),
        ("sum.dim_IntList", ("sum",)),
        ("divide", ("div",)),
        ("SoftmaxV2", ("softmax", "_softmax", "_safe_softmax")),
        ("LRN", ()),
        ("Softmax99", None),
    ],
)
def test_resolve(given, found):
    assert resolve(given) == found


def test_unknown_operator_is_an_error_with_the_nearest_ones():
    (problem,) = check(Operators, "Sofmax")[1]
    assert "no operator that policies govern" in problem.text
    assert "softmax" in problem.suggestion
    assert check(Operators, ["mm", " conv2d"]) == check(Operators, "mm, conv2d") == ("mm,conv2d", [])
    assert check(Operators, "mm,nothing_like_it")[1]
