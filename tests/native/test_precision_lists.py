"""The files of precision policies at work: lists, dtypes by type and by module, accurate implementations, checked indices."""

import pytest
import torch
from recorded import Recorded
from torch import nn
from torch.nn import functional as fn

import msctx

pytestmark = pytest.mark.usefixtures("one_thread")
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


@pytest.fixture
def file(tmp_path):
    def write(text, name="list.ini"):
        path = tmp_path / name
        path.write_text(text)
        return str(path)

    return write


def test_modify_mixlist(file):
    lists = file(
        '{"black-list": {"to-add": ["MatMul"], "to-remove": ["exp"]}, "white-list": {"to-add": ["relu"]}}', "list.json"
    )
    x = torch.randn(4, 4)
    with msctx.context(precision_mode="allow_mix_precision_bf16", modify_mixlist=lists) as ctx:
        assert torch.mm(x.bfloat16(), x.bfloat16()).dtype == FP32
        assert torch.exp(x.bfloat16()).dtype == BF16
        assert torch.exp(x).dtype == FP32
        assert torch.relu(x).dtype == BF16
        assert torch.bmm(x[None], x[None]).dtype == BF16
    assert {(row.operator, row.why) for row in ctx.precisions()} == {
        ("mm", "modify_mixlist black-list.to-add MatMul"),
        ("exp", "modify_mixlist black-list.to-remove exp"),
        ("relu", "modify_mixlist white-list.to-add relu"),
        ("bmm", "precision_mode=allow_mix_precision_bf16"),
    }


@pytest.mark.parametrize("move", ["white-list.to-remove", "gray-list.to-add"])
def test_gray_operators_go_on_in_the_dtype_of_the_one_before(file, move):
    """Weights, which no operator has computed, follow; of what operators have computed the widest is taken."""
    colour, _, what = move.partition(".")
    lists = file(f'{{"{colour}": {{"{what}": ["linear", "mm", "addmm"]}}}}', "a.json")
    layer, weight, x = nn.Linear(4, 4), nn.Parameter(torch.randn(4, 4)), torch.randn(3, 4)
    black = file('{"black-list": {"to-remove": ["layer_norm"]}}', "b.json")
    for training in (True, False):
        with msctx.context(precision_mode="allow_mix_precision_bf16", modify_mixlist=lists), torch.set_grad_enabled(training):
            for dtype in (FP32, BF16):
                with Recorded() as seen:
                    assert layer(x.to(dtype)).dtype == dtype
                    assert torch.mm(x.to(dtype), weight.t()).dtype == dtype
                assert {frozenset(found) for _, found in seen.calls} == {frozenset([dtype])}
            assert torch.mm(x.bfloat16(), x.t()).dtype == FP32
            assert layer(torch.matmul(x, weight)).dtype == BF16  # matmul is on the white list
        with msctx.context(precision_mode="allow_mix_precision_bf16", modify_mixlist=black), torch.set_grad_enabled(training):
            norm = nn.LayerNorm(4)
            assert norm(x.bfloat16()).dtype == BF16
            assert norm(x).dtype == FP32


def test_customize_dtypes(file):
    dtypes = file("OpType::MatMul:InputDtype:float32,float32,OutputDtype:bfloat16\n", "dtypes.cfg")
    x = torch.randn(4, 4)
    with msctx.context(precision_mode="allow_mix_precision_fp16", customize_dtypes=dtypes), Recorded() as seen:
        assert torch.mm(x, x).dtype == BF16
        assert torch.bmm(x[None], x[None]).dtype == FP16
    assert ("mm", (FP32, FP32)) in seen.calls


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.body(x))


@pytest.mark.parametrize("compiled", [False, True])
def test_by_name_of_a_module(file, compiled):
    names = file("[ByOpType]\ngelu=high_precision\n[ByNodeName]\nhead=high_precision\nbody.2=high_precision\n")
    net, x = Net(), torch.randn(3, 4)
    call = torch.compile(net, backend="eager") if compiled else net
    dtypes = {}
    for path in ("body.0", "body.2", "head"):
        net.get_submodule(path).register_forward_hook(lambda m, i, o, path=path: dtypes.update({path: o.dtype}))
    with msctx.context(precision_mode="allow_mix_precision_bf16", op_precision_mode=names) as ctx:
        ctx.watch(net)
        for _ in range(2):
            y = call(x)
            y.float().sum().backward()
    if not compiled:
        assert dtypes == {"body.0": BF16, "body.2": BF16, "head": BF16}  # what the mode gives, computed in float32
        found = {(row.operator, row.module, row.dtype) for row in ctx.precisions() if row.operator == "linear"}
        assert found == {("linear", "", "bfloat16"), ("linear", "head", "float32"), ("linear", "body.2", "float32")}
    assert net.head.weight.grad.dtype == FP32
    assert not net.head._forward_pre_hooks


