"""Which calls are compiled, how, and how that is reported; seen by Dynamo's counters."""

from __future__ import annotations

import gc
import inspect
import logging
import re
import threading
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest
import torch
from graph_programs import EAGER_GRAPHS, Looping, Net, Talking, graphs, image
from torch import nn
from torch._dynamo.utils import counters
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import msctx
from msctx.graph import breaks, report


def test_the_outermost_module_is_compiled_once_and_only_inside() -> None:
    net, x = Net(), image()
    eager = deepcopy(net)
    net(x)
    assert graphs() == 0
    with msctx.context(**EAGER_GRAPHS) as ctx:
        results = [net(x) for _ in range(3)]
        assert graphs() == 1
    net(x)
    assert graphs() == 1
    assert nn.Module._compiled_call_impl is None
    torch.testing.assert_close(results, [eager(x) for _ in range(4)][1:])
    (row,) = ctx.graphs()
    assert row.function.partition(" (")[0] == "Net"  # numbered where another class of that name has been compiled
    assert row.operators == 6
    assert not row.breaks
    assert not row.recompiled
    assert row.where.startswith(Net.forward.__code__.co_filename)


def test_training_gives_the_gradients_of_eager_code() -> None:
    net, loss, x, y = Net(), nn.CrossEntropyLoss(), image(), torch.tensor([0, 1])
    eager = deepcopy(net)
    loss(eager(x), y).backward()
    with msctx.context(**EAGER_GRAPHS):
        loss(net(x), y).backward()
    assert graphs() == 2
    for one, other in zip(net.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)
    torch.testing.assert_close(net.norm.running_mean, eager.norm.running_mean)


def test_a_loss_made_anew_in_each_step_is_compiled_once() -> None:
    with msctx.context(**EAGER_GRAPHS):
        for _ in range(5):
            nn.MSELoss()(image(), image())
    assert graphs() == 1


@pytest.mark.full
def test_modules_of_one_class_do_not_share_the_limit_of_variants() -> None:
    with msctx.context(**EAGER_GRAPHS):
        for width in range(1, 20):
            nn.Sequential(*[nn.ReLU()] * width)(image())
    has_own_limit = "recompile_limit" in inspect.signature(torch.compile).parameters  # not in torch 2.11
    assert graphs() == (19 if has_own_limit else torch._dynamo.config.recompile_limit)


def test_inner_pynative_mode_is_eager_and_also_for_what_the_program_compiled() -> None:
    theirs = torch.compile(torch.sin, backend="eager")
    with msctx.context(**EAGER_GRAPHS):
        with msctx.context(mode="PYNATIVE_MODE"):
            Net()(image())
            theirs(image())
            assert graphs() == 0
        Net()(image())
        theirs(image())
    assert graphs() == 2


def test_hooks_run_and_are_captured() -> None:
    net, seen = Net(), []
    net.conv.register_forward_hook(lambda module, args, result: result + 1)
    net.register_forward_pre_hook(lambda module, args: seen.append(len(args)))
    expected = net(image())
    with msctx.context(**EAGER_GRAPHS):
        torch.testing.assert_close(net(image()), expected)
    assert len(seen) == 2
    assert graphs() == 1


def test_watched_models_are_compiled() -> None:
    net = Net()
    with msctx.context(conv_fprop_algo="gemm", **EAGER_GRAPHS) as ctx:
        ctx.watch(net)
        net(image())
        net(image())
    assert graphs() == 1
    (row,) = ctx.choices()
    assert (row.module, row.ran, row.calls) == ("conv", "gemm", 2)


def test_what_checkpoint_computes_again_runs_as_its_forward_did() -> None:
    net, x = nn.Sequential(nn.Linear(3, 3), nn.ReLU()), image(4, 3).requires_grad_()
    with msctx.context(**EAGER_GRAPHS):
        checkpoint(net, x, use_reentrant=False).sum().backward()
    assert graphs() == 1
    (expected,) = torch.autograd.grad(net(x).sum(), x)
    torch.testing.assert_close(x.grad, expected)


