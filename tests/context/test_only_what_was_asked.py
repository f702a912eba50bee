"""A context writes what its plan says and nothing else; importing msctx writes and reads nothing."""

import warnings
from typing import Any

import pytest
import torch
from context_helpers import Passes, State, threads

import msctx

BUILT: list[dict[str, Any]] = [
    {},
    {"deterministic": "OFF"},
    {"deterministic": "ON", "deterministic_warn_only": True, "fill_uninitialized_memory": False},
    {"runtime_num_threads": 1},
    {"pynative_synchronize": True},
    {"max_call_depth": 10},
    {"seed": 0},
    {"seed_scope": True},
    {"strict": True},
    {"device_target": "CPU", "device_id": 0},
    {"device_target": "CPU", "default_device": True},
]


@pytest.mark.parametrize("options", BUILT, ids=str)
def test_an_option_changes_exactly_what_its_plan_says(exact_state: State, options: dict[str, Any]) -> None:
    before = exact_state()
    generators = torch.get_rng_state().tolist()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with msctx.context(**options) as ctx:
            plan = ctx.plan.assignments
            changed = {key: now for key, (_, now) in msctx.diff(before, exact_state()).items() if "." in key}
            assert (torch.get_rng_state().tolist() == generators) is ("seed" not in options)
            for switch, value in plan.items():
                assert switch.startswith("rng.") or msctx.state()[switch] == value
    assert set(changed) <= {*plan}
    assert exact_state() == before


@pytest.mark.parametrize("options", [{"deterministic": "ON", "runtime_num_threads": 1}, {"max_call_depth": 5000}], ids=str)
def test_an_inner_scope_writes_only_its_own(exact_state: State, options: dict[str, Any]) -> None:
    with msctx.context(**options):
        torch._C._set_mkldnn_deterministic(False)  # by the user, inside
        torch.set_num_threads(2)
        inside = exact_state()
        for inner in ({"seed_scope": True}, {"device_target": "CPU"}, {}):
            with msctx.context(**inner):
                assert exact_state() == inside, "the outer scope's options were written again"
            assert exact_state() == inside
        torch._C._set_mkldnn_deterministic(options.get("deterministic") == "ON")
        torch.set_num_threads(options.get("runtime_num_threads", 2))
    assert threads() == 2


@pytest.mark.full
def test_importing_msctx_changes_and_reads_nothing(passes: Passes) -> None:
    code = """
        import sys, torch
        flags = torch.are_deterministic_algorithms_enabled(), torch.get_num_threads(), sys.getrecursionlimit()
        import msctx
        assert (torch.are_deterministic_algorithms_enabled(), torch.get_num_threads(), sys.getrecursionlimit()) == flags
        msctx.state()
        assert (torch.are_deterministic_algorithms_enabled(), torch.get_num_threads(), sys.getrecursionlimit()) == flags
        try:
            with msctx.context(runtime_num_threads=1):
                raise SystemExit("MSCTX_MAX_CALL_DEPTH=many was taken")
        except msctx.OptionError as error:
            assert "MSCTX_MAX_CALL_DEPTH" in str(error), error
        assert torch.get_num_threads() == flags[1]
        import os
        os.environ["MSCTX_MAX_CALL_DEPTH"] = "3000"
        assert msctx.get_context("max_call_depth", origin=True) == (3000, "environment MSCTX_MAX_CALL_DEPTH")
        assert torch.are_deterministic_algorithms_enabled()
        with msctx.context(deterministic="OFF"):
            assert not torch.are_deterministic_algorithms_enabled()
        assert torch.are_deterministic_algorithms_enabled()
    """
    passes(code, env={"MSCTX_DETERMINISTIC": "ON", "MSCTX_MAX_CALL_DEPTH": "many"})
