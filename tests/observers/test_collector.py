"""What the collector sees of operators: names, modules, directions; and that it is gone when nobody asks."""

import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from listeners import TESTED, Listens
from torch import nn

import msctx
from msctx.observers import compile_trace
from msctx.observers.operator_events import Row


def model() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.Sequential(nn.ReLU(), nn.Flatten()), nn.Linear(72, 3))


def watched(net: nn.Module) -> "msctx.Context":
    return msctx.context().watch(net)


def test_a_step_by_module_and_direction(collected: Any) -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step() -> None:
        net(torch.ones(2, 1, 8, 8)).sum().backward()
        optimizer.step()

    with watched(net):
        found = [(row["direction"], row["operator"], row["module"]) for row in collected(step)]
    for expected in (
        ("forward", "aten::convolution", "0"),
        ("forward", "aten::relu", "1.0"),
        ("forward", "aten::addmm", "2"),
        ("forward", "aten::sum", ""),
        ("backward", "aten::mm", "2"),
        ("backward", "aten::threshold_backward", "1.0"),
        ("backward", "aten::convolution_backward", "0"),
        ("optimizer", "aten::add_", ""),
    ):
        assert expected in found, expected
    names = [name for _, name, _ in found]
    assert not {"aten::conv2d", "aten::linear", "aten::flatten", "aten::view", "aten::mkldnn_convolution"} & {*names}