@pytest.mark.parametrize("how", ["own compile()", "torch.compile", "script", "trace", "fx"])
def test_what_the_program_captures_by_itself_is_left_alone(how: str) -> None:
    net: Any = Net().eval()
    x, ran = image(), list[Any]()
    expected = net(x)

    def own(graph: Any, inputs: Any) -> Any:
        ran.append(graph)
        return graph.forward

    with msctx.context(**EAGER_GRAPHS):
        if how == "own compile()":
            net.compile(backend=own)
        elif how == "torch.compile":
            net = torch.compile(net, backend=own)
        elif how == "script":
            net = torch.jit.script(net)
        elif how == "trace":
            net = torch.jit.trace(net, x)
        else:
            torch.fx.symbolic_trace(net)
        torch.testing.assert_close(net(x), expected)
    assert len(ran) == ("compile" in how)


def test_threads_compile_at_once() -> None:
    nets, found = [Net() for _ in range(4)], [None] * 4
    expected = [net(image()) for net in nets]
    with msctx.context(**EAGER_GRAPHS) as ctx:

        def work(i: int) -> None:
            found[i] = nets[i](image())

        threads = [threading.Thread(target=ctx.bind(work), args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    torch.testing.assert_close(found, expected)
    assert graphs() >= 1


# --- graph breaks -----------------------------------------------------------------------------------------------------


def test_lax_lists_breaks_with_line_and_what_to_change(capsys: pytest.CaptureFixture[str]) -> None:
    net, x = Talking(), image(2, 3)
    with msctx.context(**EAGER_GRAPHS) as ctx:
        torch.testing.assert_close(net(x), torch.relu(net.fc(x)))
    (found,) = ctx.graphs().breaks
    line = Talking.forward.__code__.co_firstlineno + 2
    assert found.where == f"{Talking.forward.__code__.co_filename}:{line}"
    assert "print" in found.reason
    assert any("print" in hint for hint in found.hints)
    assert "Net" not in str(ctx.graphs())
    assert f":{line}" in str(ctx.graphs())
    assert capsys.readouterr().out.count("here") == 1


def test_a_break_inside_of_torch_names_the_line_of_the_program_and_what_is_wrong() -> None:
    found = breaks.parse(
        "TypeError when making fake tensor call\n  Explanation: \n  Hint: Check it.\n\n"
        "  Developer debug context: TypeError <function loss at 0x7f28b8a32ca0>: loss() takes a tensor\n\nfrom user code:\n"
        '   File "train.py", line 3, in forward\n    return self.loss(x)\n'
        f'  File "{nn.modules.loss.__file__}", line 1400, in forward\n    return F.cross_entropy(\n'
    )
    assert found == breaks.Break("train.py:3", "TypeError <function loss>: loss() takes a tensor", ("Check it.",))


class Hooked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 2)
        self.fc.register_full_backward_hook(lambda *_: None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.fc(x)
        return result


def test_a_hook_of_a_module_is_the_reason_and_the_line_is_the_programs() -> None:
    """torch's explanation is empty there, and the line is its own."""
    where = f"{__file__}:{Hooked.forward.__code__.co_firstlineno + 1}"
    with msctx.context(**EAGER_GRAPHS) as ctx:
        Hooked()(torch.randn(2, 3, requires_grad=True)).sum().backward()
    found = ctx.graphs().breaks[0]
    assert found.where == where
    assert "backwards hooks" in found.reason
    with (
        msctx.context(jit_syntax_level="STRICT", **EAGER_GRAPHS),
        pytest.raises(msctx.GraphError, match=f"{re.escape(where)}: .*backwards hooks"),
    ):
        Hooked()(torch.randn(2, 3, requires_grad=True))


@pytest.mark.parametrize("folders", [5, 30])
def test_a_path_stays_on_one_line_of_the_table(folders: int) -> None:
    where = f"{'/a_long_name_of_a_folder' * folders}/model.py:12"
    row = report.Graph("0/0", "Net", where, 3, (), "reason " * 30, 1.0, "miss", "deterministic, autocast bfloat16", "")
    assert where in str(report.Graphs([row]))


def test_a_reason_that_ends_in_a_list_has_its_title_and_first_entry() -> None:
    model = nn.Sequential(nn.Linear(3, 2))
    with (
        msctx.context(jit_syntax_level="STRICT", **EAGER_GRAPHS),
        pytest.raises(msctx.GraphError, match=r"functorch tracing attempt: .*torch\.func\.vmap.* is not supported"),
    ):
        torch.func.vmap(model)(torch.randn(4, 3))


@pytest.mark.parametrize("transform", ["vmap", "grad"])
def test_a_call_from_a_transform_runs_eagerly_and_leaves_the_class_to_be_compiled(transform: str) -> None:
    """Dynamo gives up for good the code that it meets in a transform."""

    class Own(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(x).sum()

    net, x = Own(), torch.ones(2, 3)
    call = getattr(torch.func, transform)

    @msctx.jit
    def within(x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = call(net)(x)
        return result

    expected = call(net)(x)
    with msctx.context(**EAGER_GRAPHS) as ctx:
        with pytest.warns(
            msctx.MsctxWarning, match=f"torch.func.{transform} calls .*Own.* run eagerly.*inside a function of msctx.jit"
        ):
            torch.testing.assert_close(call(net)(x), expected)
        net(x)
        assert graphs() == 1
        torch.testing.assert_close(within(x), expected)
    assert graphs() == 2
    assert not [row for row in ctx.graphs() if row.failed]


def test_strict_names_line_reason_and_option() -> None:
    with (
        msctx.context(jit_syntax_level="STRICT", **EAGER_GRAPHS),
        pytest.raises(msctx.GraphError, match=r"graph_programs.py:\d+: .*print(.|\n)*jit_syntax_level='STRICT'"),
    ):
        Talking()(image(2, 3))


class Refusing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] > 2:
            raise KeyError("too many rows")
        result: torch.Tensor = self.fc(x)
        return result


def test_strict_leaves_the_programs_own_exceptions_as_they_are() -> None:
    with msctx.context(jit_syntax_level="STRICT", **EAGER_GRAPHS):
        with pytest.raises(KeyError, match="too many rows"):
            Refusing()(image(3, 3))
        assert Refusing()(image(2, 3)).shape == (2, 2)


class Reading(Refusing):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, 7]


class Joining(Refusing):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, "a"])  # type: ignore[list-item]


