"""What the collector sees of operators: names, modules, directions; and that it is gone when nobody asks."""

from __future__ import annotations

import copy
import os
import pickle
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from listeners import Listens
from torch import nn
from torch.nn import functional as fn
from torch.utils.checkpoint import checkpoint

import msctx
from msctx.observers import collector
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
    assert collector._readers == {}


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
    others = [Chooses(**asked) for asked in asks]
    for number, other in enumerate(others):
        collector.put(f"other {number}", other)
    rows = collected(lambda: torch.ones(3, dtype=torch.bfloat16).exp().sin(), outputs=1, digests=1)
    for number in range(len(others)):
        collector.put(f"other {number}", None)

    def read(rows: list[Row]) -> list[tuple[str, set[str], set[str]]]:
        return [(row["operator"], has(row["inputs"]), has(row["outputs"])) for row in rows]

    def has(tensors: list[dict[str, Any]]) -> set[str]:
        return {key for one in tensors for key in ("digest", "min", "file") if one.get(key)}

    assert read(rows[-2:]) == [("aten::exp", set(), {"digest"}), ("aten::sin", set(), {"digest"})]
    assert read(others[0].rows) == [("aten::exp", {"min"}, set())]
    assert read(others[1].rows) == [("aten::exp", {"file"}, {"file"})]
    assert read(others[2].rows) == [("aten::exp", set(), {"file"})]


def test_a_checkpoint_and_errors_keep_modules_right(collected: Any) -> None:
    net = model()

    def run() -> None:
        with pytest.raises(RuntimeError):
            net(torch.ones(2, 1, 9, 9))
        x = torch.ones(2, 1, 8, 8, requires_grad=True)
        checkpoint(net, x, use_reentrant=False).sum().backward()
        torch.ones(3) * 2

    with watched(net):
        rows = collected(run)
    assert [row["module"] for row in rows if row["operator"] == "aten::convolution"] == ["0"] * 3
    assert [row["module"] for row in rows if row["operator"] == "aten::mul"] == [""]
    assert {row["module"] for row in rows if row["operator"] == "aten::convolution_backward"} == {"0"}
    assert {row["module"] for row in rows if row["operator"] == "aten::mm"} == {"2"}, "they run after what the node calls again"


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


@pytest.mark.parametrize("depth", [1, 2])
def test_operators_under_a_gradient_are_those_without(depth: int, collected: Any) -> None:
    """With their values, once each; those of the backward pass know which have made their nodes."""
    x = torch.tensor([0.1, 0.2, 0.3])

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.stack([x.sin(), x]).cos().sum()

    def differentiated(x: torch.Tensor, times: int) -> torch.Tensor:
        return torch.func.grad(differentiated)(x, times - 1).sum() if times else function(x)

    def values(rows: list[Row]) -> list[tuple[str, int]]:
        return [(row["operator"], row["outputs"][0]["digest"]) for row in rows]

    rows = collected(lambda: differentiated(x, depth))
    forward = [row for row in rows if row["direction"] == "forward"]
    assert values(forward)[:4] == values(collected(lambda: function(x)))
    assert [row["operator"] for row in forward].count("aten::sin") == 1
    assert len({row["id"] for row in rows}) == len(rows)
    made = {row["id"]: row["operator"] for row in rows}
    found = {(row["node"], made.get(row["maker"])) for row in rows if row["node"] in ("SinBackward0", "CosBackward0")}
    assert {("SinBackward0", "aten::sin"), ("CosBackward0", "aten::cos")} <= found


def test_rows_of_a_batch_that_runs_one_by_one_have_numbers_of_their_own(collected: Any) -> None:
    """An operator without a rule for batches."""
    lengths = torch.tensor([2])
    rows = collected(lambda: torch.vmap(lambda x: torch.segment_reduce(x, "sum", lengths=lengths))(torch.ones(3, 2)))
    found = [row["id"] for row in rows if row["operator"] == "aten::segment_reduce"]
    assert len(found) == len({*found}) == 3


def test_the_algorithm_that_ran(collected: Any) -> None:
    x, w = torch.ones(1, 1, 5, 5), torch.ones(1, 1, 3, 3)
    with msctx.context(conv_fprop_algo="gemm"):
        rows = collected(lambda: fn.conv2d(x, w))
    assert [row["algorithm"] for row in rows if row["operator"] == "aten::convolution"] == ["gemm"]


def test_compiled_code_has_no_breaks_and_is_compiled_once_for_observers(collected: Any) -> None:
    import torch._dynamo
    from torch._dynamo.utils import counters

    net = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(12)))
    compiled = torch.compile(net, backend="eager")
    counters.clear()
    with watched(net):
        for _ in range(3):
            rows = collected(lambda: compiled(torch.ones(2, 4)))
            compiled(torch.ones(2, 4))
    assert counters["stats"]["unique_graphs"] == 1, "with observers and without"
    assert not counters["graph_break"]
    assert [row["operator"] for row in rows].count("aten::addmm") == 12
    torch._dynamo.reset()


def test_views_make_no_data(collected: Any) -> None:
    x = torch.ones(2, 3)
    assert collected(lambda: [x.view(6), x.t(), x[0], torch.ops.aten._unsafe_view(x, [3, 2]), x.detach()]) == []


@pytest.mark.parametrize("run", [lambda: torch.ones(2) + 1, lambda: torch.relu(torch.full((2,), 3.0)).sum()])
def test_fake_tensors_run_no_operators(run: Callable[[], object], collected: Any) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    def runs() -> None:
        torch.neg(torch.ones(1))
        with FakeTensorMode():
            run()
        torch.neg(torch.ones(1))

    rows = collected(runs)
    assert [row["operator"] for row in rows] == ["aten::ones", "aten::neg"] * 2
    assert [row["id"] - rows[0]["id"] for row in rows] == [0, 1, 2, 3]