def test_an_operator_of_a_backward_pass_knows_the_one_that_made_its_node(collected: Any) -> None:
    """New threads number their nodes alike; each runs the backward pass of the other's graph."""
    both, losses = threading.Barrier(2), dict[bool, torch.Tensor]()

    def train(has_sine: bool) -> None:
        both.wait(60)
        x = torch.ones(3, requires_grad=True)
        losses[has_sine] = (x.sin() if has_sine else x.cos()).sum()
        both.wait(60)
        losses[not has_sine].backward()

    def run() -> None:
        threads = [threading.Thread(target=train, args=(has_sine,)) for has_sine in (False, True)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    rows = collected(run)
    made = {row["id"]: row["operator"] for row in rows}
    found = {(row["node"], made[row["maker"]]) for row in rows if row["node"] in ("SinBackward0", "CosBackward0")}
    assert found == {("SinBackward0", "aten::sin"), ("CosBackward0", "aten::cos")}


def test_an_operator_of_python_counts_as_one(collected: Any) -> None:
    @torch.library.custom_op("test_collector::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x + x

    assert [row["operator"] for row in collected(lambda: twice(torch.ones(2)))] == ["aten::ones", "test_collector::twice"]


def test_views_make_no_data(collected: Any) -> None:
    x = torch.ones(2, 3)
    assert collected(lambda: [x.view(6), x.t(), x[0], torch.ops.aten._unsafe_view(x, [3, 2]), x.detach()]) == []


def test_what_torch_compile_runs_while_it_compiles_is_no_operator(collected: Any) -> None:
    """Also after torch._dynamo.reset(), which forgets everybody's callbacks, in other threads, and after what cannot be compiled."""
    import torch._dynamo

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        torch.ones(3).cos()
        if len(graph.graph.nodes) > 3:
            raise ValueError
        return graph.forward

    def compiles() -> None:
        torch.compile(torch.neg, backend=backend)(torch.ones(2))

    def runs() -> None:
        compiles()
        torch._dynamo.reset()
        with pytest.raises(torch._dynamo.exc.BackendCompilerFailed):
            torch.compile(lambda x: x.neg().neg(), backend=backend)(torch.ones(2))
        compiles()
        torch._dynamo.reset()
        thread = threading.Thread(target=compiles)
        thread.start()
        thread.join()

    compiles()  # torch exchanges a handler of its own
    torch._dynamo.reset()
    before = [*compile_trace.LOGGER.handlers]
    assert [row["operator"] for row in collected(runs)] == [
        "aten::ones",
        "aten::neg",
        "aten::ones",
        *["aten::ones", "aten::neg"] * 2,
    ]
    torch._dynamo.reset()
    TESTED.load(None)
    assert before == compile_trace.LOGGER.handlers


@pytest.mark.full
def test_ten_thousand_steps_hold_no_memory(collected: Any) -> None:
    x, w = torch.ones(4, 4, requires_grad=True), torch.ones(4, 4, requires_grad=True)

    def resident() -> int:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * 4096

    def steps(count: int) -> None:
        for _ in range(count):
            y = torch.mm(x, w)
            for _ in range(10):
                y = y.neg()
            y.sum().backward()

    class Forgets(Listens):
        def take(self, rows: list[Row]) -> None:
            pass

    TESTED.load(Forgets(inputs=1, outputs=1, statistics=1, digests=1, recent=1, overflow=3))
    steps(6000)  # more nodes than are remembered
    before = resident()
    steps(10_000)
    assert resident() - before < 4 << 20


def test_a_forked_process_has_nothing_of_what_waits(tmp_path: Path) -> None:
    session = {"enable_dump": True, "dump_path": str(tmp_path), "dump_data": "stats"}
    with msctx.context(session=session):
        x = torch.ones(3)
        for _ in range(100):
            x = x + 1
        if (child := os.fork()) == 0:
            for _ in range(600):
                torch.ones(3) * 2
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    (table,) = tmp_path.rglob("statistic.csv")
    names = [line.split(",")[1] for line in table.read_text().splitlines()]
    assert len(names) == len({*names}) == 102


# --- values -------------------------------------------------------------------------------------------------------------


DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool]


@pytest.mark.parametrize(
    ("given", "least", "largest"),
    [
        (torch._neg_view(torch.tensor([1.0, 2.0])), -2.0, -1.0),
        (torch.tensor([1 + 2j, 3 + 4j]).conj(), -4.0, 3.0),
        (torch.tensor([1 + 2j, 3 + 4j]).conj().imag, -4.0, -2.0),
        (torch._neg_view(torch.tensor([[1.0], [2.0]])).expand(2, 3), -2.0, -1.0),
    ],
)
def test_signs_that_memory_does_not_hold_count(given: torch.Tensor, least: float, largest: float, collected: Any) -> None:
    (row,) = collected(lambda: given.clone())
    for tensor in (row["inputs"][0], row["outputs"][0]):
        assert (tensor["min"], tensor["max"]) == (least, largest)
        assert tensor["count"] == given.numel() * (2 if given.is_complex() else 1)


def laid_out(x: torch.Tensor, how: str) -> torch.Tensor:
    return {
        "contiguous": x,
        "channels_last": x.contiguous(memory_format=torch.channels_last),
        "sliced": torch.cat([x, x], -1)[..., : x.shape[-1]],
        "transposed": x.transpose(1, 3).contiguous().transpose(1, 3),
        "expanded": x[:1].expand_as(x),
    }[how]


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.integers(0, 5), min_size=4, max_size=4).map(tuple),
    st.sampled_from(DTYPES),
    st.sampled_from(["contiguous", "channels_last", "sliced", "transposed", "expanded"]),
    st.integers(0, 99),
)
def test_statistics_of_any_tensor(collected: Any, shape: Any, dtype: torch.dtype, how: str, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(shape, generator=generator) * 10
    values[torch.rand(shape, generator=generator) < 0.1] = float("nan")
    values[torch.rand(shape, generator=generator) < 0.1] = -float("inf")
    x = laid_out(values.to(dtype) if dtype.is_floating_point else values.nan_to_num(0, 0, 0).abs().to(dtype), how)
    (row,) = [row for row in collected(lambda: torch.fliplr(x) if x.dim() > 1 else x) if row["operator"] == "aten::flip"]
    (found,) = row["inputs"]
    exact = x.double().numpy()
    finite = exact[np.isfinite(exact)]
    counts = (exact.size, np.isnan(exact).sum(), (exact == -np.inf).sum(), (exact == 0).sum(), (exact < 0).sum())
    assert tuple(found[key] for key in ("count", "nan", "negative_inf", "zero", "negative")) == counts
    if len(finite):
        assert (found["min"], found["max"]) == (finite.min(), finite.max())
        assert found["mean"] == pytest.approx(finite.mean(), rel=1e-9, abs=1e-9)
        assert found["l2"] == pytest.approx(np.sqrt((finite**2).sum()), rel=1e-9)


def digest(collected: Any, x: torch.Tensor) -> int:
    (row,) = [row for row in collected(lambda: torch.neg(x), inputs=1, digests=1) if row["operator"] == "aten::neg"]
    return int(row["inputs"][0]["digest"])


def test_a_digest_is_of_values_and_their_places(collected: Any) -> None:
    x = torch.randn(2, 3, 4, 5)
    before = digest(collected, x)
    for how in ("channels_last", "sliced", "transposed"):
        assert digest(collected, laid_out(x, how)) == before
    for other in (x[:1].expand(2, 3, 4, 5), torch.view_as_complex(x[..., :4].reshape(2, 3, 4, 2, 2).contiguous()).mT.conj()):
        assert digest(collected, other) == digest(collected, other.resolve_conj().contiguous())
    assert digest(collected, x.reshape(2, 3, 5, 4)) != before
    assert digest(collected, x.flip(3)) != before
    swapped = x.clone()
    swapped[0, 0, 0, :2] = x[0, 0, 0, [1, 0]]
    assert digest(collected, swapped) != before
    x[1, 2, 3, 4] = torch.nextafter(x[1, 2, 3, 4], torch.tensor(9.0))
    assert digest(collected, x) != before