class Missing(Refusing):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.add(x, y=3)  # type: ignore[call-overload, no-any-return]


class Elsewhere(Refusing):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.ones(5, device="meta")


@pytest.mark.parametrize("syntax", ["LAX", "STRICT"])
@pytest.mark.parametrize("model", [Refusing, Reading, Joining, Missing, Elsewhere])
def test_what_is_wrong_with_arguments_is_reported_as_in_eager_code(
    model: type[nn.Module], syntax: str, pages: list[str]
) -> None:
    net, x = model(), image(2, 5)
    with pytest.raises((RuntimeError, IndexError, TypeError)) as eager:
        net(x)
    with msctx.context(jit_syntax_level=syntax, **EAGER_GRAPHS), pytest.raises(eager.type) as compiled:
        net(x)
    assert (compiled.type, str(compiled.value)) == (eager.type, str(eager.value))
    assert compiled.value.__context__ is None
    if syntax == "STRICT" or model in (Refusing, Reading):  # else torch's own frames run it behind a graph break
        assert dynamos(compiled) <= dynamos(eager)
    assert pages == []


def dynamos(caught: pytest.ExceptionInfo[Exception]) -> set[str]:
    return {path for entry in caught.traceback if "_dynamo" in (path := str(entry.path))}


@pytest.fixture
def pages() -> Iterator[list[str]]:
    """What torch logs of exceptions."""
    found: list[str] = []
    logger, handler = logging.getLogger("torch._subclasses.fake_tensor"), logging.Handler()
    handler.emit = lambda record: found.append(record.getMessage())  # type: ignore[method-assign]
    logger.addHandler(handler)
    yield found
    logger.removeHandler(handler)


