"""Graph mode on a GPU: the same training, generated for CUDA, its files and its cache."""

from copy import deepcopy
from pathlib import Path

import pytest
import torch
from graph_programs import Net, graphs, image
from torch import nn
from torch._dynamo.utils import counters
from torch._inductor.utils import fresh_cache

import msctx

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
    pytest.mark.usefixtures("torch_as_found"),
]


def trained(net: nn.Module, steps: int = 3) -> list[torch.Tensor]:
    optimizer, x, y = torch.optim.SGD(net.parameters(), lr=0.1), image().cuda(), torch.tensor([0, 1], device="cuda")
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
    return [parameter.detach().cpu() for parameter in net.parameters()]


def test_a_training_is_that_of_eager_code() -> None:
    net = Net().cuda()
    eager = deepcopy(net)
    with msctx.context(matmul_allow_tf32=False, conv_allow_tf32=False):
        right = trained(eager)
        with msctx.context(mode="GRAPH_MODE", enable_graph_kernel=True) as ctx:
            found = trained(net)
    assert graphs() >= 1
    torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-5)
    assert not [row for row in ctx.graphs() if row.breaks]


def test_determinism_holds_in_generated_code() -> None:
    net = Net().cuda()
    again = deepcopy(net)
    with msctx.context(mode="GRAPH_MODE", enable_graph_kernel=True, deterministic="ON"):
        for one, other in zip(trained(net), trained(again), strict=True):
            assert torch.equal(one, other)


def test_named_convolutions_run_in_compiled_code() -> None:
    net, x = nn.Conv2d(3, 8, 3).cuda(), image(2, 3, 12, 12).cuda()
    right = nn.functional.conv2d(x.double(), net.weight.double(), net.bias.double())
    with msctx.context(mode="GRAPH_MODE", conv_fprop_algo="implicit_gemm", fallback="error", conv_allow_tf32=False) as ctx:
        found = net(x)
    assert (found.double() - right).abs().max() < 1e-5
    assert {(row.direction, row.ran, row.provider) for row in ctx.choices()} == {("fprop", "implicit_gemm", "cudnn")}


def test_performance_measures_products_in_compiled_code() -> None:
    torch.manual_seed(0)
    net, x = nn.Linear(512, 1024).cuda(), torch.randn(256, 512, device="cuda")
    right = net(x).double()
    counted = counters["inductor"]
    for algorithm, measures in (("normal", False), ("performance", True)):
        torch.compiler.reset()
        before = counted["select_algorithm_autotune"]
        with fresh_cache(), msctx.context(mode="GRAPH_MODE", matmul_algo=algorithm, matmul_allow_tf32=False):
            found = net(x)
        assert (counted["select_algorithm_autotune"] > before) is measures, algorithm
        assert (found.double() - right).abs().max() < 1e-5


def test_files_of_graphs_name_the_code_for_the_gpu(tmp_path: Path) -> None:
    with msctx.context(mode="GRAPH_MODE", save_graphs=2, save_graphs_path=str(tmp_path)):
        Net().cuda()(image().cuda())
    assert [*tmp_path.rglob("*.ir")]
    assert any("triton" in path.read_text() for path in tmp_path.rglob("*.py"))


def test_a_plan_governs_what_is_compiled_on_a_gpu() -> None:
    """Code compiled with TF32 does not run without: each policy has its own."""
    torch.manual_seed(0)
    net = nn.Linear(512, 512, bias=False).cuda()
    x = torch.randn(256, 512, device="cuda")
    exact = x.double() @ net.weight.double().T
    errors = {}
    for allowed in (True, False, True):
        with msctx.context(mode="GRAPH_MODE", matmul_allow_tf32=allowed):
            errors[allowed] = (net(x).double() - exact).abs().max().item()
    assert errors[True] > 10 * errors[False]
