"""What the collector sees of operators: names, modules, directions; and that it is gone when nobody asks."""

from __future__ import annotations

import copy
import os
import pickle
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from listeners import TESTED, Listens
from torch import nn
from torch.nn import functional as fn

import msctx
from msctx.observers import collector, compile_trace
from msctx.observers.collector import Row


def model() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.Sequential(nn.ReLU(), nn.Flatten()), nn.Linear(72, 3))


def watched(net: nn.Module) -> msctx.Context:
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


def test_nothing_is_seen_outside_and_nothing_is_left(collected: Any) -> None:
    net = model()
    with watched(net):
        assert collected(lambda: torch.ones(1) + 1)
        assert not [m for m in net.modules() if m._forward_hooks or m._forward_pre_hooks]
    torch.ones(1) + 1
    assert not collector.is_on()


def test_each_reader_gets_what_it_asked_for_and_only_that(collected: Any, tmp_path: Path) -> None:
    class Chooses(Listens):
        is_choosy = True

        def wants(self, operator: str, *_: object) -> int:
            return int(operator == "aten::exp")

        @property
        def folder(self) -> Path:
            return tmp_path

    asks = (
        {"inputs": 1, "statistics": 1},
        {"inputs": 1, "outputs": 1, "tensors": 1},
        {"outputs": 1, "tensors": collector.BITS},
    )
    others = [Chooses(**requested) for requested in asks]
    for other in others:
        other.begin()
    rows = collected(lambda: torch.ones(3, dtype=torch.bfloat16).exp().sin(), outputs=1, digests=1)
    for other in others:
        other.end()

    def read(rows: list[Row]) -> list[tuple[str, set[str], set[str]]]:
        return [(row["operator"], has(row["inputs"]), has(row["outputs"])) for row in rows]

    def has(tensors: list[dict[str, Any]]) -> set[str]:
        return {key for one in tensors for key in ("digest", "min", "file") if one.get(key)}

    assert read(rows[-2:]) == [("aten::exp", set(), {"digest"}), ("aten::sin", set(), {"digest"})]
    assert read(others[0].rows) == [("aten::exp", {"min"}, set())]
    assert read(others[1].rows) == [("aten::exp", {"file"}, {"file"})]
    assert read(others[2].rows) == [("aten::exp", set(), {"file"})]


def test_other_threads_are_seen_and_their_modules_are_their_own(collected: Any) -> None:
    net = model()

    def run() -> None:
        threads = [threading.Thread(target=lambda: net(torch.ones(2, 1, 8, 8)).sum().backward()) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    with watched(net):
        rows = collected(run)
    found = [(row["module"], row["thread"]) for row in rows if row["operator"] == "aten::convolution_backward"]
    assert [module for module, _ in found] == ["0"] * 3
    assert len({thread for _, thread in found}) == 3


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


def test_subclasses_and_transforms_are_seen_by_what_computes_them(collected: Any) -> None:
    x = torch.ones(3, 4)
    rows = collected(lambda: torch.vmap(lambda row: (row * 2).sum())(x))
    assert ("aten::mul", "3x4") in [(row["operator"], row["outputs"][0]["shape"]) for row in rows]


def test_the_algorithm_that_ran(collected: Any) -> None:
    x, w = torch.ones(1, 1, 5, 5), torch.ones(1, 1, 3, 3)
    with msctx.context(conv_fprop_algo="gemm"):
        rows = collected(lambda: fn.conv2d(x, w))
    assert [row["algorithm"] for row in rows if row["operator"] == "aten::convolution"] == ["gemm"]


def test_compiled_code_has_no_breaks_and_is_compiled_once_more_for_observers(collected: Any) -> None:
    import torch._dynamo
    from torch._dynamo.utils import counters

    net = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(12)))
    compiled = torch.compile(net, backend="eager")
    counters.clear()
    with watched(net):
        for _ in range(3):
            rows = collected(lambda: compiled(torch.ones(2, 4)))
            compiled(torch.ones(2, 4))
    assert counters["stats"]["unique_graphs"] == 2, "with observers and without"
    assert not counters["graph_break"]
    assert [row["operator"] for row in rows].count("aten::addmm") == 12
    torch._dynamo.reset()


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


def test_a_model_is_copied_and_pickled_under_observers(collected: Any) -> None:
    net = model()

    def run() -> None:
        for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
            other(torch.ones(2, 1, 8, 8))

    with watched(net):
        rows = collected(run)
    assert {row["module"] for row in rows} == {""}


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
