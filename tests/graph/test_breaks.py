"""What cannot be captured as one graph: where and why, and what then happens."""

import re
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from graph_programs import EAGER_GRAPHS, Net, Talking, graphs, image
from torch import nn

import msctx


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


class Hooked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 2)
        self.fc.register_full_backward_hook(lambda *_: None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.fc(x)
        return result


def test_a_hook_of_a_module_is_the_reason_and_the_line_is_the_programs() -> None:
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


class Elsewhere(Refusing):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.ones(5, device="meta")


@pytest.mark.parametrize("syntax", ["LAX", "STRICT"])
@pytest.mark.parametrize("model", [Refusing, Reading, Elsewhere])
def test_what_is_wrong_with_arguments_is_reported_as_in_eager_code(model: type[nn.Module], syntax: str) -> None:
    net, x = model(), image(2, 5)
    with pytest.raises((RuntimeError, IndexError, TypeError)) as eager:
        net(x)
    with msctx.context(jit_syntax_level=syntax, **EAGER_GRAPHS), pytest.raises(eager.type) as compiled:
        net(x)
    assert (compiled.type, str(compiled.value)) == (eager.type, str(eager.value))
    assert compiled.value.__context__ is None
    if syntax == "STRICT" or model in (Refusing, Reading):  # else torch's own frames run it behind a graph break
        assert dynamos(compiled) <= dynamos(eager)


def dynamos(caught: pytest.ExceptionInfo[Exception]) -> set[str]:
    return {path for entry in caught.traceback if "_dynamo" in (path := str(entry.path))}


@torch.library.custom_op("msctx_tests::half", mutates_args=())
def half(x: torch.Tensor) -> torch.Tensor:
    return x / 2


@half.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("no shape")


def test_what_eager_code_takes_and_the_compiler_does_not_runs_eagerly_or_is_an_error() -> None:
    class Halving(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = half(x)
            return result

    with msctx.context(**EAGER_GRAPHS), pytest.warns(msctx.MsctxWarning, match=r"test_breaks.py:\d+: .*no shape.*STRICT"):
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


class Varying(nn.Module):
    def forward(self, x: torch.Tensor, text: str) -> torch.Tensor:
        return x + len(text)


@pytest.fixture
def few_variants(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("msctx.graph.graph_mode.VARIANTS", 2)
    with torch._dynamo.config.patch(recompile_limit=2):  # torch 2.11
        yield


def test_under_strict_too_many_variants_are_an_error_that_names_the_function(few_variants: None) -> None:
    with msctx.context(jit_syntax_level="STRICT", **EAGER_GRAPHS):
        Varying()(image(2), "")
        Varying()(image(2), "a")
        with pytest.raises(msctx.GraphError, match=r"^Varying.*: it needs more variants(.|\n)*ctx.graphs\(\).recompiled"):
            Varying()(image(2), "ab")


def test_recompilations_have_their_reason() -> None:
    net = Net()
    with msctx.context(**EAGER_GRAPHS) as ctx:
        net(image())
        net.eval()
        net(image())
    assert [bool(row.recompiled) for row in ctx.graphs()] == [False, True]
    assert "training" in ctx.graphs().recompiled[0].recompiled


@pytest.mark.parametrize("options", [{}, {"deterministic": "ON"}, {"enable_compile_cache": True}, {"save_graphs": 1}, None])
def test_graphs_has_what_the_program_compiles_itself(
    options: dict[str, Any] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def theirs(x: torch.Tensor) -> torch.Tensor:
        return x.sin() + 1

    monkeypatch.chdir(tmp_path)
    before = len(msctx.graphs())
    if options is None:
        msctx.set_context(deterministic="ON")
    try:
        with msctx.context(**options) if options is not None else nullcontext() as ctx:
            torch.compile(theirs, backend="eager")(image())
    finally:
        msctx.reset_context()
    (row,) = ctx.graphs() if ctx else [*msctx.graphs()][before:]
    assert (row.function, row.operators) == ("theirs", 2)