def test_names_may_be_patterns_and_win_over_types_and_one_that_no_module_has_is_reported(file):
    names = file("[ByOpType]\nlinear=high_performance\n[ByNodeName]\nbody.*=high_precision\nhaed=high_precision\n")
    net, x = Net().bfloat16(), torch.randn(3, 4).bfloat16()
    ctx = msctx.context(op_precision_mode=names).watch(net)
    with pytest.warns(msctx.MsctxWarning, match="no module is named haed"):
        ctx(lambda: net(x))()
    found = {(row.module, row.dtype) for row in ctx.precisions() if row.operator == "linear"}
    assert found == {("", "bfloat16"), ("body.*", "float32")}


ACCURATE = {
    "softmax": lambda x: torch.softmax(x, -1),
    "logsumexp": lambda x: torch.logsumexp(x, -1),
    "layer_norm": lambda x: fn.layer_norm(x, (256,)),
    "sum": lambda x: x.sum(-1),
    "exp": torch.exp,
    "rsqrt": lambda x: torch.rsqrt(x.abs() + 1),
    "cumsum": lambda x: x.cumsum(-1),
}


def test_accurate_implementations_are_no_less_exact():
    torch.manual_seed(0)
    x = torch.randn(16, 256).half()
    for name, call in ACCURATE.items():
        truth, errors = call(x.double()), {}
        for mode in ("high_performance", "high_precision"):
            with msctx.context(op_select_implmode=mode, optypelist_for_implmode=name), Recorded() as seen:
                y = call(x)
            assert y.dtype == FP16, name
            assert (FP32 in seen.dtypes) == (mode == "high_precision"), name
            errors[mode] = float((y.double() - truth).abs().max())
        assert errors["high_precision"] <= errors["high_performance"], name


def test_checked_indices(file):
    checked = file("[ByOpType]\nGatherElements=support_out_of_bound_index\nembedding=support_out_of_bound_index\n")
    x = torch.randn(4, 4)
    with msctx.context(op_precision_mode=checked):
        assert x.gather(1, torch.tensor([[3]])).shape == (1, 1)
        for index in (4, -1):
            with pytest.raises(IndexError, match="support_out_of_bound_index"):
                x.gather(1, torch.tensor([[index]]))
        with pytest.raises(IndexError, match="embedding: index 9"):
            fn.embedding(torch.tensor([9]), x)


def test_enable_reduce_precision():
    x = torch.eye(4).half().mul(2).requires_grad_()
    for options in ({}, {"enable_reduce_precision": False}, {"precision_mode": "force_fp16", "enable_reduce_precision": False}):
        with msctx.context(**options), pytest.raises(RuntimeError, match="Half"):
            torch.linalg.inv(x)
    with msctx.context(precision_mode="force_fp16") as ctx:
        torch.linalg.inv(x)
    assert "computed_again" in str(ctx.precisions())
    with msctx.context(enable_reduce_precision=True) as ctx:
        with pytest.warns(msctx.MsctxWarning, match="linalg_inv.*has no kernel for Half"):
            torch.linalg.inv(x)
        y = torch.linalg.inv(x)
        y.sum().backward()
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):  # other errors go through
            torch.ones(2, 3).half() @ torch.ones(2, 3).half()
    assert (y.dtype, x.grad.dtype) == (FP16, FP16)
    assert torch.isfinite(x.grad).all()
    torch.testing.assert_close(y, torch.eye(4).half() / 2)
    assert any(row.computed_again == 2 for row in ctx.precisions())


def test_grad_scaler():
    for mode in ("allow_mix_precision_fp16", "allow_fp32_to_fp16", "allow_mix_precision_bf16"):
        with msctx.context(precision_mode=mode) as ctx:
            assert ctx.grad_scaler().is_enabled() == mode.endswith("fp16")
    assert not msctx.context().grad_scaler().is_enabled()
