"""The policies for convolutions and for precision as switches: one for each kind of device, written whole."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields

import pytest
import torch

from msctx.native import core, policy_and_choices, precision_policies
from msctx.options.algorithm_policy import REQUESTED, RULES, ConvPolicy, option_of
from msctx.shipped import KERNEL_SOURCES
from msctx.switches import SWITCHES

CPU, CUDA, ASCEND = (SWITCHES[f"native.convolution.{place}"] for place in core.PLACES)


def test_the_library_reads_each_field_by_its_name() -> None:
    read = {*re.findall(r'given\["(\w+)"\]', "".join(p.read_text() for p in (KERNEL_SOURCES / "common").glob("policy.*")))}
    algorithms = {*map(option_of, REQUESTED), *RULES}
    assert {f.name for f in fields(ConvPolicy)} - algorithms == read - {"rules"}


def test_reading_and_writing_nothing_loads_nothing(passes: Callable[..., str]) -> None:
    passes("""
        import torch
        from msctx.native import core
        from msctx.switches import SWITCHES
        for place in core.PLACES:
            switch = SWITCHES[f"native.convolution.{place}"]
            assert switch.read() is None
            switch.set(None)
        assert core.loaded() is None
    """)


def test_what_the_library_does_not_take_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> core.Core:
        raise core.NativeError("no")

    monkeypatch.setitem(policy_and_choices.LOAD, "cpu", broken)
    with pytest.raises(core.NativeError):
        CPU.set(ConvPolicy(conv_fprop_algo="gemm"))
    assert CPU.read() is None


TEXT = '{"precision_mode":"allow_mix_precision_bf16"}'


def test_a_precision_policy_is_written_and_put_back_alone() -> None:
    switches = {name: SWITCHES[f"native.precision.{name}"] for name in precision_policies.DEVICES}
    for device, switch in switches.items():
        found = switch.take()
        switch.set(TEXT)
        try:
            assert {name: other.read() for name, other in switches.items()} == {**dict.fromkeys(switches), device: TEXT}
            assert switch.is_satisfied(TEXT)
        finally:
            switch.put_back(found)
        assert switch.read() is None


def test_a_switched_autocast_is_seen() -> None:
    switch = SWITCHES["native.precision.cpu"]
    found = switch.take()
    switch.set(TEXT)
    try:
        torch.set_autocast_enabled("cpu", False)
        assert switch.read() != TEXT
    finally:
        switch.put_back(found)