def test_what_torch_compile_runs_while_it_compiles_is_no_operator(collected: Any) -> None:
    """Also after torch._dynamo.reset(), which forgets everybody's callbacks."""
    import torch._dynamo

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        torch.ones(3).cos()
        return graph.forward

    def runs() -> None:
        torch._dynamo.reset()
        torch.compile(torch.neg, backend=backend)(torch.ones(2))

    assert [row["operator"] for row in collected(runs)] == ["aten::ones", "aten::neg"]
    torch._dynamo.reset()
    torch.compile(torch.neg, backend=backend)(torch.ones(2))
    install = torch._dynamo.callback.CompilationCallbackHandler.install_callbacks
    assert install.__module__ != "msctx.observers.compilations"
    torch._dynamo.reset()


@pytest.mark.parametrize(("more", "module"), [(32_000, "0"), (66_000, "")])
def test_the_modules_of_the_last_nodes_are_remembered(more: int, module: str, collected: Any) -> None:
    """As the guide states: 32,768 at least, 65,536 at most. An older one is computed all the same, and counts for no module."""
    net, x = nn.Sequential(nn.Sigmoid()), torch.ones(1, requires_grad=True)

    def runs() -> None:
        y = net(x)
        z = x * 1
        for _ in range(more):
            z.neg_()
        y.backward()

    with watched(net):
        rows = collected(runs, outputs=1)
    found = [(row["module"], row["maker"] >= 0) for row in rows if row["operator"] == "aten::sigmoid_backward"]
    assert found == [(module, bool(module))]


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

    collector.put("test", Forgets(inputs=1, outputs=1, statistics=1, digests=1, recent=1, overflow=3))
    steps(6000)  # more nodes than are remembered
    before = resident()
    steps(10_000)
    assert resident() - before < 4 << 20


# --- threads, forks, odd tensors ----------------------------------------------------------------------------------------


@pytest.mark.full
def test_layers_are_chosen_while_other_threads_compute_and_steps_end(tmp_path: Path) -> None:
    """The library calls Python's functions from any thread: they may not go meanwhile."""
    stop, x = threading.Event(), torch.ones(8, 8)

    def work() -> None:
        while not stop.is_set():
            torch.mm(x, x)
            torch.relu(x)

    session = {"enable_dump": True, "dump_path": str(tmp_path), "dump_data": "stats", "dump_layer": "relu"}
    with msctx.context(session=session):
        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for _ in range(200):
            msctx.step()
        stop.set()
        for thread in threads:
            thread.join()


def test_watching_and_entering_in_two_threads_do_not_wait_for_each_other() -> None:
    stop = threading.Event()

    def watches() -> None:
        while not stop.is_set():
            with msctx.context() as ctx:
                ctx.watch(nn.Sequential(*[nn.Linear(1, 1) for _ in range(30)]))

    threads = [threading.Thread(target=watches, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(200):
        with msctx.context(op_timeout=60):
            pass
    stop.set()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def test_released_storages_and_nested_tensors_are_named_and_not_read(collected: Any) -> None:
    base = torch.ones(1000)
    view = base[400:]
    base.untyped_storage().resize_(0)
    rows = collected(lambda: torch.zeros_like(view))
    assert [row["operator"] for row in rows] == ["aten::zeros_like"]
    assert "min" not in rows[0]["inputs"][0]
    nested = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)])
    assert any(row["operator"] == "aten::mul" for row in collected(lambda: nested * 2))


def test_a_model_is_copied_and_pickled_under_observers(collected: Any) -> None:
    net = model()

    def run() -> None:
        for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
            other(torch.ones(2, 1, 8, 8))

    with watched(net):
        rows = collected(run)
    assert {row["module"] for row in rows} == {""}


def test_ctrl_c_in_a_forward_pass_leaves_the_names_right(collected: Any) -> None:
    class Stops(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise KeyboardInterrupt

    net = nn.Sequential(nn.Sequential(Stops()), nn.ReLU())

    def run() -> None:
        with pytest.raises(KeyboardInterrupt):
            net[0](torch.ones(1))
        net[1](torch.ones(1))
        torch.ones(1).exp()

    with watched(net):
        rows = collected(run)
    assert [row["module"] for row in rows if row["operator"] in ("aten::relu", "aten::exp")] == ["1", ""]


def test_a_checkpoint_and_errors_of_hooks_pass_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def refuses(_: torch.Tensor) -> torch.Tensor:
        raise ValueError("refused")

    x = torch.ones(3, requires_grad=True)
    with warnings.catch_warnings(record=True) as found, msctx.context(session={"enable_exception_dump": 1}):
        checkpoint(lambda a: (a * 2).sin(), x, use_reentrant=False).sum().backward()
        assert not found
        with pytest.raises(ValueError, match="refused"), torch.autograd.graph.saved_tensors_hooks(refuses, refuses):
            x.sin()


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


@pytest.mark.full
def test_threads_that_have_ended_hold_no_memory(collected: Any) -> None:
    w = torch.ones(3, requires_grad=True)

    def resident() -> int:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * 4096

    def run() -> None:
        def threads(count: int) -> None:
            for _ in range(count):
                thread = threading.Thread(target=lambda: w * 2)
                thread.start()
                thread.join()

        threads(50)
        before = resident()
        threads(500)
        assert resident() - before < 16 << 20

    collected(run, overflow=3)
