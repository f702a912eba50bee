"""The fields of the native core's policy as switches."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from msctx.native import core, policy
from msctx.switches import SWITCHES

VALUES = {
    "conv_fprop_algo": "gemm",
    "conv_dgrad_algo": "algo_1",
    "conv_wgrad_algo": "fft",
    "conv_algo_rules": "a.*: fprop=gemm",
    "conv_workspace_limit": 2**20,
    "conv_max_error": 1e-6,
    "fallback": "silent",
    "deterministic": True,
    "thread_invariant": True,
    "enable_small_channel": True,
    "conv_allow_tf32": True,
    "allow_fp32_emulation": False,
    "frozen_weights": True,
    "tuning_file": "tuning.json",
}


@pytest.mark.parametrize("field", policy.NOTHING)
def test_a_field_is_written_and_put_back_alone(field: str) -> None:
    switch = SWITCHES[policy.switch_of(field, "cpu")]
    found = switch.take()
    switch.set(VALUES[field])
    try:
        assert {f: SWITCHES[f"native.{f}"].read() for f in policy.NOTHING} == {**policy.NOTHING, field: VALUES[field]}
    finally:
        switch.put_back(found)
    assert switch.read() == policy.NOTHING[field]


def test_only_fields_that_ask_for_something_bring_the_library() -> None:
    for place, load in (("cpu", core.load), ("cuda", core.load_with_cuda)):
        fields = policy.PLACES[place].fields
        bringing = {name for name in fields if SWITCHES[policy.switch_of(name, place)].prepare is not None}
        assert bringing == set(policy.ASKING) & set(fields)
        assert all(SWITCHES[policy.switch_of(name, place)].prepare is load for name in bringing)


def test_each_place_has_its_own_policy() -> None:
    assert set(policy.PLACES["cuda"].fields) < set(policy.PLACES["cpu"].fields)
    SWITCHES["native.cuda.fallback"].set("error")
    try:
        assert (SWITCHES["native.fallback"].read(), SWITCHES["native.cuda.fallback"].read()) == ("warn", "error")
    finally:
        SWITCHES["native.cuda.fallback"].set("warn")


def test_reading_and_writing_nothing_loads_nothing(passes: Callable[..., str]) -> None:
    passes("""
        import torch
        from msctx.native import core, policy
        from msctx.switches import SWITCHES
        for field, nothing in policy.NOTHING.items():
            SWITCHES[f"native.{field}"].set(nothing)
        SWITCHES["native.fallback"].set("error")
        assert core.loaded() is None
    """)


def test_what_the_library_does_not_take_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> core.Core:
        raise core.NativeError("no")

    monkeypatch.setattr(core, "load", broken)
    with pytest.raises(core.NativeError):
        SWITCHES["native.conv_fprop_algo"].set("gemm")
    assert SWITCHES["native.conv_fprop_algo"].read() is None
