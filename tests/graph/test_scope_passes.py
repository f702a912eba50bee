"""Patterns that are replaced by one operator where their pass is named."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch._dynamo.utils import counters

import msctx
from msctx.errors import OptionError
from msctx.graph import backend
from msctx.options.graph import Compilation

X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
W, B = torch.linspace(0.5, 2, 8), torch.linspace(-1, 1, 8)


def norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return w * (centred / torch.sqrt(centred.pow(2).mean(-1, keepdim=True) + 1e-5)) + b


def norm_of_var(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    variance = x.var(-1, keepdim=True, unbiased=False)
    return b + (x - torch.mean(x, dim=-1, keepdim=True)) * torch.rsqrt(variance + 1e-5) * w


def over_rows(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    centred = x - x.mean(0, keepdim=True)
    return w * (centred / torch.sqrt(centred.pow(2).mean(0, keepdim=True) + 1e-5)) + b


def unbiased(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (x - x.mean(-1, keepdim=True)) / torch.sqrt(x.var(-1, keepdim=True) + 1e-5) * w + b


def seen(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    centred = x - x.mean(-1, keepdim=True)
    root = torch.sqrt(centred.square().mean(-1, keepdim=True) + 1e-5)
    return centred / root * w + b + root


def chain(x: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
    return x.clamp(min=-0.5).clamp_max(1.0).clip(-1, 0.75)


def crossed(x: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
    return x.clamp(min=2).clamp(max=1)


def used_between(x: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
    low = x.clamp(min=-0.5)
    return low.clamp(max=0.5) + low


LAYER_NORM, CLIP = "ScopeLayerNormPass", "ScopeClipBoxesPass"


def nodes(function: Callable[..., torch.Tensor], passes: str) -> tuple[list[str], int]:
    """What the graph calls, and how often the pass was applied; results and gradients are those of eager code."""
    graphs: list[torch.fx.GraphModule] = []
    import torch._functorch.config as config

    torch._dynamo.reset()
    counters.clear()
    x = X.clone().requires_grad_()
    with (
        msctx.context(
            enable_graph_kernel=False, jit_syntax_level="STRICT", **({"enable_scope_fusion_passes": passes} if passes else {})
        ),
        config.patch(joint_custom_pass=lambda graph, _: graphs.append(graph) or graph),
    ):
        result = msctx.jit(function)(x, W, B)
    expected = function(x, W, B)
    torch.testing.assert_close(result, expected)
    torch.testing.assert_close(*(torch.autograd.grad(one.sum(), x)[0] for one in (result, expected)), rtol=1e-4, atol=1e-5)
    (graph,) = graphs
    return [str(node.target) for node in graph.graph.nodes if node.op == "call_function"], sum(counters["msctx"].values())


@pytest.mark.parametrize("function", [norm, norm_of_var])
def test_a_layer_norm_written_out_becomes_one(function: Callable[..., torch.Tensor]) -> None:
    (before, none), (after, one) = nodes(function, ""), nodes(function, LAYER_NORM)
    assert (none, one) == (0, 1)
    assert "aten.native_layer_norm.default" in after
    assert "aten.native_layer_norm.default" not in before
    assert len(after) < len(before)
    assert nodes(function, CLIP)[0] == before


@pytest.mark.parametrize("function", [over_rows, unbiased, seen])
def test_what_is_no_layer_norm_stays(function: Callable[..., torch.Tensor]) -> None:
    assert nodes(function, LAYER_NORM) == nodes(function, "")


def test_limits_in_a_row_become_one() -> None:
    (before, _), (after, applied) = nodes(chain, ""), nodes(chain, f"{LAYER_NORM},{CLIP}")
    assert sum("clamp" in name for name in before) == 3
    assert sum("clamp" in name for name in after) == 1
    assert applied == 2


@pytest.mark.parametrize("function", [crossed, used_between])
def test_limits_that_are_no_chain_stay(function: Callable[..., torch.Tensor]) -> None:
    assert nodes(function, CLIP) == nodes(function, "")


def written(x: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
    low = x.clamp(min=0.0)
    x[0].zero_()
    return low.clamp(max=6.0)


def written_as_data(x: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
    low = x.clamp(min=0.0)
    x.data.zero_()
    return low.clamp(max=6.0)


def written_centred(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    centred = x - x.mean(-1, keepdim=True)
    variance = x.var(-1, keepdim=True, unbiased=False)
    centred.add_(w)
    return centred / torch.sqrt(variance + 1e-5) * w + b


def written_before_weight(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    centred = x - x.mean(-1, keepdim=True)
    normal = centred / torch.sqrt(centred.square().mean(-1, keepdim=True) + 1e-5)
    x.mul_(w)
    return normal * w + b


def written_afterwards(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    result = norm(x, w, b)
    result += x
    return result


def by_name(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    centred = x - torch.mean(input=x, dim=-1, keepdim=True)
    return centred / torch.sqrt(torch.mean(input=centred * centred, dim=-1, keepdim=True) + 1e-5) * w + b


def applied(function: Callable[..., torch.Tensor], *args: torch.Tensor) -> int:
    """How often a pass was applied; results and their dtypes are those of eager code."""
    torch._dynamo.reset()
    counters.clear()
    options = {"enable_graph_kernel": False, "jit_syntax_level": "STRICT", "enable_scope_fusion_passes": f"{LAYER_NORM},{CLIP}"}
    with torch.no_grad():
        expected = function(*(arg.clone() for arg in args))
        with msctx.context(**options):
            torch.testing.assert_close(msctx.jit(function)(*(arg.clone() for arg in args)), expected)
    return sum(counters["msctx"].values())


@pytest.mark.parametrize("function", [written, written_as_data, written_centred, written_before_weight])
def test_what_the_program_writes_in_between_stays(function: Callable[..., torch.Tensor]) -> None:
    assert applied(function, X, W, B) == 0


@pytest.mark.parametrize("function", [written_afterwards, by_name])
def test_a_result_may_be_written_and_an_input_may_be_named(function: Callable[..., torch.Tensor]) -> None:
    assert applied(function, X, W, B) == 1


def test_a_pattern_of_several_dtypes_stays() -> None:
    assert applied(norm, X.bfloat16(), W, B) == 0
    assert applied(norm, X, W.double(), B.double()) == 0
    assert applied(lambda x: x.clamp(0, 6).clamp(max=7.0), torch.tensor([1, 9])) == 0


def test_what_cannot_be_compiled_runs_as_the_program_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("no code")

    def seen(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., torch.Tensor]:
        made = backend.Backend(Compilation(scope_passes=(CLIP,)))(graph, inputs)
        calls.extend(str(node.target) for node in graph.graph.nodes if node.op.startswith("call"))
        return made

    calls: list[str] = []
    monkeypatch.setattr(backend, "_compiler", lambda *_: fails)
    torch._dynamo.reset()
    with pytest.warns(msctx.MsctxWarning, match="the compiler raised RuntimeError: no code"):
        torch.testing.assert_close(torch.compile(chain, backend=seen)(X), chain(X))
    assert calls == ["clamp", "clamp_max", "clip"]


def test_an_unknown_pass_is_an_error_with_the_nearest_name() -> None:
    with pytest.raises(OptionError, match="'ScopeLayerNorm' is not a pass") as error:
        msctx.explain(enable_scope_fusion_passes="ScopeLayerNorm")
    assert "ScopeLayerNormPass" in str(error.value)
