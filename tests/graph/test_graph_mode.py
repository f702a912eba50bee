"""Which calls are compiled, how, and how that is reported; seen by Dynamo's counters."""

from collections.abc import Callable
from copy import deepcopy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from graph_programs import EAGER_GRAPHS, Net, graphs, image
from torch import nn
from torch._dynamo.utils import counters
from torch.nn.modules.module import register_module_forward_hook

import msctx
from msctx.graph import backend


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


class Keywords(nn.Module):
    def forward(self, module: torch.Tensor, args: int = 1) -> torch.Tensor:
        return module * args


def test_a_forward_may_name_its_arguments_as_ours_are_named() -> None:
    with msctx.context(**EAGER_GRAPHS) as ctx:
        assert Keywords()(module=torch.ones(2), args=2).tolist() == [2, 2]
    assert len(ctx.graphs()) == 1


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


HOOKS: dict[str, Callable[[nn.Module], Any]] = {
    "forward": lambda module: module.register_forward_hook(lambda module, args, result: result * 2),
    "forward with kwargs": lambda module: module.register_forward_hook(lambda *given: given[3] * 2, with_kwargs=True),
    "forward pre": lambda module: module.register_forward_pre_hook(lambda module, args: (args[0] + 1,)),
    "full backward": lambda module: module.register_full_backward_hook(lambda module, inputs, outputs: (inputs[0] * 3,)),
    "full backward pre": lambda module: module.register_full_backward_pre_hook(lambda module, outputs: (outputs[0] * 3,)),
    "any module": lambda module: register_module_forward_hook(
        lambda module, args, result: (
            result * 2 if isinstance(module, Scale) else None
        )  # torch calls it for aot_eager's own, too
    ),
    "forward of the instance": lambda module: Replaced(module, lambda x: type(module).forward(module, x) * 2),
    "forward of the class": lambda module: Replaced(type(module), lambda self, x: self.weight.sum() * x),
}


class Replaced:
    def __init__(self, of: Any, forward: Any) -> None:
        self.of, self.before = of, vars(of).get("forward")
        of.forward = forward

    def remove(self) -> None:
        del self.of.forward
        if self.before:
            self.of.forward = self.before


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((3,), 2.0))
        self.inner = nn.Sequential(nn.Identity())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x * self.weight)  # type: ignore[no-any-return]


class Inner(Scale):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sin() * self.weight


@pytest.mark.parametrize("is_outermost", [True, False])
@pytest.mark.parametrize("hook", HOOKS)
def test_hooks_and_forwards_that_change_later_are_compiled_with_their_reason(hook: str, is_outermost: bool) -> None:
    def results() -> list[torch.Tensor | None]:
        net, found = Scale(), []
        net.inner = nn.Sequential(inner := Inner())
        for change in ("none", "added", "removed"):
            if change == "added":
                handle = HOOKS[hook](net if is_outermost else inner)
            elif change == "removed":
                handle.remove()
            x = torch.ones(2, 3, requires_grad=True)
            (y := net(x)).sum().backward()
            found += [y.detach(), x.grad]
        return found

    expected = results()
    assert not torch.equal(expected[3], expected[1])
    with msctx.context(**EAGER_GRAPHS) as ctx:
        torch.testing.assert_close(results(), expected)
    assert all("hooks" in row.recompiled or "forward" in row.recompiled for row in ctx.graphs().recompiled)
    assert ctx.graphs().recompiled


class Forces(nn.Module):
    """Computes gradients itself, whether or not its caller does."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(Inner())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            return torch.autograd.grad(self.inner(x).sum(), x)[0]


@pytest.mark.parametrize("kind", [Scale, Forces])
@pytest.mark.parametrize("hook", [one for one in HOOKS if "class" not in one])
def test_hooks_without_gradients_are_compiled_where_they_act(hook: str, kind: Any) -> None:
    def results() -> list[torch.Tensor]:
        net, x, found = kind(), torch.ones(2, 3), []
        net.inner = nn.Sequential(inner := Inner())
        for _ in range(2):
            found.append(net(x))
            handle = HOOKS[hook](inner)
            found.append(net(x))
            handle.remove()
        return found

    with torch.no_grad():
        expected = results()
        with msctx.context(**EAGER_GRAPHS) as ctx:
            torch.testing.assert_close(results(), expected)
    acts = not torch.equal(expected[0], expected[1])
    assert acts == (kind is Forces or "backward" not in hook)
    assert bool(ctx.graphs().recompiled) == acts


@pytest.mark.parametrize("register", [nn.Module.register_forward_hook, nn.Module.register_forward_pre_hook])
def test_a_hook_that_takes_keyword_arguments_replaces_the_same_that_does_not(register: Callable[..., Any]) -> None:
    seen: list[int] = []

    def hook(module: nn.Module, *given: Any) -> None:
        seen.append(len(given))

    net = Scale()
    with msctx.context(**EAGER_GRAPHS):
        for with_kwargs in (False, True, False):
            handle = register(net.inner, hook, with_kwargs=with_kwargs)
            net(torch.ones(2, 3))
            handle.remove()
    assert seen in ([1, 2, 1], [2, 3, 2])


def test_guards_on_absent_hooks_are_those_that_can_find_a_change() -> None:
    names = "_forward_hooks", "_forward_hooks_with_kwargs", "_backward_hooks", "_backward_pre_hooks"
    absent = [SimpleNamespace(name=f"a.{name}", guard_type="EMPTY_NN_MODULE_HOOKS_DICT") for name in names]
    there = [SimpleNamespace(name=f"b.{name}", guard_type="SEQUENCE_LENGTH") for name in names]
    backend.here.without_gradients = True
    assert backend.needed([*absent, *there]) == [True, False, False, False, *4 * [True]]
    assert backend.needed(absent) == [True, False, True, True], "that was for one graph"
    assert backend.needed(absent[1:2]) == [True], "nothing else says that there are no hooks"


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
    linear = nn.Linear(8, 8)
    with (
        pytest.warns(msctx.MsctxWarning, match="code with dropout is not"),
        msctx.context(memory_optimize_level="O1", **EAGER_GRAPHS),
    ):
        (y := nn.Sequential(linear, nn.Dropout(0.5))(torch.ones(4, 8))).sum().backward()
    torch.testing.assert_close(linear.bias.grad, 2.0 * (y != 0).sum(0))


def test_under_deterministic_compiled_code_draws_as_eager_code() -> None:
    net, found = nn.Dropout(), []
    for options in ({"mode": "GRAPH_MODE"}, {}):
        with msctx.context(deterministic="ON", **options):
            torch.manual_seed(0)
            found.append(net(torch.ones(64)))
    torch.testing.assert_close(*found, rtol=0, atol=0)


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
