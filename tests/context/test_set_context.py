"""set_context and reset_context: what holds outside and under open with-blocks, and after a refusal, Ctrl-C or a dead thread."""

import random
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from context_helpers import State, in_thread, threads

import msctx
from msctx.errors import MsctxWarning, OptionError, ScopeError, StrictError
from msctx.torch_config_overrides import override, put_override


def test_set_and_reset(base: None, exact_state: State) -> None:
    before = exact_state()
    msctx.set_context(runtime_num_threads=1, deterministic="ON")
    assert threads() == 1
    msctx.set_context(deterministic="OFF", max_call_depth=3000)
    assert not torch.are_deterministic_algorithms_enabled()
    assert msctx.get_context() == {"runtime_num_threads": 1, "deterministic": "OFF", "max_call_depth": 3000}
    assert msctx.current().get("max_call_depth") == 3000
    msctx.reset_context()
    assert exact_state() == before
    assert msctx.get_context() == {}
    msctx.reset_context()


def test_the_latest_set_context_wins_whatever_its_spelling(base: None) -> None:
    msctx.set_context(deterministic="ON")
    msctx.set_context(session={"deterministic": "OFF"})
    assert not torch.are_deterministic_algorithms_enabled()
    msctx.set_context(deterministic="ON")
    assert torch.are_deterministic_algorithms_enabled()
    msctx.reset_context()
    msctx.set_context("reproducible", session={"deterministic": "OFF"})
    assert not torch.are_deterministic_algorithms_enabled(), "the preset beat the option beside it"


def test_reports_outside_of_blocks_are_those_of_the_process(base: None) -> None:
    msctx.set_context(conv_fprop_algo="direct")
    torch.conv2d(torch.ones(1, 2, 7, 5), torch.ones(3, 2, 3, 3))
    assert [row.ran for row in msctx.current().choices() if row.problem.input == (1, 2, 7, 5)] == ["direct"]
    for report in ("choices", "precisions", "graphs"):
        assert str(getattr(msctx.current(), report)()) == str(getattr(msctx, report)())


def test_set_context_seeds_once(base: None) -> None:
    msctx.set_context(seed=5)
    first = torch.rand(1).item(), random.random()
    msctx.set_context(runtime_num_threads=1)
    assert (torch.rand(1).item(), random.random()) != first, "a set_context about threads seeded again"
    with msctx.context(max_call_depth=500):
        assert torch.rand(1).item() != first[0], "a scope that has no seed seeded again"
    msctx.set_context(seed=5)
    assert (torch.rand(1).item(), random.random()) == first


@pytest.mark.parametrize(
    "change", [lambda: msctx.set_context(runtime_num_threads=2), msctx.reset_context], ids=["set", "reset"]
)
def test_the_base_never_changes_below_an_open_block(base: None, exact_state: State, change: Callable[[], None]) -> None:
    msctx.set_context(max_call_depth=3000)
    with msctx.context(deterministic="ON"):
        inside = exact_state()
        with pytest.raises(ScopeError, match=r"^the with-block at test_set_context\.py:\d+ is open: "):
            change()
        with pytest.raises(ScopeError, match="is open in another thread: "):
            in_thread(change)
        assert exact_state() == inside
    change()


def test_a_refused_set_context_changes_nothing(base: None, exact_state: State) -> None:
    before = exact_state()
    with pytest.raises(OptionError):
        msctx.set_context(runtime_num_threads=1, deterministic="maybe")
    with pytest.raises(StrictError):
        msctx.set_context(runtime_num_threads=1, enable_dump=True, strict=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(MsctxWarning):
            msctx.set_context(runtime_num_threads=1, enable_dump=True)
    assert exact_state() == before
    assert msctx.get_context() == {}


@pytest.mark.parametrize("has_its_own", [False, True])
@pytest.mark.parametrize(
    "options",
    [{"runtime_num_threads": 1}, {"flush_denormal": True}, {"pynative_synchronize": True}, {"deterministic": "ON"}],
    ids=str,
)
def test_reset_in_another_thread_than_the_one_that_set(
    base: None, exact_state: State, options: dict[str, object], has_its_own: bool, request: pytest.FixtureRequest
) -> None:
    """It puts everything back, or it refuses and the thread that set it can still do so."""
    import torch._inductor.config as inductor

    own = override(inductor, "deterministic")
    request.addfinalizer(lambda: put_override(inductor, "deterministic", own))
    if has_its_own:
        inductor.deterministic = False
    before = exact_state()
    msctx.set_context(**options)
    try:
        in_thread(msctx.reset_context)
        assert exact_state() == before
    except msctx.MsctxError as refusal:
        assert ("another thread" in str(refusal), msctx.get_context()) == (True, options)  # noqa: PT017
    msctx.reset_context()
    assert exact_state() == before


def test_set_context_in_another_thread_leaves_what_the_first_one_set(base: None, exact_state: State) -> None:
    before = exact_state()
    msctx.set_context(runtime_num_threads=1)
    in_thread(lambda: msctx.set_context(max_call_depth=3000))
    assert threads() == 1
    assert msctx.get_context() == {"runtime_num_threads": 1, "max_call_depth": 3000}
    with pytest.raises(ScopeError, match=r"^runtime_num_threads was set by set_context in another thread"):
        in_thread(lambda: msctx.set_context(runtime_num_threads=2))
    msctx.reset_context()
    assert exact_state() == before


PER_THREAD: list[dict[str, Any]] = [{"precision_mode": "allow_mix_precision_bf16"}, {"check_bprop": True}]
"""What PyTorch keeps for each thread."""


@pytest.mark.parametrize("options", PER_THREAD)
def test_another_thread_does_not_claim_what_does_not_act_there(base: None, options: dict[str, object]) -> None:
    msctx.set_context(**options, deterministic="ON")
    name, value = next(iter(options.items()))
    found: dict[str, Any] = {}

    def look() -> dict[str, tuple[str, Any]]:
        rows = {row.option: (row.status, row.reason) for row in msctx.current().plan.rows}
        return {"plan": rows, "value": msctx.get_context(name), "all": msctx.get_context(), "get": msctx.current().get(name)}

    bound = msctx.current().bind(look)

    def work() -> None:
        found["plain"] = look()
        found["bound"] = bound()
        with msctx.context(seed=0):
            found["around"] = look()
        with msctx.context(**options):
            found["own"] = look()

    here = look()
    in_thread(work)
    assert found["bound"] == here == look()
    for there in (found["plain"], found["around"]):
        status, reason = there["plan"][name]
        assert (status, there["plan"]["deterministic"]) == ("inert", here["plan"]["deterministic"])
        assert "msctx.current().bind(function)" in reason
        assert there["value"] != value
        assert there["get"] != value
        assert there["all"] == {"deterministic": "ON"} | ({"seed": 0} if "seed" in there["plan"] else {})
    assert found["own"]["plan"][name][0] == here["plan"][name][0]
    assert found["own"]["value"] == value
