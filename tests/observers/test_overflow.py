"""The operator that makes what is not finite is named, those that pass it on are not."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dumped_programs import overflows
from torch import nn

from msctx.observers import operator_events

NAN, INF = float("nan"), float("inf")
Run = Callable[[], object]


def fused_step() -> torch.Tensor:
    parameter = nn.Parameter(torch.full((4,), 1e30))
    parameter.grad = torch.full((4,), -1e30)
    torch.optim.SGD([parameter], lr=1e30, fused=True).step()
    return parameter.detach()


def ctc_loss(log_probs: torch.Tensor) -> torch.Tensor:
    return nn.functional.ctc_loss(log_probs, torch.tensor([[1, 2]]), torch.tensor([6]), torch.tensor([2]))


def scores(value: float = 0.0) -> torch.Tensor:
    """Of float16, masked."""
    return torch.full((4, 4), value, dtype=torch.float16).masked_fill_(torch.ones(4, 4).triu(1).bool(), -INF)


def mask() -> torch.Tensor:
    """Of float16, with the smallest number where it lets pass."""
    return torch.full((4, 4), -INF, dtype=torch.float16).triu(1) + torch.full((4, 4), -6e4, dtype=torch.float16).tril()


def product_with(given: torch.Tensor, size: float = 300.0) -> torch.Tensor:
    keys = torch.full((2, 4, 8), size, dtype=torch.float16)
    return torch.baddbmm(given, keys, -keys.mT)


PRODUCED: dict[str, tuple[str, Run]] = {
    "log": ("aten::log", lambda: (-torch.ones(3)).log().sum()),
    "in place": ("aten::div_", lambda: torch.ones(3).div_(torch.zeros(3)) + 1),
    "float16": ("aten::mul", lambda: torch.full((3,), 300.0, dtype=torch.float16) * 300),
    "bfloat16": ("aten::exp", lambda: torch.full((3,), 100.0, dtype=torch.bfloat16).exp() * 2),
    "a cast": ("aten::_to_copy", lambda: torch.full((3,), 1e6).half() + 1),
    "a cast to float8 with NaN alone": ("aten::_to_copy", lambda: torch.full((3,), 1e6).to(torch.float8_e4m3fnuz)),
    "out=": ("aten::log", lambda: torch.log(torch.zeros(3), out=torch.full((3,), NAN))),
    "a row that is masked throughout": ("aten::_softmax", lambda: torch.full((2, 2), -INF).softmax(-1) @ torch.ones(2, 2)),
    "foreach": ("aten::_foreach_div", lambda: torch._foreach_div([torch.ones(2)], 0.0)),
    "fused": ("aten::_fused_sgd_", lambda: fused_step() + 1),
    "zero times infinity": ("aten::mul", lambda: (torch.zeros(3) * INF) + 1),
    "reduction": ("aten::sum", lambda: torch.full((2,), 3e38).sum()),
    "func.grad": ("aten::log", lambda: torch.func.grad(lambda x: (x.log() * 2).sum())(torch.zeros(3))),
    "a loss": ("aten::_ctc_loss", lambda: ctc_loss(torch.full((6, 1, 4), -3e38))),
    "segments": (
        "aten::segment_reduce",
        lambda: torch.segment_reduce(torch.full((2,), 3e38), "sum", lengths=torch.tensor([2])),
    ),
    "running statistics": ("aten::native_batch_norm", lambda: nn.BatchNorm1d(1)(torch.tensor([[1e20], [-1e20]]))),
}


@pytest.mark.parametrize("name", PRODUCED)
def test_the_producer_is_named(name: str, tmp_path: Path) -> None:
    operator, run = PRODUCED[name]
    first, *_ = overflows(run, tmp_path)
    assert (
        f": {operator} in no watched module, {'optimizer' if name == 'fused' else 'forward pass'}, test_overflow.py:" in first
    )


def shortest_paths() -> torch.Tensor:
    weights = torch.full((4, 4), INF).fill_diagonal_(0)
    weights[0, 1], weights[1, 2] = 1, 2
    distances = torch.tensor([0, INF, INF, INF])
    for _ in range(3):
        distances = torch.minimum(distances, (distances[:, None] + weights).amin(0))
    return distances


UPPER = torch.ones(4, 4).triu(1).bool()
HARMLESS: dict[str, Run] = {
    "shortest paths": shortest_paths,
    "an infinity that is written": lambda: torch.ones(4, 4).masked_fill(UPPER, INF) * 2,
    "an infinity that is cast": lambda: torch.ones(3).copy_(torch.full((3,), INF).half().double()),
    "an infinity that is given": lambda: torch.from_numpy(np.full(3, INF)).topk(2).values.sort(),
    "an infinity with a gradient": lambda: (
        (torch.ones(4, 4, requires_grad=True).masked_fill(UPPER, INF) * 2).amin(-1).sum().backward()
    ),
    "sums and products of infinities": lambda: [torch.full((3,), INF).sum(), torch.full((2, 3), INF) @ torch.ones(3, 2)],
    "likelihoods of what is masked": lambda: -torch.ones(4, 4).masked_fill(UPPER, -INF).log_softmax(-1),
    "a loss of what is masked": lambda: nn.functional.cross_entropy(
        torch.ones(4, 4).masked_fill(UPPER, -INF), torch.full((4,), 3)
    ),
    "a mask with another sign": lambda: [-scores(), scores() * -1, scores().abs_(), scores().square()],
    "a mask": lambda: torch.ones(4, 4).masked_fill(torch.ones(4, 4).triu(1).bool(), -INF).softmax(-1),
    "a mask that is added": lambda: (torch.ones(4, 4) + torch.full((4, 4), -INF).triu(1)).softmax(-1),
    "a mask that is added to a product": lambda: product_with(mask(), 1.0).softmax(-1),
    "a mask that is divided in place": lambda: scores(1.0).div_(0.7).softmax(-1),
    "masks that are added in place": lambda: scores().add_(scores()).softmax(-1),
    "a number that is chosen": lambda: torch.where(torch.ones(3) > 2, torch.ones(3), torch.tensor(NAN)).nansum(),
    "a number that is copied": lambda: [
        torch.tensor(INF).clone().to(torch.float64),
        torch.stack([torch.tensor(INF), torch.tensor(NAN)]),
        torch.ones(3).index_fill(0, torch.tensor([0]), torch.tensor(INF)),
    ],
    "a number in the program": lambda: torch.ones(3) * INF,
    "a mask that is widened": lambda: (torch.ones(2, 3, 4) + torch.tensor([0.0, 0, -INF, -INF])).softmax(-1),
    "attention": lambda: nn.functional.scaled_dot_product_attention(*torch.ones(3, 1, 1, 4, 8), is_causal=True),
    "padding": lambda: nn.functional.pad(torch.ones(3), (1, 1), value=-INF).max(),
    "memory without values": lambda: torch.empty(1000).fill_(1.0),
    "integers": lambda: torch.ones(3, dtype=torch.int32) * 2**31,
    "a constant": lambda: torch.tensor(-INF) + torch.tensor([1.0, -INF]).exp(),
    "a loss that holds -inf": lambda: ctc_loss(torch.zeros(6, 1, 4).log_softmax(-1)),
    "the largest of no values": lambda: torch.segment_reduce(torch.ones(2), "max", lengths=torch.tensor([2, 0])),
    "running statistics that are used": lambda: nn.functional.batch_norm(
        torch.ones(2, 1), torch.zeros(1), torch.full((1,), INF)
    ),
}


def test_what_follows_an_overflow_is_no_other_one(tmp_path: Path) -> None:
    def run() -> None:
        x = torch.zeros(4).log()
        _ = x.neg(), x.abs(), x * -1, x.pow(2), nn.functional.nll_loss(x[None], torch.tensor([0]))

    (found,) = overflows(run, tmp_path)
    assert "aten::log" in found


@pytest.mark.parametrize("name", HARMLESS)
def test_what_is_meant_is_no_overflow(name: str, tmp_path: Path) -> None:
    assert overflows(HARMLESS[name], tmp_path) == []


def test_a_cast_to_float8_that_clips_is_no_overflow(tmp_path: Path) -> None:
    """torch 2.11 does not clip: it makes NaN, which is one."""
    large = torch.tensor([448.0, 1e4, -1e4])
    clips = large.to(torch.float8_e4m3fn).float().tolist() == [448.0, 448.0, -448.0]
    assert len(overflows(lambda: large.to(torch.float8_e4m3fn), tmp_path)) == (0 if clips else 1)


def test_a_dtype_that_no_input_has_is_named(tmp_path: Path) -> None:
    """Autocast has cast them."""
    large = torch.full((4, 4), 300.0)
    with torch.autocast("cpu", torch.float16):
        (found,) = overflows(lambda: torch.mm(large, large), tmp_path)
    assert "16 Inf in float16, from finite inputs (self float32[4x4]" in found


class Root(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sqrt()

    line = f"test_overflow.py:{forward.__code__.co_firstlineno + 1}"


@pytest.mark.parametrize("create_graph", [False, True])
def test_in_the_backward_pass_its_module_and_node_and_the_line_of_the_forward_pass_are_named(
    create_graph: bool, tmp_path: Path
) -> None:
    net = nn.Sequential(nn.Identity(), Root())
    x = torch.zeros(3, requires_grad=True)
    (found,) = overflows(lambda: net(x).sum().backward(create_graph=create_graph), tmp_path, net=net)
    assert f"aten::div in module 1, backward pass (SqrtBackward0), {Root.line}: 3 Inf" in found


def test_what_came_in_is_named_with_the_argument(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    with torch.no_grad():
        net[1].weight[0, 0] = NAN
    reports = overflows(lambda: net(torch.ones(1, 2)).sum().backward(), tmp_path, net=net)
    assert len(reports) == 1, "what is passed on is no news"
    assert "aten::addmm in module 1, forward pass" in reports[0]
    assert "not finite before: mat2 float32[2x2]" in reports[0]


LOG, ADD = "aten::log", "aten::index_add"


@pytest.mark.parametrize(("mode", "expected"), [("aicore_overflow", [LOG]), ("atomic_overflow", [ADD]), ("all", [LOG, ADD])])
def test_modes(mode: str, expected: list[str], tmp_path: Path) -> None:
    def run() -> None:
        (-torch.ones(3)).log()
        torch.full((3,), 3e38).index_add(0, torch.tensor([0]), torch.full((1,), 3e38))

    found = overflows(run, tmp_path, mode)
    assert [report.split(": ")[1].split(" ")[0] for report in found] == expected


def test_each_is_reported_once_in_a_scope_with_its_files(tmp_path: Path) -> None:
    found = overflows(lambda: [(-torch.ones(3)).log() for _ in range(5)], tmp_path)
    assert len(found) == 1
    (report,) = tmp_path.rglob("Opdebug.Node_OpDebug.*.output.0.json")
    content = json.loads(report.read_text())
    saved, result = (report.parent / content[side][0]["file"] for side in ("inputs", "outputs"))
    assert np.array_equal(np.load(saved), -np.ones(3, np.float32))
    assert np.isnan(np.load(result)).all()
    assert not [path for path in tmp_path.rglob("*") if path.name.startswith(".")]


def test_each_line_is_reported_and_reports_without_data_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run() -> None:
        (-torch.ones(3)).log()
        (-torch.ones(3)).log()

    monkeypatch.setattr("msctx.observers.errors_overflow_recorder_watchdog.MOST_OVERFLOWS", 1)
    assert ["its data are not written" in report for report in overflows(run, tmp_path)] == [False, True]


def test_results_are_untouched(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5)), torch.randn(4, 8)
    state: Any = [torch.get_rng_state(), {k: v.clone() for k, v in net.state_dict().items()}]
    expected = net(x)
    torch.set_rng_state(state[0])
    net.load_state_dict(state[1])
    found: list[torch.Tensor] = []
    overflows(lambda: found.append(net(x)), tmp_path)
    assert torch.equal(found[0], expected)
    assert math.isfinite(float(found[0].sum()))
    assert not operator_events._readers
