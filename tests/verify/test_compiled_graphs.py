"""Compiled code beside eager code: what a compiler computes wrongly is named, and rounding is no difference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from graph_programs import EAGER_GRAPHS
from torch import fx, nn

import msctx
from msctx.verify import graph
from msctx.verify.compiled import Graphs

HERE = Path(__file__).name


class WrongBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.tanh()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


class NoBackward(WrongBackward):
    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 0


def without_gradient(x: torch.Tensor) -> torch.Tensor:
    return NoBackward.apply(x)


def with_wrong_backward(x: torch.Tensor) -> torch.Tensor:
    return WrongBackward.apply(x)


def taking(wanted: str, other: Callable[..., Any]) -> Callable[..., Any]:
    """A compiler that takes one function for another."""

    def backend(gm: fx.GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
        for node in gm.graph.nodes:
            if wanted in (node.target, getattr(node.target, "__name__", ""), graph.name_of(node)):
                node.op, node.target = "call_function", other
        gm.recompile()
        return gm

    return backend


class Block(nn.Module):
    def __init__(self, act: Callable[..., Any] = torch.tanh) -> None:
        super().__init__()
        self.inner, self.act = nn.Linear(8, 8), act

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(self.inner(x)) + x


def net(places: int = 3, wrong: int = 1, act: Callable[..., Any] = torch.tanh) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*[Block(act if place == wrong else torch.relu) for place in range(places)])


def report(model: nn.Module, backend: Any, *inputs: torch.Tensor, trains: bool = True) -> dict[str, Any]:
    torch._dynamo.reset()
    graphs = Graphs()
    with graphs.captured(), torch.set_grad_enabled(trains):
        result = torch.compile(model, backend=backend)(*(inputs or (torch.randn(4, 8),)))
        results = result if isinstance(result, tuple) else (result,)
        if results[0].requires_grad:
            sum(one.sum() for one in results).backward()
    torch._dynamo.reset()
    return graphs.report


def test_what_a_compiler_takes_for_something_else_is_named() -> None:
    found = report(net(), taking("tanh", torch.sigmoid))["finding"]
    assert (found["operator"], found["module"], found["direction"]) == ("tanh", "1", "forward")
    assert found["source"].startswith(f"{HERE}:")
    assert found["reason"] == "the compiled result is inaccurate"
    (result, *_) = found["values"]
    assert result["eager"] < 1e-6 < 1e-2 < result["compiled"]


def test_the_last_node_is_named_too() -> None:
    found = report(nn.Sequential(nn.Linear(8, 8), nn.Tanh()), taking("tanh", torch.sigmoid))["finding"]
    assert (found["operator"], found["module"]) == ("tanh", "1")


def test_a_wrong_backward_pass_is_named() -> None:
    found = report(net(), taking("tanh", with_wrong_backward))["finding"]
    assert (found["operator"], found["module"], found["direction"]) == ("tanh", "1", "backward")


@torch.library.custom_op("planted_graphs::low", mutates_args=())
def low(x: torch.Tensor) -> torch.Tensor:
    """A kernel that is wrong in float32."""
    return x * 1.01 if x.dtype is torch.float32 else x.clone()


low.register_fake(torch.empty_like)
low.register_autograd(lambda ctx, gradient: gradient)


def test_the_side_that_is_off_is_named() -> None:
    found = report(net(act=low), taking("planted_graphs::low", torch.clone))["finding"]
    assert (found["operator"], found["module"]) == ("planted_graphs::low", "1")
    assert found["reason"] == "the eager result is inaccurate"


def in_another_order(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """A linear layer that sums from the other end."""
    return (x.flip(-1).unsqueeze(-2) * weight.flip(-1)).sum(-1) + bias


def test_rounding_is_no_difference() -> None:
    found = report(net(), taking("linear", in_another_order))
    assert (found["finding"], found["count"], found["notes"]) == (None, 1, [])
    assert sum(found["nearer"].values()) > 0


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return torch.tanh(torch.softmax(self.inner(x) + mask, -1) * 4)


class TwoResults(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.inner, self.factor = nn.Linear(16, 16), factor

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.tanh(self.inner(x)), self.inner(x) * self.factor


class TwoPaths(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.small, self.large, self.factor = nn.Linear(16, 16), nn.Linear(16, 16), factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.small(x)) + self.large(x * self.factor)


def words() -> nn.Module:
    return nn.Sequential(nn.Embedding(1000, 16), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16))


def mask(value: float) -> torch.Tensor:
    return torch.zeros(16).index_fill(0, torch.arange(8, 16), value)


SCALES: dict[str, tuple[Callable[[], nn.Module], torch.dtype, list[torch.Tensor], bool]] = {
    "indices": (words, torch.bfloat16, [torch.arange(32) * 31], False),
    "mask": (Masked, torch.float32, [mask(-1e9)], False),
    "lowest": (Masked, torch.float32, [mask(torch.finfo(torch.float32).min)], False),
    "results in bfloat16": (lambda: TwoResults(100.0), torch.bfloat16, [], True),
    "results": (lambda: TwoResults(1e6), torch.float32, [], True),
    "gradients in bfloat16": (lambda: TwoPaths(30.0), torch.bfloat16, [], True),
    "gradients": (lambda: TwoPaths(1e6), torch.float32, [], True),
}


@pytest.mark.parametrize("scale", SCALES)
def test_what_is_small_beside_something_large_is_compared_with_itself(scale: str) -> None:
    torch.manual_seed(0)
    make, dtype, inputs, trains = SCALES[scale]
    model = make().to(dtype)
    if scale != "indices":
        inputs = [torch.randn(4, 16, dtype=dtype), *inputs]
    assert report(model, taking("linear", in_another_order), *inputs, trains=trains)["finding"] is None
    wrong = without_gradient if scale.startswith("gradients") else torch.sigmoid
    found = report(model, taking("tanh", wrong), *inputs, trains=trains)["finding"]
    assert (found["operator"], found["reason"]) == ("tanh", "the compiled result is inaccurate")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("factor", [0.0, 1e4])
def test_a_gradient_that_is_only_rounding_is_no_difference(factor: float, dtype: torch.dtype) -> None:
    """That of a bias is zero but for rounding, where a mean is subtracted after it; those beside it may be large."""

    class Centred(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.beside = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            made = self.inner(x)
            return made - torch.mean(made, 0) + self.beside(x) * factor

    def otherwise(x: torch.Tensor, axis: int) -> torch.Tensor:
        return x.flip(axis).cumsum(axis)[-1] / x.shape[axis]

    found = report(Centred().to(dtype), taking("mean", otherwise), torch.randn(100, 8, dtype=dtype))
    assert (found["finding"], found["count"]) == (None, 1)


def normed(x: torch.Tensor) -> torch.Tensor:
    return nn.functional.layer_norm(x, x.shape[-1:])


def off(x: torch.Tensor, *args: Any) -> torch.Tensor:
    """layer_norm, but for one value in a thousand."""
    made = torch.layer_norm(x, *args)
    return torch.where(torch.arange(made.numel()).view(made.shape) % 1000 == 77, made + 0.5, made)


@pytest.mark.parametrize("is_inside", [False, True])
def test_rows_of_one_value_have_no_variance_but_rounding(is_inside: bool) -> None:
    """The compiler sums them in another order; they are one value in memory, which a single change of it would leave."""

    class Net(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return normed(x[:, :1].expand(4, 1000) if is_inside else x)

    x = torch.arange(1.0, 5.0)[:, None] * 3.3
    given = x.clone() if is_inside else x.expand(4, 1000)
    assert report(Net(), "inductor", given)["finding"] is None
    found = report(Net(), taking("layer_norm", off), given)["finding"]
    assert (found["operator"], found["reason"]) == ("layer_norm", "the compiled result is inaccurate")


def test_random_numbers_are_the_same_on_all_sides() -> None:
    class Noisy(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.dropout(x, 0.5) + torch.rand_like(x) * torch.randn(8)

    found = report(nn.Sequential(nn.Linear(8, 8), Noisy()), taking("nothing", torch.relu))
    assert (found["finding"], found["count"]) == (None, 1)
    assert report(nn.Sequential(Block(), Noisy()), taking("tanh", torch.sigmoid))["finding"]["module"] == "0"


def test_numbers_that_are_not_finite() -> None:
    """NaN is no 0; where both sides overflow alike, what is finite is compared."""

    def nan(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x).masked_fill(x < 0, float("nan"))

    found = report(net(1, 0, act=torch.relu), taking("relu", nan))["finding"]
    assert found["operator"] == "relu"
    model, x = nn.Sequential(Block(torch.tanh)).half(), torch.randn(4, 8).half()
    with torch.no_grad():
        model[0].inner.weight[0] = 6e4
    x[:, 0] = 30
    assert report(model, taking("nothing", torch.relu), x)["finding"] is None
    assert report(model, taking("tanh", torch.sigmoid), x)["finding"]["operator"] == "tanh"


class Indices(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.argmax(-1) + 1000


def test_of_indices_no_error_is_small() -> None:
    model = nn.Sequential(nn.Linear(8, 8), Indices())
    found = report(model, taking("argmax", lambda x, axis: (x.argmax(axis) + 1) % 8))["finding"]
    assert (found["operator"], found["module"]) == ("argmax", "1")


def test_a_single_wrong_value_is_found() -> None:
    def once(x: torch.Tensor) -> torch.Tensor:
        made = torch.tanh(x)
        return torch.where(torch.arange(made.numel()).view_as(made) == 7, made + 0.01, made)

    found = report(net(), taking("tanh", once), torch.randn(4000, 8))["finding"]
    assert (found["operator"], found["module"]) == ("tanh", "1")


def test_numbers_that_are_drawn_in_place() -> None:
    class Noise(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.empty_like(x).normal_()

    assert report(nn.Sequential(Noise(), Block()), taking("nothing", torch.relu))["finding"] is None
    found = report(nn.Sequential(Noise(), Block()), taking("tanh", lambda x: torch.tanh(x) * 1.01))["finding"]
    assert found["operator"] == "tanh"


@pytest.mark.full
def test_sums_that_cancel_are_no_difference() -> None:
    """Gradients of a bias before a batch norm, and of one after it, in Inductor's own order."""
    model = nn.Sequential(
        nn.Conv2d(3, 1, 3),
        nn.BatchNorm2d(1),
        nn.ReLU(),
        nn.Conv2d(1, 16, 3),
        nn.BatchNorm2d(16),
        nn.Flatten(),
        nn.Linear(256, 2),
    )
    torch._dynamo.reset()
    graphs = Graphs()
    with graphs.captured():
        for seed in range(60):
            torch.manual_seed(seed)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.normal_(0, 0.2)
            model(torch.randn(8, 3, 8, 8)).square().mean().backward()
    torch._dynamo.reset()
    assert (graphs.report["count"], graphs.report["finding"]) == (60, None)