def test_behind_a_graph_break_it_has_its_type_and_line_and_nothing_runs_twice(
    capsys: pytest.CaptureFixture[str], pages: list[str]
) -> None:
    class After(Talking):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            print("here")
            result: torch.Tensor = self.fc(x)
            return result

    with msctx.context(**EAGER_GRAPHS), pytest.raises(RuntimeError, match=r"\(.*test_graph_calls.py:\d+\)") as caught:
        After()(image(2, 5))
    assert caught.type is RuntimeError
    assert len(str(caught.value).splitlines()) == 1
    assert capsys.readouterr().out == "here\n"
    assert pages == []


@torch.library.custom_op("msctx_tests::half", mutates_args=())
def half(x: torch.Tensor) -> torch.Tensor:
    """Its shape is unknown until it runs."""
    return x / 2


@half.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("no shape")


def test_what_eager_code_takes_and_the_compiler_does_not_runs_eagerly_or_is_an_error() -> None:
    class Halving(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = half(x)
            return result

    with msctx.context(**EAGER_GRAPHS), pytest.warns(msctx.MsctxWarning, match=r"test_graph_calls.py:\d+: .*no shape.*STRICT"):
        torch.testing.assert_close(Halving()(torch.ones(2)), torch.full((2,), 0.5))
    with msctx.context(jit_syntax_level="STRICT", **EAGER_GRAPHS), pytest.raises(msctx.GraphError, match="no shape"):
        Halving()(torch.ones(2))


def test_a_second_derivative_names_the_option() -> None:
    net, x = nn.Sequential(nn.Linear(3, 2), nn.Tanh()), image(2, 3).requires_grad_()
    with (
        pytest.raises(msctx.GraphError, match=r"mode=GRAPH_MODE.*create_graph=True.*PYNATIVE_MODE"),
        msctx.context(**EAGER_GRAPHS),
    ):
        torch.autograd.grad(net(x).sum(), x, create_graph=True)[0].sum().backward()


def test_inside_code_that_is_given_up_containers_are_compiled(capsys: pytest.CaptureFixture[str]) -> None:
    net, x = Looping(), image(2, 3)
    expected = net(x)
    with msctx.context(**EAGER_GRAPHS) as ctx, torch.no_grad():
        torch.testing.assert_close(net(x), expected)
    assert graphs() == 1
    assert ctx.graphs().breaks
    theirs = {inspect.getfile(Looping), inspect.getfile(nn.Sequential)}
    assert {row.where.rpartition(":")[0] for row in ctx.graphs()} == theirs, "what runs between them is not captured"


class Varying(nn.Module):
    def forward(self, x: torch.Tensor, text: str) -> torch.Tensor:
        return x + len(text)


@pytest.fixture
def few_variants(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("msctx.graph.calls.VARIANTS", 2)
    with torch._dynamo.config.patch(recompile_limit=2):  # torch 2.11
        yield


def test_under_strict_too_many_variants_are_an_error_that_names_the_function(few_variants: None) -> None:
    with msctx.context(jit_syntax_level="STRICT", **EAGER_GRAPHS):
        Varying()(image(2), "")
        Varying()(image(2), "a")
        with pytest.raises(msctx.GraphError, match=r"^Varying.*: it needs more variants(.|\n)*ctx.graphs\(\).recompiled"):
            Varying()(image(2), "ab")


def test_too_many_variants_are_not_compiled_ahead(few_variants: None) -> None:
    told = pytest.warns(msctx.MsctxWarning, match=r"precompile_only: Varying.*: it needs more variants")
    with msctx.context(precompile_only=True, **EAGER_GRAPHS), told:
        for text in ("", "a", "ab"):
            assert Varying()(image(2), text) is None


def test_what_is_not_compiled_has_no_compiled_form_to_delete() -> None:
    with msctx.context(**EAGER_GRAPHS), pytest.raises(AttributeError):
        del Net()._compiled_call_impl


def test_a_compiler_that_fails_leaves_the_program_running(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: Any, **kwargs: Any) -> Any:
        raise ValueError("no compiler here")

    monkeypatch.setattr("torch._dynamo.backends.debugging.aot_autograd", fails)
    net, x = Net().eval(), image()
    with msctx.context(**EAGER_GRAPHS), pytest.warns(msctx.MsctxWarning, match=r"graph_programs.py:\d+.*no compiler here"):
        torch.testing.assert_close(net(x), net(x))
    with msctx.context(jit_syntax_level="STRICT", **EAGER_GRAPHS), pytest.raises(Exception, match="no compiler here"):
        Net()(x)


def test_recompilations_have_their_reason() -> None:
    net = Net()
    with msctx.context(**EAGER_GRAPHS) as ctx:
        net(image())
        net.eval()
        net(image())
    assert [bool(row.recompiled) for row in ctx.graphs()] == [False, True]
    assert "training" in ctx.graphs().recompiled[0].recompiled


# --- the compiler -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("fused", "kernels"), [(True, True), (False, False)])
def test_enable_graph_kernel_generates_kernels(fused: bool, kernels: bool) -> None:
    from torch._inductor import metrics

    metrics.reset()
    with msctx.context(mode="GRAPH_MODE", enable_graph_kernel=fused):
        nn.Sequential(nn.ReLU(), nn.Sigmoid())(image())
    assert (metrics.generated_kernel_count > 0 or counters["inductor"]["fxgraph_cache_hit"] > 0) == kernels


def test_precompile_only_runs_nothing() -> None:
    net = Net()
    state = deepcopy(net.state_dict())
    with msctx.context(precompile_only=True, **EAGER_GRAPHS) as ctx:
        assert net(image()) is None
    assert graphs() == 1
    assert len(ctx.graphs()) == 1
    torch.testing.assert_close(dict(net.state_dict()), dict(state), rtol=0, atol=0)
    with msctx.context(**EAGER_GRAPHS):
        assert net(image()).shape == (2, 2)


@pytest.mark.parametrize("loss", [nn.MSELoss(), functional.mse_loss, lambda found, wanted: (found - wanted).sum()])
def test_a_loop_that_goes_on_with_nothing_is_pointed_to_precompile_only(loss: Any) -> None:
    with (
        pytest.raises(msctx.GraphError, match=r"precompile_only=True compiles .* runs nothing"),
        msctx.context(precompile_only=True, **EAGER_GRAPHS),
    ):
        loss(Net()(image()), torch.zeros(2, 2)).backward()


def test_precompile_only_runs_nothing_of_what_cannot_be_captured(capsys: pytest.CaptureFixture[str]) -> None:
    with (
        msctx.context(precompile_only=True, **EAGER_GRAPHS),
        pytest.warns(msctx.MsctxWarning, match=r"graph_programs.py:\d+.*as a whole"),
    ):
        assert Talking()(image(2, 3)) is None
    assert capsys.readouterr().out == ""


# --- functions --------------------------------------------------------------------------------------------------------


def test_jit_compiles_functions_under_the_options_in_force() -> None:
    @msctx.jit
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x) + 1

    with msctx.context(enable_graph_kernel=False) as ctx:
        torch.testing.assert_close(function(image()), torch.relu(image()) + 1)
        function(image())
    assert graphs() == 1
    assert ctx.graphs()[0].function.endswith("function")
    with msctx.context(mode="PYNATIVE_MODE"):
        function(image(7))
    assert graphs() == 1
    with pytest.raises(TypeError, match="GRAPH_MODE"):
        msctx.jit(Net())  # type: ignore[type-var]


def test_what_jit_compiles_after_a_context_is_listed_too() -> None:
    @msctx.jit
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    result = doubled(image().requires_grad_())
    with msctx.context(**EAGER_GRAPHS):
        pass
    before = len(msctx.graphs())
    torch.compile(torch.sin, backend="eager")(image())
    result.sum().backward()
    assert len(msctx.graphs()) > before


def test_a_context_inside_a_compiled_function_holds_and_ends() -> None:
    class Inside(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with msctx.context(deterministic="ON"):
                x = x + torch.are_deterministic_algorithms_enabled()
            return x + torch.are_deterministic_algorithms_enabled()

    with msctx.context(**EAGER_GRAPHS):
        torch.testing.assert_close(Inside()(torch.zeros(2)), torch.ones(2))
    assert not torch.are_deterministic_algorithms_enabled()


def test_an_earlier_policy_runs_no_code_of_a_later_one() -> None:
    net, x = nn.Linear(8, 8), image(4, 8)
    with msctx.context(**EAGER_GRAPHS):
        plain = net(x)
        with msctx.context(precision_mode="force_fp16"):
            assert net(x).dtype == torch.float16
        torch.testing.assert_close(net(x), plain, rtol=0, atol=0)


def test_on_ascend_graphs_go_to_torchair() -> None:
    rows = msctx.explain(device_target="Ascend", mode="GRAPH_MODE").rows
    (row,) = [row for row in rows if row.option == "mode" and row.device == "ascend"]
    assert (row.status, "torchair" in row.reason) == ("honoured", True)


# --- what else reaches into compiled code -----------------------------------------------------------------------------


def test_memory_first_keeps_inputs_alone() -> None:
    kept: dict[str, int] = {}
    grads = {}
    for level in ("O0", "O1"):
        torch.manual_seed(0)
        net, sizes = nn.Sequential(*(m for _ in range(4) for m in (nn.Linear(64, 64), nn.GELU()))), []
        with (
            msctx.context(memory_optimize_level=level, **EAGER_GRAPHS),
            torch.autograd.graph.saved_tensors_hooks(lambda t, sizes=sizes: sizes.append(t.numel()) or t, lambda t: t),
        ):
            net(torch.ones(256, 64)).sum().backward()
        kept[level], grads[level] = sum(sizes), [p.grad for p in net.parameters()]
    assert kept["O1"] < kept["O0"] / 2
    torch.testing.assert_close(grads["O1"], grads["O0"])


def test_under_deterministic_compiled_code_draws_as_eager_code() -> None:
    net, found = nn.Dropout(), []
    for options in ({"mode": "GRAPH_MODE"}, {}):
        with msctx.context(deterministic="ON", **options):
            torch.manual_seed(0)
            found.append(net(torch.ones(64)))
    torch.testing.assert_close(*found, rtol=0, atol=0)


def test_classes_of_one_name_have_names_of_their_own() -> None:
    def made() -> nn.Module:
        class Own(nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return x + 1

        return Own()

    nets = [made() for _ in range(3)]
    with msctx.context(**EAGER_GRAPHS) as ctx:
        for net in nets:
            net(image())
    names = [row.function for row in ctx.graphs()]
    assert len(set(names)) == 3
    assert max(map(len, names)) < len(names[0]) + 5


def test_names_go_with_their_classes() -> None:
    before = {*report._classes}
    with msctx.context(**EAGER_GRAPHS):
        for number in range(4):
            type(f"Made{number}", (Net,), {})()(image())
    gc.collect()
    assert {*report._classes} <= before | {"Net"}


@pytest.mark.full
def test_jit_compile_decides_between_generated_code_and_kernels_of_libraries() -> None:
    def products(x: torch.Tensor) -> torch.Tensor:
        return (x * 2 + 1).relu()

    made = {}
    for value in ("false", "true"):
        counters.clear()
        torch._dynamo.reset()
        with msctx.context(mode="GRAPH_MODE", jit_compile=value):
            function = msctx.jit(products)
            for size in (3, 4, 5):
                torch.testing.assert_close(function(torch.ones(size)), products(torch.ones(size)))
        made[value] = (counters["stats"]["unique_graphs"], bool(counters["inductor"]))
    assert made == {"false": (2, False), "true": (3, True)}, "for true, each shape has code of its own"
