"""Each row of the table of precision modes, observed inside the operators, forward and backward."""

from pathlib import Path

import pytest
import torch
from recorded import Recorded
from torch import nn
from torch.nn import functional as fn

import msctx
from msctx.options.precision_policy import DTYPES, LEAVE, MODES, precision_of, text_of

BF16, FP32 = torch.bfloat16, torch.float32
pytestmark = pytest.mark.usefixtures("one_thread")

CALLS = {
    "mm": lambda x: torch.mm(x, x.flip(0)),
    "matmul": lambda x: x @ x,
    "linear": lambda x: fn.linear(x, x, x[0]),
    "addmm": lambda x: torch.addmm(x, x, x),
    "bmm": lambda x: torch.bmm(x[None], x[None]),
    "conv2d": lambda x: fn.conv2d(x[None, None], x[None, None, :3, :3], padding=1),
    "einsum": lambda x: torch.einsum("ij,jk->ik", x, x),
    "scaled_dot_product_attention": lambda x: fn.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None]),
    "exp": torch.exp,
    "softmax": lambda x: torch.softmax(x, -1),
    "layer_norm": lambda x: fn.layer_norm(x, (8,), x[0], x[1]),
    "sum": torch.sum,
    "mse_loss": lambda x: fn.mse_loss(x, x.flip(0)),
    "lerp": lambda x: torch.lerp(x, x.flip(0), 0.5),
    "addcmul": lambda x: torch.addcmul(x, x, x),
    "relu": torch.relu,
    "add": lambda x: x + x,
    "mul": lambda x: x * x,
    "gelu": fn.gelu,
    "mean": torch.mean,
    "max_pool2d": lambda x: fn.max_pool2d(x[None, None], 2),
    "batch_norm": lambda x: fn.batch_norm(x, None, None, training=True),
    "cat": lambda x: torch.cat([x, x]),
    "gather": lambda x: x.gather(0, torch.zeros(2, 2, dtype=torch.long, device=x.device)),
}
"""A call of each operator, whose floating inputs are all of the dtype of x."""


def of(name: str) -> torch.dtype:
    return getattr(torch, name)


without_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.cuda, without_cuda])]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mode", MODES)
def test_compute_and_output_dtype(mode, dtype, device):
    rules = precision_of(text_of({"precision_mode": mode})).rules
    for name, call in CALLS.items():
        rule = rules.get(name, LEAVE)
        computed, given = of(rule.computes_in(dtype)), of(rule.gives(dtype))
        x = torch.randn(8, 8, device=device).to(of(dtype)).requires_grad_()
        with msctx.context(precision_mode=mode) as ctx:
            with Recorded() as forward:
                y = call(x)
            with Recorded() as backward:
                y.backward(torch.ones_like(y))
        products = [dtypes for op, dtypes in backward.calls if op in ("mm", "bmm", "convolution_backward")]
        assert {d for dtypes in products for d in dtypes} <= {computed}, name
        assert forward.calls, name
        assert forward.dtypes <= {computed}, name
        assert (y.dtype, x.grad.dtype) == (given, of(dtype)), name
        if mode == "must_keep_origin_dtype":
            assert not ctx.precisions(), "nothing of msctx runs"
            continue
        row = next(row for row in ctx.precisions() if row.operator == name and not row.backward)
        is_cast = rule.through not in ("", dtype) or of(dtype) != computed or given != computed
        assert (row.calls, row.dtype, bool(row.casts)) == (1, rule.computes_in(dtype), is_cast), name


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "option",
    [
        ("precision_mode", "cube_fp16in_fp32out"),
        ("precision_mode_v2", "cube_fp16in_fp32out"),
        ("session.precision_mode", "force_fp32"),
    ],
)
def test_matrix_operators_read_float16_and_give_float32(option, dtype):
    """Also of float32, whose products and sums are then those of float16 inputs, never rounded to float16 themselves."""
    torch.manual_seed(0)
    x, image = torch.randn(8, 8).to(of(dtype)), torch.randn(1, 2, 5, 5).to(of(dtype))
    rounded, seen = x.half().float(), image.half().float()
    with msctx.context(**dict([option])) as ctx:
        assert torch.equal(x @ x, rounded @ rounded)
        assert torch.equal(fn.conv2d(image, image[:, :, :3, :3]), fn.conv2d(seen, seen[:, :, :3, :3]))
        assert torch.isinf(torch.full((1, 1), 1e6) @ torch.ones(1, 1)).all()
        assert torch.equal(x.float().exp(), x.float().exp())
        assert ctx.grad_scaler().is_enabled()
    assert all(row.dtype == "float32" for row in ctx.precisions())


