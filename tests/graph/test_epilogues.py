"""Convolutions of compiled code that take what follows them into their call, seen in choices() and in inductor's code."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from fusion_programs import generated, through_graphs
from torch import nn
from torch.nn import functional

import msctx

REQUESTED = {"mode": "GRAPH_MODE", "jit_syntax_level": "STRICT", "conv_fprop_algo": "normal", "fallback": "silent"}
Tail = Callable[["Block", torch.Tensor, torch.Tensor], torch.Tensor]


class Block(nn.Module):
    def __init__(self, tail: Tail, **how: Any) -> None:
        super().__init__()
        self.conv, self.tail = nn.Conv2d(6, 6, 3, padding=1, **how), tail
        self.norm = nn.BatchNorm2d(6)
        self.gamma = nn.Parameter(torch.rand(6, 1, 1) + 0.5)
        with torch.no_grad():
            for value in (self.norm.running_mean, self.norm.weight, self.norm.bias):
                assert value is not None
                value.normal_()
            assert self.norm.running_var is not None
            self.norm.running_var.uniform_(0.5, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.tail(self, self.conv(x), x)


def by_hand(block: Block, y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return torch.relu((y - block.gamma) * block.gamma + block.gamma)


TAILS: dict[str, Tail] = {
    "shift+relu": lambda b, y, x: functional.relu(y),
    "scale+shift": lambda b, y, x: b.norm(y),
    "scale+shift+relu": by_hand,
    "scale+shift+clamp": lambda b, y, x: functional.relu6(b.norm(y)),
    "scale+shift+silu": lambda b, y, x: functional.silu(b.norm(y)),
    "scale+shift+hardswish": lambda b, y, x: functional.hardswish(b.norm(y)),
    "scale+shift+hardsigmoid": lambda b, y, x: functional.hardsigmoid(b.norm(y)),
    "shift+sigmoid": lambda b, y, x: torch.sigmoid(y),
    "scale+shift+add+relu": lambda b, y, x: torch.relu(x + b.norm(y)),
    "shift+silu+add": lambda b, y, x: functional.silu(y) + x,
    "shift": lambda b, y, x: y.exp() + y,
    "shift+add": lambda b, y, x: functional.elu(y + x),
    "shift+add+gelu": lambda b, y, x: functional.gelu(y + x),
    "scale+shift+gelu_tanh": lambda b, y, x: functional.gelu(b.norm(y), approximate="tanh"),
    "scale+shift+sigmoid": lambda b, y, x: torch.sigmoid(b.norm(y)) * x.mean((2, 3), keepdim=True),
}


def images(*shape: int, last: bool = False) -> torch.Tensor:
    x = torch.randn(shape or (2, 6, 9, 11), generator=torch.Generator().manual_seed(0))
    return x.contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)


@pytest.mark.full
@pytest.mark.parametrize("expected", TAILS)
def test_what_follows_is_part_of_the_call(expected: str) -> None:
    torch.manual_seed(1)
    block = Block(TAILS[expected]).eval()
    for last, algorithm in ((False, "winograd"), (True, "normal")):
        x = images(last=last)
        with torch.no_grad():
            right, plain = block.double()(x.double()), block.float()(x)
        result, choices, _ = through_graphs(REQUESTED, block, x, conv_fprop_algo=algorithm)
        assert [row.epilogue for row in choices] == [expected]
        assert result.stride() == plain.stride()
        torch.testing.assert_close(result.double(), right, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("affine", [False, True])
def test_a_batch_norm_is_computed_in_the_call(affine: bool) -> None:
    norm, x = nn.BatchNorm2d(8, eps=0.5, affine=affine), images(last=True)
    for tensor in (norm.running_mean, norm.running_var, *norm.parameters()):
        nn.init.uniform_(tensor, 0.5, 2)
    model = nn.Sequential(nn.Conv2d(6, 8, (3, 2), (2, 1), (1, 0), (1, 2), 2, bias=False), norm, nn.Hardswish()).eval()
    with torch.no_grad():
        result, choices, code = through_graphs(REQUESTED, model, x)
        right = model.double()(x.double())
    assert "cpp_fused" not in code, "a kernel of inductor's computes scale and shift"
    assert [row.epilogue for row in choices] == ["scale+shift+hardswish"]
    torch.testing.assert_close(result.double(), right, rtol=2e-5, atol=2e-5)


def test_code_leaves_the_sizes_of_its_inputs_to_dynamos_guards() -> None:
    model = nn.Sequential(nn.Conv2d(6, 7, 3), nn.Hardswish())
    with torch.no_grad(), msctx.context(**REQUESTED) as ctx, generated() as code:
        for x, kernel in ((images(), 3), (images(2, 6, 10, 8), 3), (images(), 5), (images(last=True), 5)):
            model[0].weight = nn.Parameter(torch.randn(7, 6, kernel, kernel))
            right = functional.hardswish(functional.conv2d(x.double(), model[0].weight.double(), model[0].bias.double()))
            torch.testing.assert_close(model(x).double(), right, rtol=2e-5, atol=2e-5)
    assert len(ctx.graphs()) >= 3
    assert "assert_size_stride(buf" in code[0]
    assert "assert_size_stride(arg" not in "".join(code)


def test_code_of_a_region_compares_what_other_code_gives_it() -> None:
    model = nn.Sequential(nn.Hardswish(), nn.Conv2d(6, 7, 3), nn.ReLU())
    region = {"mix_compile_mode": True, "in_out_pair": [["1"], ["2"]], "in_out_pair_flag": True}
    assert "assert_size_stride(arg" in through_graphs(REQUESTED, model, images(), **region)[2]


class OneNumber(nn.Conv2d):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.convolution(x, self.weight, self.bias, [2], [1], [1], False, [0], 1).relu()


def test_one_number_is_for_both_dimensions() -> None:
    model, x = OneNumber(6, 7, 3), images()
    with torch.no_grad():
        result, _, code = through_graphs(REQUESTED, model, x)
        torch.testing.assert_close(result, model(x), rtol=1e-4, atol=1e-5)
    assert "stride 2 2 padding 1 1 dilation 1 1 groups 1 relu" in code


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(nn.Conv1d(4, 4, 3), id="1d", marks=pytest.mark.full),
        pytest.param(nn.ConvTranspose2d(6, 6, 3), id="transposed"),
        pytest.param(nn.Conv2d(6, 6, 3).bfloat16(), id="bfloat16", marks=pytest.mark.full),
    ],
)
def test_other_convolutions_are_left_as_they_are(model: nn.Module) -> None:
    weight = next(model.parameters())
    x = torch.randn(2, 4 if weight.dim() == 3 else 6, *[5] * (weight.dim() - 2)).to(weight.dtype)
    result, _, code = through_graphs(REQUESTED, nn.Sequential(model, nn.ReLU()), x)
    assert "msctx.convolution" not in code
    with torch.no_grad():
        torch.testing.assert_close(result, functional.relu(model(x)))


@pytest.mark.full
def test_code_that_saves_the_result_and_code_without_an_algorithm_have_none() -> None:
    block, x = Block(TAILS["scale+shift+relu"]).eval(), images()
    assert "msctx.convolution" in through_graphs(REQUESTED, block, x)[2]
    assert "msctx.convolution" not in through_graphs(REQUESTED, block, x, conv_fprop_algo=None)[2]
    assert "msctx.convolution" not in through_graphs(REQUESTED, block, x, enable_graph_kernel=False)[2]
    torch._dynamo.reset()
    with msctx.context(**REQUESTED), generated() as code:
        block(x).sum().backward()
    assert code
    assert "msctx.convolution" not in "".join(code)


def test_rules_find_the_layer_and_frozen_weights_are_kept() -> None:
    model = nn.Sequential(
        nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1)
    ).eval()
    x = images(2, 32, 20, 20)
    rules = "module=0: fprop=winograd; module=3: fprop=reference"
    with msctx.context(mode=0, conv_algo_rules=rules, frozen_weights=True) as ctx, torch.no_grad():
        ctx.watch(model)
        result = model(x)
        model(x)
    assert [(row.module, row.ran, row.epilogue) for row in ctx.choices()] == [
        ("0", "winograd", "scale+shift+relu"),
        ("3", "reference", "shift"),
    ]
    assert ctx.choices()[0].weights_kept > 0
    with torch.no_grad():
        torch.testing.assert_close(result, model(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("algorithm", ["normal", "winograd"])
def test_weights_and_statistics_may_change(algorithm: str) -> None:
    """Whether PyTorch computes it, or an algorithm of ours."""
    block, x = Block(TAILS["scale+shift+relu"]).eval(), images()
    norm = Block(TAILS["scale+shift"]).eval()
    model = nn.Sequential(block, norm)
    with msctx.context(**REQUESTED | {"conv_fprop_algo": algorithm}) as ctx, torch.no_grad():
        for change in (
            lambda: None,
            lambda: block.conv.weight.data.mul_(2),
            lambda: norm.norm.running_var.mul_(3),
            lambda: norm.norm.bias.add_(1),
        ):
            change()
            result = model(x)
            with msctx.context(mode="PYNATIVE_MODE", conv_fprop_algo="reference"):
                torch.testing.assert_close(result, model(x), rtol=1e-4, atol=1e-4)
        assert len(ctx.graphs()) == 1


@pytest.mark.full
def test_shapes_may_have_symbols() -> None:
    expected = "scale+shift+add+relu"
    block = Block(TAILS[expected]).eval()
    with msctx.context(**REQUESTED, compile_dynamic_mode=True) as ctx, torch.no_grad():
        for shape in ((2, 6, 9, 11), (3, 6, 8, 8), (5, 6, 4, 13)):
            x = images(*shape)
            found = block(x)
            with msctx.context(mode="PYNATIVE_MODE"):
                torch.testing.assert_close(found, block(x))
        assert len(ctx.graphs()) == 1
        assert {row.epilogue for row in ctx.choices()} == {expected, ""}


def test_empty_batches_and_inf() -> None:
    block = Block(TAILS["scale+shift+relu"]).eval()
    assert through_graphs(REQUESTED, block, images(0, 6, 9, 11))[0].shape == (0, 6, 9, 11)
    x = images()
    x[0, 0, 0, 0] = float("inf")
    for algorithm in ("winograd", "gemm"):
        result, _, _ = through_graphs(REQUESTED, block, x, conv_fprop_algo=algorithm)
        with torch.no_grad():
            right = block(x)
        torch.testing.assert_close(result.isnan(), right.isnan())
        torch.testing.assert_close(result[~right.isnan()], right[~right.isnan()], rtol=1e-4, atol=1e-4)


PROGRAMS: dict[str, Tail] = {
    "a convolution with two factors": lambda b, y, x: (b.norm(y), b.gamma * b.conv(2 * x)),  # type: ignore[dict-item,return-value]
    "views": lambda b, y, x: torch.relu(y).view(x.shape[0], -1) * 2,
    "as_strided": lambda b, y, x: torch.as_strided(y, (3, 4), (5, 1)) * 2,
    "another dtype": lambda b, y, x: torch.relu(y).view(torch.int32).float(),
    "a clamp without values": lambda b, y, x: y.clamp(2, 1),
}


@pytest.mark.full
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_give_what_eager_code_gives(name: str) -> None:
    torch.manual_seed(2)
    model = Block(PROGRAMS[name]).eval()
    torch._dynamo.reset()
    with msctx.context(**REQUESTED, frozen_weights=True), torch.no_grad():
        for factor in (1, 3):
            x = factor * images(1, 6, 9, 11)
            found = model(x)
            with msctx.context(mode="PYNATIVE_MODE"):
                right = model(x)
            torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-4)


ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": torch.relu,
    "clamp": lambda v: v.clamp(-0.25, 0.5),
    "hardsigmoid": functional.hardsigmoid,
    "silu": functional.silu,
    "gelu": functional.gelu,
}


@pytest.mark.parametrize("channels", [(2, 12), (12, 2)], ids=["small input", "large input"])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_what_is_no_number_stays_so_on_torchs_path(name: str, channels: tuple[int, int]) -> None:
    """A pass of ours applies what follows a convolution of PyTorch's, whose own relu and clamp make numbers of NaN."""
    c, k = channels
    activation = ACTIVATIONS[name]
    torch.manual_seed(3)
    plain = {"x": images(3, c, 7, 9, last=True), "weight": torch.randn(k, c, 1, 1), "scale": torch.rand(k) + 0.5}
    plain |= {"shift": torch.randn(k), "other": images(3, k, 7, 9, last=True)}
    for part, value, adds_last in itertools.product(plain, (0.5, math.nan, math.inf, 3e38), (None, False, True)):
        given = {name: tensor.clone() for name, tensor in plain.items()}
        given[part][(0,) * given[part].dim()] = value
        x, weight, scale, shift, other = given.values()
        with msctx.context(conv_fprop_algo="normal") as ctx:
            found = torch.ops.msctx.convolution(
                *(x, weight, f"stride 1 1 padding 0 0 dilation 1 1 groups 1 {name}{' sum' if adds_last else ''}", scale, shift),
                *(None, None, None if adds_last is None else other, -0.25, 0.5, 0.0),
            )
        assert ctx.choices()[0].ran == "torch"
        plain_result = functional.conv2d(x.double(), weight.double()).float()  # Inf where float32 has it
        right = plain_result * scale.view(-1, 1, 1) + shift.view(-1, 1, 1)
        right = activation(right + other if adds_last is False else right) + (other if adds_last else 0.0)
        torch.testing.assert_close(found, right, equal_nan=True, rtol=1e-4, atol=1e-4)
