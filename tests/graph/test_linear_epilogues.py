"""Linear layers of compiled code that take what follows them into their call, seen in choices() and in inductor's code."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from fusion_programs import generated, through_graphs
from torch import nn
from torch.nn import functional

import msctx
from msctx.native import core

REQUESTED = {"mode": "GRAPH_MODE", "jit_syntax_level": "STRICT", "matmul_algo": "strict", "fallback": "silent"}
OPERATOR = "msctx.linear"


class Layer(nn.Module):
    """A linear layer of 13 columns, and what a program makes of its result and of *x*, which has as many."""

    def __init__(self, program: Callable[[Layer, torch.Tensor], Any], bias: bool = True) -> None:
        super().__init__()
        self.linear, self.program = nn.Linear(13, 13, bias), program
        self.gamma = nn.Parameter(torch.rand(13) + 0.5)

    def forward(self, x: torch.Tensor) -> Any:
        return self.program(self, x)


def gelu_new(v: torch.Tensor) -> torch.Tensor:
    return 0.5 * v * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (v + 0.044715 * torch.pow(v, 3.0))))


TAILS: dict[str, Callable[[Layer, torch.Tensor], Any]] = {
    "shift+relu": lambda m, x: functional.relu(m.linear(x)),
    "shift+clamp": lambda m, x: functional.relu6(m.linear(x)),
    "shift+silu": lambda m, x: functional.silu(m.linear(x)),
    "shift+sigmoid": lambda m, x: torch.sigmoid(m.linear(x)),
    "shift+hardswish": lambda m, x: functional.hardswish(m.linear(x)),
    "shift+hardsigmoid": lambda m, x: functional.hardsigmoid(m.linear(x)),
    "shift+gelu": lambda m, x: functional.gelu(m.linear(x)),
    "shift+gelu_tanh": lambda m, x: functional.gelu(m.linear(x), approximate="tanh"),
    "shift+gelu_tanh+add": lambda m, x: x + gelu_new(m.linear(x)),
    "shift+add": lambda m, x: x + m.linear(x),
    "shift+add+gelu": lambda m, x: functional.gelu(m.linear(x) + x),
    "scale+shift+add": lambda m, x: x + m.gamma * m.linear(x),
    "scale+shift": lambda m, x: (m.linear(x) - m.gamma) * m.gamma,
    "scale+add+relu": lambda m, x: torch.relu(m.gamma * functional.linear(x, m.linear.weight) + x),
}


def values(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.full
@pytest.mark.parametrize("expected", TAILS)
def test_what_follows_is_part_of_the_call(expected: str) -> None:
    torch.manual_seed(1)
    layer = Layer(TAILS[expected]).eval()
    for x, algorithm in ((values(7, 13), "reference"), (values(5, 2, 3, 13).transpose(0, 2), "strict")):
        with torch.no_grad():
            right, plain = layer.double()(x.double()), layer.float()(x)
        result, choices, _ = through_graphs(REQUESTED, layer, x, matmul_algo=algorithm)
        assert [(row.epilogue, row.ran) for row in choices] == [(expected, algorithm)]
        assert result.stride() == plain.stride()
        torch.testing.assert_close(result.double(), right, rtol=2e-6, atol=2e-6)


@pytest.mark.full
@pytest.mark.parametrize(
    ("rows", "depth", "columns"), [(0, 5, 6), (1, 1, 1), (1, 300, 7), (2, 3, 600), (97, 257, 129), (200, 64, 17)]
)
def test_any_size_whose_bits_are_those_of_the_product_and_a_pass(rows: int, depth: int, columns: int) -> None:
    x, other = values(rows, depth), values(rows, columns)
    for w in (values(depth, columns), values(columns, depth).t()):
        with msctx.context(matmul_algo="strict"), torch.no_grad():
            for last in (False, True):
                call = torch.ops.msctx.linear(x, w, None, other[:1].sum(0), other, "relu", 0.0, 0.0, last)
                before = x @ w + other[:1].sum(0)
                torch.testing.assert_close(
                    call, torch.relu(before) + other if last else torch.relu(before + other), rtol=0, atol=0
                )


def test_two_layers_that_meet_and_one_whose_result_others_need() -> None:
    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = (nn.Linear(13, 13) for _ in range(3))

        def forward(self, x: torch.Tensor) -> Any:
            y = self.c(x)
            return torch.relu(self.a(x) + self.b(x)), y, torch.relu(y)

    model, x = Gated(), values(2, 4, 13)
    result, choices, code = through_graphs(REQUESTED, model, x)
    assert sorted((row.epilogue, row.calls) for row in choices) == [("", 2), ("shift+add+relu", 1)]
    assert code.count(f"{OPERATOR}.default(") == 1
    with torch.no_grad():
        torch.testing.assert_close(result, model(x))


PROGRAMS: dict[str, Callable[[Layer, torch.Tensor], Any]] = {
    "nothing follows": lambda m, x: m.linear(x),
    "heads": lambda m, x: torch.relu(m.linear(x).view(-1, 13, 1)),
    "a broadcast addition": lambda m, x: functional.linear(x, m.linear.weight) + x[:, :1],
    "another dtype": lambda m, x: m.linear(x) + x.double(),
    "float64": lambda m, x: torch.relu(functional.linear(x.double(), m.linear.weight.double())),
    "scaled": lambda m, x: torch.relu(torch.addmm(m.gamma, x[0], m.linear.weight, beta=0.5, alpha=2)),
    "twice": lambda m, x: (y := m.linear(x)) + y,
    "other halves": lambda m, x: 0.4 * (y := m.linear(x)) * (torch.erf(y * 0.5**0.5) + 1),
}


QUICK = ("heads", "a broadcast addition", "other halves")


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.full) for n in PROGRAMS])
def test_what_is_no_such_program_is_left_as_it_is(name: str) -> None:
    layer, x = Layer(PROGRAMS[name]), values(2, 4, 13)
    result, _, code = through_graphs(REQUESTED, layer, x)
    assert OPERATOR not in code
    with torch.no_grad():
        torch.testing.assert_close(result, layer(x))


@pytest.mark.parametrize(
    "options",
    [
        {"matmul_algo": None},
        {"enable_graph_kernel": False},
        {"matmul_algo": "normal"},
        {"matmul_algo_rules": {"layout=NT": "normal"}},
    ],
    ids=str,
)
def test_where_torch_would_compute_it_inductor_does(options: dict[str, Any]) -> None:
    if "normal" in str(options) and core.load().isa().startswith("amx"):
        pytest.skip("normal may choose the matrix unit")
    layer, x = Layer(TAILS["shift+gelu"]), values(4, 13)
    result, _, code = through_graphs(REQUESTED, layer, x, **options)
    assert OPERATOR not in code
    with torch.no_grad():
        torch.testing.assert_close(result, layer(x))


def test_code_with_gradients_has_none() -> None:
    layer, x = Layer(TAILS["shift+gelu"]), values(4, 13)
    torch._dynamo.reset()
    with msctx.context(**REQUESTED), generated() as code:
        layer(x).sum().backward()
    assert code
    assert OPERATOR not in "".join(code)


def test_a_rule_finds_the_module_when_the_code_runs() -> None:
    model, x = nn.Sequential(nn.Linear(13, 13), nn.GELU(), nn.Linear(13, 13), nn.ReLU()), values(4, 13)
    torch._dynamo.reset()
    with (
        msctx.context(
            mode=0, matmul_algo="normal", matmul_algo_rules="module=0: strict; module=2: normal", frozen_weights=True
        ) as ctx,
        torch.no_grad(),
        generated() as code,
    ):
        ctx.watch(model)
        result = model(x)
    assert "".join(code).count(f"{OPERATOR}.default(") == 2  # which of them it is for is not known earlier
    found = {row.module: (row.ran, row.epilogue) for row in ctx.choices()}
    assert found["0"] == ("strict", "shift+gelu")
    assert found["2"] == ("torch", "shift+relu")
    with torch.no_grad():
        torch.testing.assert_close(result, model(x))


@pytest.mark.parametrize("invariance", ["thread_invariant", "batch_invariant"])
def test_bits_do_not_depend_on_the_batch_or_the_threads(invariance: str) -> None:
    layer = Layer(TAILS["shift+add+gelu"])
    x = values(90, 13)
    found = []
    before = torch.get_num_threads()
    try:
        for threads, rows in ((1, 90), (2, 90), (2, 3)):
            torch.set_num_threads(threads)
            options = {"matmul_algo": None, "matmul_max_error": 3e-5, invariance: True}
            result, choices, _ = through_graphs(REQUESTED, layer, x[:rows], **options)
            assert [(row.ran, row.epilogue) for row in choices] == [("strict", "shift+add+gelu")]
            found.append(result[:3])
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=0, atol=0)


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
@pytest.mark.parametrize("algorithm", ["strict", "reference", "normal"])
def test_what_is_no_number_stays_so(algorithm: str, value: str) -> None:
    """`normal`: torch computes the product, and a pass what follows, on a processor without a matrix unit."""
    x, w, other = values(9, 13), values(13, 40), values(9, 40)
    x[3, 2] = float(value)
    eager = {"relu": torch.relu, "silu": functional.silu, "gelu": functional.gelu, "sigmoid": torch.sigmoid}
    for name, function in eager.items():
        with msctx.context(matmul_algo=algorithm) as ctx:
            found = torch.ops.msctx.linear(x, w, None, None, other, name, 0.0, 0.0, False)
        assert [row.epilogue for row in ctx.choices()] == [f"add+{name}"]
        truth = function((x @ w + other).double()).float()  # on AVX-512, torch's float32 gelu of Inf is NaN
        torch.testing.assert_close(found, truth, equal_nan=True, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("sizes", [(0, 5, 6), (4, 0, 6), (4, 5, 0)], ids=str)
def test_an_empty_product_has_its_epilogue_too(sizes: tuple[int, int, int]) -> None:
    rows, depth, columns = sizes
    shift = values(columns)
    with msctx.context(matmul_algo="strict"):
        found = torch.ops.msctx.linear(values(rows, depth), values(depth, columns), None, shift, None, "relu", 0.0, 0.0, False)
    torch.testing.assert_close(found, torch.relu(values(rows, depth) @ values(depth, columns) + shift))
