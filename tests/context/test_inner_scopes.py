"""What an inner scope switches off is off: the state in any nesting is that of the merged options alone, on torch as it was found."""

from typing import Any

import pytest
import torch
from context_helpers import State, context_module, quiet, threads
from torch._inductor import config as inductor

import msctx

pytestmark = quiet
OFF: list[Any] = [
    ({"thread_invariant": True}, {"thread_invariant": False}, "native.convolution.cpu"),
    ({"runtime_num_threads": 1}, {"runtime_num_threads": 0}, "torch.num_threads"),
    ({"enable_reduce_precision": True}, {"enable_reduce_precision": False}, "native.precision.cpu"),
    ({"enable_small_channel": 1}, {"enable_small_channel": 0}, "native.convolution.cpu"),
    ({"device_target": "CPU", "default_device": True}, {"default_device": False}, "torch.default_device"),
    ({"device_target": "CPU", "default_device": True}, {"use_off_line": True, "default_device": False}, "torch.default_device"),
]
ids = [switch for *_, switch in OFF]


def on_its_own(ctx: Any) -> Any:
    """A context of everything that holds inside an open one."""
    return context_module.Context(ctx.settings.layers)


@pytest.mark.parametrize("below", ["a scope", "set_context"])
@pytest.mark.parametrize(("outer", "inner", "switch"), OFF, ids=ids)
def test_an_inner_scope_switches_off(
    base: None, exact_state: State, below: str, outer: dict[str, Any], inner: dict[str, Any], switch: str
) -> None:
    before = exact_state()
    around = msctx.context(**outer) if below == "a scope" else None
    around.__enter__() if around else msctx.set_context(**outer)
    between = exact_state()
    assert between[switch] != before[switch], "the outer options do nothing"
    with msctx.context(**inner) as ctx:
        inside, alone = exact_state(), on_its_own(ctx)
        with msctx.context(**outer):
            assert exact_state() == between, "switched on again"
        assert exact_state() == inside
    assert inside[switch] == before[switch], "the inner scope left it on"
    assert exact_state() == between
    around.__exit__() if around else msctx.reset_context()
    assert exact_state() == before
    with alone:
        assert exact_state() == inside


DETAILS: list[Any] = [
    ({"deterministic": "ON", "deterministic_warn_only": True, "deterministic_except": "exp"}, {"deterministic": "OFF"}),
    ({"save_graphs": 1, "save_graphs_path": "there"}, {"save_graphs": 0}),
]


@pytest.mark.parametrize(("on", "off"), DETAILS, ids=["deterministic", "save_graphs"])
def test_details_of_what_an_inner_scope_switches_off_are_not_in_its_way(on: dict[str, Any], off: dict[str, Any]) -> None:
    options = {**on, **off, "strict": True}
    with pytest.raises(msctx.StrictError), msctx.context(**options):
        pass
    with msctx.context(**on, strict=True):
        inner = msctx.context(**off)
        assert {row.status for row in inner.plan.rows if row.option not in {*off, "strict"}} == {"inert"}


def test_what_the_user_set_between_two_scopes_comes_back(exact_state: State) -> None:
    found = threads()
    with msctx.context(runtime_num_threads=found + 1):
        torch.set_num_threads(found + 2)
        with msctx.context(runtime_num_threads=0):
            assert threads() == found
        assert threads() == found + 2
        torch.set_num_threads(found + 1)
    with msctx.context(deterministic="ON"):
        inductor.deterministic = False  # of this thread, while the context's holds in all
        for value in ("ON", "OFF"):
            with msctx.context(deterministic=value):
                pass
            assert not inductor.deterministic, value