@pytest.mark.parametrize("strides", ["slice", "expanded", "transposed"])
def test_strides_of_inputs_are_kept(strides: str) -> None:
    """Compiled code relies on them."""
    met = []

    def backend(gm: fx.GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
        def run(*inputs: Any) -> Any:
            met.append([one.stride() for one in inputs if one.ndim == 2 and one.shape[0] == 4])
            return gm(*inputs)

        return run

    x = {"slice": torch.randn(4, 9)[:, :8], "expanded": torch.randn(1, 8).expand(4, 8), "transposed": torch.randn(8, 4).t()}[
        strides
    ]
    assert report(net(), backend, x)["finding"] is None
    assert met == [[x.stride()]]


@pytest.mark.parametrize("seed", range(3))
def test_autocast_around_the_model(seed: int) -> None:
    """Its rounding is that of bfloat16, also of gradients in float32."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 8))

    def otherwise(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):
            low = [one.bfloat16().float() for one in (x, weight, bias)]
            return (low[0] @ low[1].t() + low[2]).bfloat16()

    torch._dynamo.reset()
    with torch.autocast("cpu", torch.bfloat16):
        assert report(model, taking("linear", otherwise))["finding"] is None
        found = report(model, taking("gelu", lambda x, approximate: torch.sigmoid(x)))["finding"]
    assert found["operator"] == "gelu"


def test_compiled_code_that_raises_is_reported() -> None:
    def backend(gm: fx.GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
        def run(*inputs: Any) -> Any:
            raise ValueError("wrong size")

        return run

    found = report(net(), backend)["finding"]
    assert found == {"kind": "compiled", "operator": "a graph", "reason": "the compiled code raises ValueError: wrong size"}


def test_more_modules_than_dynamo_recompiles() -> None:
    layers, graphs = [nn.Linear(8, 8) for _ in range(12)], Graphs()
    torch._dynamo.reset()
    with graphs.captured():
        for layer in layers:
            layer(torch.randn(2, 8))
    assert (graphs.report["count"], graphs.report["finding"]) == (12, None)
    torch._dynamo.reset()


def test_float64_and_integers_alone() -> None:
    x = torch.randn(4, 8, dtype=torch.float64)
    found = report(net().double(), taking("nothing", torch.relu), x)
    assert (found["finding"], found["count"], found["notes"]) == (None, 1, [])
    assert report(net().double(), taking("tanh", torch.sigmoid), x)["finding"]["operator"] == "tanh"

    class Counts(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x + 1).cumsum(0)

    found = report(Counts(), taking("cumsum", lambda x, axis: x), torch.arange(8))["finding"]
    assert found["operator"] == "cumsum"


def test_autocast_inside_the_model() -> None:
    class Low(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                x = torch.tanh(self.first(x))
            return self.second(x.float())

    assert report(Low(), taking("nothing", torch.relu))["finding"] is None
    found = report(Low(), taking("tanh", torch.sigmoid))["finding"]
    assert found["operator"] == "tanh"
    assert not torch.is_autocast_enabled("cpu")


def test_what_does_not_compile_is_noted() -> None:
    def refuses(gm: fx.GraphModule, examples: Sequence[Any]) -> Any:
        raise RuntimeError("no compiler here")

    found = report(net(), refuses)
    assert (found["count"], found["finding"]) == (0, None)
    assert found["notes"] == ["a graph does not compile (RuntimeError: no compiler here)"]


@pytest.mark.full
def test_each_outermost_module_is_compiled_once_and_nothing_stays() -> None:
    compile_ = torch.compile
    model, loss, graphs = net(), nn.MSELoss(), Graphs()
    with graphs.captured():
        for _ in range(2):
            loss(model(torch.randn(4, 8)), torch.zeros(4, 8)).backward()
    assert (graphs.report["count"], graphs.report["finding"]) == (4, None)
    assert (nn.Module._compiled_call_impl, torch.compile) == (None, compile_)
    torch._dynamo.reset()


def test_options_of_graph_mode_say_how_modules_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[str] = []
    monkeypatch.setattr("torch._dynamo.backends.debugging.aot_eager", lambda gm, inputs: used.append("aot_eager") or gm)
    model, graphs, x = net(), Graphs(), torch.randn(4, 8)
    with msctx.context(**EAGER_GRAPHS):
        model(x)
        with graphs.captured():
            model(x)
        model(x)
    assert (graphs.report["count"], graphs.report["finding"]) == (1, None)
    assert used == ["aot_eager"] * 3, "in graph mode, to compare, and in graph mode again"
    torch._dynamo.reset()


@pytest.mark.full
@pytest.mark.parametrize("place", range(10))
@pytest.mark.parametrize(("other", "direction"), [(torch.sigmoid, "forward"), (with_wrong_backward, "backward")])
def test_planted_faults(place: int, other: Callable[..., Any], direction: str) -> None:
    found = report(net(10, place), taking("tanh", other))["finding"]
    assert (found["operator"], found["module"], found["direction"]) == ("tanh", str(place), direction)
