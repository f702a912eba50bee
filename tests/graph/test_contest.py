"""PyTorch's own ways of a graph of inference against ours: which one runs, and why. The clock decides by what a test says."""

from __future__ import annotations

import gc
import re
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from fusion_programs import generated
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

import msctx
from msctx.graph import contest, inductor_compile, report
from msctx.native import core, tuning_file, tuning_in_core
from msctx.native.tuning_in_core import Permission

REQUESTED = {"mode": "GRAPH_MODE", "conv_fprop_algo": "performance", "frozen_weights": True}
SECONDS = {contest.OURS: 1.0, contest.FROZEN: 2.0, contest.EAGER: 3.0}


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)).eval()


def image() -> torch.Tensor:
    return torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Each way really runs, and takes so many seconds; returns the ways that have run, in their order."""

    def set_to(**handicaps: float) -> list[str]:
        ran: list[str] = []
        ways = dict(zip(("ours", "frozen", "eager"), SECONDS, strict=True))
        taken = SECONDS | {ways[name]: value for name, value in handicaps.items()}

        def seconds(run: Any) -> float:
            run()
            ran.extend(run.args)
            return taken[ran[-1]]

        monkeypatch.setattr(contest, "seconds", seconds)
        monkeypatch.setattr(contest, "MOST", 5)
        return ran

    return set_to


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """What inductor has compiled: whether with freezing."""
    made: list[bool] = []
    compile_fx = vars(inductor_compile)["compile_fx"]

    def noted(*args: Any, **how: Any) -> Any:
        made.append(bool(torch._inductor.config.freezing))
        return compile_fx(*args, **how)

    monkeypatch.setattr(inductor_compile, "compile_fx", noted)
    return made


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[contest._Graph]:
    """Those that are compiled."""
    found: list[contest._Graph] = []
    begin = contest._Graph.__init__

    def noted(self: contest._Graph, *args: Any) -> None:
        found.append(self)
        begin(self, *args)

    monkeypatch.setattr(contest._Graph, "__init__", noted)
    return found


def way(context: msctx.Context) -> str:
    (found,) = (row.way for row in context.graphs())
    return str(found)


@pytest.mark.parametrize(
    ("handicaps", "words"),
    [
        ({}, "msctx: 2.00 of inductor with freezing, A/A 1.00"),
        ({"frozen": 0.5}, "inductor with freezing: 2.00 of msctx, A/A 1.00"),
        ({"eager": 0.25}, "eager: 4.00 of msctx, A/A 1.00"),
    ],
    ids=["ours", "frozen", "eager"],
)
def test_the_fastest_runs_and_a_later_process_has_it_alone(
    handicaps: dict[str, float],
    words: str,
    clock: Callable[..., list[str]],
    own_tuning_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    compilations: list[bool],
) -> None:
    ran, model, x = clock(**handicaps), net(), image()
    with torch.no_grad():
        right = model(x)
    with msctx.context(**REQUESTED) as ctx, torch.no_grad():
        found = [model(x) for _ in range(3)]
    assert way(ctx) == words
    assert {*ran} == {*SECONDS}
    chosen = words.partition(":")[0]
    (calls,) = {row.calls for row in ctx.choices()}
    assert calls == (3 if chosen == contest.OURS else 1), "the runs of the contest are not counted, nor those of PyTorch's ways"
    for one in found:
        torch.testing.assert_close(one, right, rtol=1e-4, atol=1e-5)
    (entry,) = (
        one for one in tuning_file.read(own_tuning_file)[tuning_file.stamp(core.load())].values() if one.direction == "graph"
    )
    assert entry.ran == chosen

    ran.clear()
    torch._dynamo.reset()
    monkeypatch.setattr(tuning_in_core, "_tables", {})  # as in another process
    del compilations[:]
    with msctx.context(**REQUESTED) as ctx, torch.no_grad(), generated() as code:
        torch.testing.assert_close(model(x), right, rtol=1e-4, atol=1e-5)
    assert not re.search(r"\bs\d+\b", "".join(code)), "it is compiled for this shape alone: of others inductor packs no weights"
    assert any(code) == (chosen != contest.EAGER)
    assert way(ctx) == f"{words}, from the tuning file"
    assert compilations == {contest.OURS: [False], contest.FROZEN: [True], contest.EAGER: []}[chosen], (
        "the winner alone is compiled"
    )
    assert not ran


def test_another_process_knows_the_graph_again(
    clock: Callable[..., list[str]], tmp_path: Path, passes: Callable[..., str]
) -> None:
    clock(frozen=0.5)
    path = tmp_path / "tuning.json"
    with msctx.context(**REQUESTED, tuning_file=path), torch.no_grad():
        net()(image())
    code = f"""
    import sys
    sys.path.insert(0, {str(Path(__file__).parent)!r})
    import torch, msctx
    from test_contest import REQUESTED, image, net
    with msctx.context(**REQUESTED, tuning_file={str(path)!r}) as ctx, torch.no_grad():
        net()(image())
    print(ctx.graphs()[0].way)
    """
    assert passes(code).endswith("inductor with freezing: 2.00 of msctx, A/A 1.00, from the tuning file\n")


def test_weights_that_change_and_other_models_are_seen(
    clock: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock(frozen=0.5)
    monkeypatch.setattr(contest, "SETS", 3)
    model, other, x = net(), net(), image()
    with torch.no_grad():
        other.get_parameter("4.weight").mul_(5)
        rights = [one(x) for one in (model, other)]
    with msctx.context(**REQUESTED) as ctx, torch.no_grad():
        model(x)
        with warnings.catch_warnings():
            warnings.simplefilter("error", msctx.MsctxWarning)
            found = other(x)
        torch.testing.assert_close(found, rights[1], rtol=1e-4, atol=1e-5)
        other.get_buffer("1.running_mean").add_(1)
        with pytest.warns(msctx.MsctxWarning, match="frozen_weights: weights have changed"):
            changed = other(x)
        torch.testing.assert_close(model(x), rights[0], rtol=1e-4, atol=1e-5)
    assert ctx.choices()[0].calls == 2, "ours, in the first call and the last"
    assert way(ctx) == "msctx: the weights were others 3 times"
    with torch.no_grad():
        torch.testing.assert_close(changed, other(x), rtol=1e-4, atol=1e-5)
    assert not torch.equal(changed, found)


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.total: torch.Tensor
        self.register_buffer("total", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.conv(x)
        self.total.add_(result.mean())
        return result


def test_what_writes_its_input_is_measured_on_copies_and_what_writes_its_weights_not_at_all(
    clock: Callable[..., list[str]],
) -> None:
    ran = clock()
    conv, counting, x = nn.Conv2d(3, 4, 3), Counting(), image()
    with msctx.context(**REQUESTED) as ctx, torch.no_grad():
        found = msctx.jit(lambda given: conv(given.add_(1)))(given := x.clone())
        assert ran
        ran.clear()
        counting(x)
    torch.testing.assert_close(given, x + 1)
    torch.testing.assert_close(found, conv(x + 1), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(counting.total, counting.conv(x).mean())
    assert not ran
    assert [row.way.partition(",")[0] for row in ctx.graphs()] == [
        "msctx: 2.00 of inductor with freezing",
        "msctx: it changes its weights",
    ]


@pytest.mark.parametrize(
    "options",
    [
        {"frozen_weights": False},
        {"conv_fprop_algo": "normal"},
        {"matmul_algo": "strict"},
        {"conv_algo_rules": "dims=2: fprop=performance"},
        {"deterministic": "ON"},
        {"thread_invariant": True},
        {"batch_invariant": True},
        {"enable_graph_kernel": False},
        {"precision_mode": "allow_fp32_to_fp16"},
    ],
    ids=lambda options: next(iter(options)),
)
def test_options_forbid_it(options: dict[str, Any]) -> None:
    def races(**more: Any) -> Any:
        rows = msctx.context(**REQUESTED | more).plan.rows
        return next(row.assignments["graph.compilation"] for row in rows if row.option == "mode").races

    assert races() is not None
    assert races(**options) is None


def test_gradients_and_several_shapes_forbid_it(clock: Callable[..., list[str]]) -> None:
    ran = clock()
    model = nn.Conv2d(3, 4, 3)
    with msctx.context(**REQUESTED) as ctx:
        model(image())
    assert way(ctx) == "msctx: it may compute gradients"
    with msctx.context(**REQUESTED, compile_dynamic_mode=True) as ctx, torch.no_grad():
        model(image())
    assert way(ctx) == "msctx: it is for several shapes"
    assert not ran


def test_random_numbers_and_operators_of_the_program(clock: Callable[..., list[str]]) -> None:
    ran, calls = clock(), [0]

    def count(x: torch.Tensor) -> torch.Tensor:
        calls[0] += 1
        return x.clone()

    operator = torch.library.custom_op("graph_contest::count", count, mutates_args=())
    operator.register_fake(torch.clone)
    conv, x = nn.Conv2d(3, 4, 3), image()
    with msctx.context(**REQUESTED), torch.no_grad():
        msctx.jit(lambda x: torch.dropout(conv(x), 0.5, True))(x)
        msctx.jit(lambda x: operator(conv(x)))(x)
    assert calls == [1]
    assert not ran


def test_an_inner_block_is_as_if_alone(clock: Callable[..., list[str]]) -> None:
    clock(frozen=0.5)
    model, x = net(), image()
    with msctx.context(**REQUESTED) as ctx, torch.no_grad():
        model(x)
        with msctx.context(conv_fprop_algo="winograd") as inner:
            model(x)
        model(x)
    assert [row.ran for row in inner.choices()] == ["winograd"]
    assert way(inner) == ""
    assert [row.way.partition(":")[0] for row in ctx.graphs()] == ["inductor with freezing", ""]


@pytest.mark.parametrize("said", [Permission.BUSY, Permission.LATER, Permission.FOR_NEXT_RUN])
def test_ours_runs_while_nothing_may_be_measured(
    said: Permission, clock: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    ran, model, x = clock(frozen=0.5), net(), image()
    monkeypatch.setattr(contest, "PAUSE", 0.0)
    with msctx.context(**REQUESTED) as ctx, torch.no_grad():
        with monkeypatch.context() as patched:
            patched.setattr(tuning_in_core, "permission_of_graphs", lambda given: said)
            model(x)
        assert not ran
        assert way(ctx).startswith("msctx: not measured, ")
        model(x)
    assert way(ctx).startswith("inductor with freezing: 2.00 of msctx")
    assert report.of_process()[-1].way == way(ctx)


@pytest.mark.parametrize("inside", [False, True], ids=["between contexts", "in an inner one"])
def test_another_context_sees_weights_that_changed_unseen(
    inside: bool, clock: Callable[..., list[str]], compilations: list[bool]
) -> None:
    clock(frozen=0.5)
    with torch.inference_mode(inside):  # such weights have no version
        model = net()
    x, weight = image(), model.get_parameter("4.weight")

    def change(factor: float) -> None:
        with torch.inference_mode(inside):
            weight.data.copy_(weight * factor)

    with msctx.context(**REQUESTED) as ctx, torch.no_grad():
        found = model(x)
        del compilations[:]
        if inside:
            with msctx.context(frozen_weights=False):
                change(1)
            torch.testing.assert_close(model(x), found, rtol=1e-4, atol=1e-5)
            assert compilations == [], "the bytes are the same"
            with msctx.context(frozen_weights=False):
                change(3)
            with pytest.warns(msctx.MsctxWarning, match="frozen_weights: weights have changed"):
                changed = model(x)
    if not inside:
        change(1)
        with msctx.context(**REQUESTED), torch.no_grad():
            torch.testing.assert_close(model(x), found, rtol=1e-4, atol=1e-5)
        assert compilations == [], "the bytes are the same"
        change(3)
        with msctx.context(**REQUESTED), torch.no_grad():
            with pytest.warns(msctx.MsctxWarning, match="frozen_weights: weights have changed"):
                changed = model(x)
            torch.testing.assert_close(model(x), changed)
    assert compilations == [True]
    assert way(ctx).startswith("inductor with freezing")
    with torch.no_grad():
        torch.testing.assert_close(changed, model(x), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(changed, found)


def test_weights_that_no_longer_record_gradients_are_compared_at_each_call(clock: Callable[..., list[str]]) -> None:
    clock(frozen=0.5)
    model, x = net(), image()
    for requires_grad in (True, False):
        model.requires_grad_(requires_grad)
        with msctx.context(**REQUESTED) as ctx, torch.no_grad():
            model(x)
            assert "inductor with freezing" in way(ctx) or requires_grad
            if not requires_grad:
                model.get_parameter("4.weight").mul_(2)
                with pytest.warns(msctx.MsctxWarning, match="frozen_weights: weights have changed"):
                    changed = model(x)
    with torch.no_grad():
        torch.testing.assert_close(changed, model(x), rtol=1e-4, atol=1e-5)


def test_constants_go_with_the_model(clock: Callable[..., list[str]], graphs: list[contest._Graph]) -> None:
    clock(frozen=0.5)
    model, x = net(), image()
    with msctx.context(**REQUESTED), torch.no_grad():
        model(x)
        model(x)
        (graph,) = graphs
        assert graph.frozen is not None
        weight = model.get_parameter("4.weight")
        gone = weakref.ref(weight), weakref.ref(graph.frozen.run)
        storage = StorageWeakRef(weight.untyped_storage())
        del model, weight
        gc.collect()
        assert [one() for one in gone] == [None, None]
        assert graph.frozen is None
        assert storage.expired()


def test_two_threads_make_the_code_once(
    clock: Callable[..., list[str]], graphs: list[contest._Graph], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock(frozen=0.5)
    model, x, calls = net(), image(), list[Any]()
    with msctx.context(**REQUESTED), torch.no_grad():
        model(x)
        (graph,) = graphs
        with monkeypatch.context() as patched:
            patched.setattr(graph, "_theirs", lambda way, args: calls.append(args))
            model(x)
        both, freeze, made = threading.Barrier(2), graph._freeze, list[Any]()

        def slowly(args: Any) -> Any:
            time.sleep(0.2)  # the other one has come by then
            made.append(freeze(args))
            return made[-1]

        def first_call() -> Any:
            with torch.no_grad():
                both.wait()
                return graph._theirs(contest.FROZEN, calls[0])

        graph.frozen = None
        monkeypatch.setattr(graph, "_freeze", slowly)
        with ThreadPoolExecutor() as pool:
            found = [one.result() for one in [pool.submit(first_call) for _ in range(2)]]
    assert found == made * 2


@pytest.mark.parametrize("option", ["fusion_switch_file", "save_graphs", "op_debug_config", "export_compile_stat"])
def test_what_is_about_our_code_forbids_it(
    option: str, clock: Callable[..., list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = clock(frozen=0.5)
    monkeypatch.chdir(tmp_path)
    Path("fusion.json").write_text('{"Switch": {"UBFusion": {"ALL": "off"}}}')
    Path("debug.cfg").write_text("op_debug_config=dump_cce\n")
    values = {"fusion_switch_file": "fusion.json", "save_graphs": 1, "op_debug_config": "debug.cfg", "export_compile_stat": 1}
    with msctx.context(**REQUESTED, **{option: values[option]}) as ctx, torch.no_grad():
        net()(image())
    assert way(ctx) == ""
    assert not ran


def test_a_buffer_with_a_nan_and_a_weight_without_strides(clock: Callable[..., list[str]]) -> None:
    clock()
    model, x = net(), image()
    model.get_buffer("1.running_mean").fill_(torch.nan)
    weight = nn.Parameter(torch.eye(3).to_mkldnn(), requires_grad=False)
    with msctx.context(**REQUESTED) as ctx, torch.no_grad():
        model(x)
        assert way(ctx) == "msctx: 2.00 of inductor with freezing, A/A 1.00"
        found = msctx.jit(lambda given, weight: (given.relu(), weight.detach()))(x, weight)[0]
    torch.testing.assert_close(found, x.relu())