DYNAMIC = torch.ao.quantization.default_dynamic_qconfig


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("mode", ["allow_mix_precision_bf16", "allow_mix_precision_fp16", "force_fp16"])
def test_quantised_operators_read_float32(mode):
    """They know no other dtype; what lies before them computes in 16 bits."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.LSTM(4, 4)).eval()
    quantised = torch.ao.quantization.quantize_dynamic(model, dict.fromkeys(("1", nn.LSTM), DYNAMIC))
    with torch.no_grad(), msctx.context(precision_mode=mode) as ctx:
        made, _ = quantised(torch.randn(2, 3, 4))
        assert torch.quantize_per_tensor(made, 0.1, 0, torch.quint8).dtype == torch.quint8
    found = {row.operator: row.dtype for row in ctx.precisions()}
    assert found["linear"] == ("bfloat16" if "bf16" in mode else "float16")
    assert {found["quantized_lstm"], found["quantize_per_tensor"]} == {"float32"}


def test_words_that_mean_other_things_in_canns_session():
    x = torch.randn(8, 8)
    for words, low in (("session.precision_mode", FP32), ("ascend_config.precision_mode", BF16)):
        with msctx.context(**{words.replace("ascend_config.", ""): "allow_fp32_to_bf16"}), Recorded() as seen:
            assert (x @ x).dtype == FP32
        assert seen.calls == [("mm", (low, low))]
    with msctx.context(precision_mode="force_fp32"):
        assert torch.equal(x @ x, torch.mm(x, x))


def test_precisions_of_the_backward_pass():
    x = torch.randn(2, 4, 8, 8, requires_grad=True)
    net = nn.Sequential(nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(144, 2))
    with msctx.context(precision_mode="allow_mix_precision_bf16") as ctx:
        y = net(x)
        assert not any(row.backward for row in ctx.precisions())
        y.sum().backward()
    found = {(row.operator, row.dtype): row.calls for row in ctx.precisions() if row.backward}
    assert (found["convolution_backward", "bfloat16"], found["mm", "bfloat16"]) == (1, 2)
    assert ("backward" in str(ctx.precisions()), "module" in str(ctx.precisions())) == (True, False)


def test_batch_statistics_are_still_updated():
    norm = torch.nn.BatchNorm1d(4)
    for mode in ("force_fp16", "allow_mix_precision_bf16", "force_fp32"):
        before = norm.running_mean.clone()
        with msctx.context(precision_mode=mode):
            y = norm(torch.randn(8, 4) + 3)
        assert y.dtype == (torch.float16 if mode == "force_fp16" else torch.float32)
        assert not torch.equal(norm.running_mean, before)


without_float16_unit = pytest.mark.skipif("amx_fp16" in Path("/proc/cpuinfo").read_text(), reason="oneDNN computes them here")


@without_float16_unit
@pytest.mark.parametrize("where", ["inside", "after"])
@pytest.mark.parametrize("groups", [1, 2, 8])
@pytest.mark.parametrize("by", ["mode", "type"])
def test_convolutions_in_float16_are_computed_in_float32(by, groups, where, tmp_path):
    """And rounded once: to the bits of that, which oneDNN's sums in another order do not have; also after the block."""
    torch.manual_seed(0)
    types = tmp_path / "types.cfg"
    types.write_text("OpType::Conv2D:InputDtype:float16\n")
    x, weight = torch.randn(2, 64, 9, 7, requires_grad=True), torch.randn(64, 64 // groups, 3, 3, requires_grad=True)
    x16, w16 = (t.detach().half().float().requires_grad_() for t in (x, weight))
    truth = fn.conv2d(x16, w16, padding=1, groups=groups)
    with msctx.context(**({"precision_mode": "force_fp16"} if by == "mode" else {"customize_dtypes": str(types)})):
        y = fn.conv2d(x, weight, padding=1, groups=groups)
        if where == "inside":
            found = torch.autograd.grad(y, [x, weight], torch.ones_like(y))
    if where == "after":
        found = torch.autograd.grad(y, [x, weight], torch.ones_like(y))
    assert y.dtype == torch.float16
    assert torch.equal(y, truth.half())
    for gradient, right in zip(found, torch.autograd.grad(truth, [x16, w16], torch.ones_like(truth)), strict=True):
        assert torch.equal(gradient, right.half().float())


@pytest.mark.parametrize("mode", ["force_fp16", "allow_mix_precision_bf16", "cube_fp16in_fp32out"])
def test_complex_convolutions_are_left_as_they_are(mode):
    x, w = (torch.randn(2, 3, *size, dtype=torch.complex64, requires_grad=True) for size in ((9, 9), (3, 3)))

    def results():
        made = [torch.nn.functional.conv2d(x, w), torch.nn.functional.conv1d(x[:, :, 0], w[..., 0])]
        return [*made, *torch.autograd.grad(sum(y.abs().sum() for y in made), (x, w))]

    expected = results()
    with msctx.context(precision_mode=mode):
        found = results()
    assert all(map(torch.equal, found, expected))
