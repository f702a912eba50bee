"""Which layer, preset, group or spelling wins, and what get_context says of its value and origin."""

import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from context_helpers import quiet

import msctx
from msctx.context import ledger
from msctx.errors import OptionError


def test_each_layer_beats_the_one_below(
    begin_anew: Callable[[], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    preset = tmp_path / "mine.yaml"
    preset.write_text("context:\n  max_call_depth: 2001\n")

    def found() -> tuple[int, str]:
        value, origin = msctx.get_context("max_call_depth", origin=True)
        assert value == 1000 or ledger.SWITCHES["torch.nn.max_call_depth"].read() == value
        return value, origin

    assert found() == (1000, "default")
    monkeypatch.setenv("MSCTX_PRESET", str(preset))
    begin_anew()
    value, origin = found()
    assert value == 2001
    assert "mine.yaml:2:" in origin
    monkeypatch.setenv("MSCTX_MAX_CALL_DEPTH", "2002")
    begin_anew()
    assert found() == (2002, "environment MSCTX_MAX_CALL_DEPTH")
    msctx.set_context(max_call_depth=2003)
    value, origin = found()
    assert value == 2003
    assert origin.startswith("set_context at test_precedence.py:")
    with msctx.context(max_call_depth=2004):
        value, origin = found()
        assert value == 2004
        assert origin.startswith("with-block at test_precedence.py:")
        with msctx.context(str(preset), runtime_num_threads=1):
            value, origin = found()
            assert value == 2001, "an inner scope's preset beats the outer scope"
            assert "mine.yaml:2:" in origin
            with msctx.context(max_call_depth=2006):
                assert found()[0] == 2006
            assert found()[0] == 2001
        assert found()[0] == 2004
    assert found()[0] == 2003
    msctx.reset_context()
    assert found() == (1000, "default"), "for good: no use of msctx reads the environment again"
    with msctx.context(runtime_num_threads=1):
        assert found() == (1000, "default")
    assert found() == (1000, "default")


def test_options_beat_the_preset_beside_them() -> None:
    with msctx.context("reproducible", seed_scope=True) as ctx:
        assert torch.are_deterministic_algorithms_enabled()
        assert msctx.get_context("seed", origin=True) == (0, "preset reproducible")
        assert ctx.get("deterministic") == "ON"
    with msctx.context("reproducible", deterministic="OFF", seed=7, seed_scope=True):
        assert not torch.are_deterministic_algorithms_enabled()
        assert torch.initial_seed() == 7
    with msctx.context(preset="reproducible", seed_scope=True):
        assert torch.initial_seed() == 0


def test_two_presets_are_a_contradiction() -> None:
    for call in (msctx.context, msctx.set_context):
        with pytest.raises((OptionError, TypeError)):
            call("fast", preset="debug")
    with pytest.raises(OptionError, match=r"test_precedence.py:\d+  preset: options are keyword arguments"):
        msctx.context({"seed": 1})


def test_two_spellings_of_one_option() -> None:
    with msctx.context(deterministic="ON"):
        assert msctx.get_context("session.deterministic") == "ON"
        with msctx.context(session={"deterministic": "OFF"}):
            assert msctx.get_context("deterministic") == "OFF"
            assert not torch.are_deterministic_algorithms_enabled()
    with msctx.context(deterministic="ON", session={"deterministic": "ON"}):
        assert torch.are_deterministic_algorithms_enabled()
    with pytest.raises(OptionError, match="contradicts"):
        msctx.context(deterministic="ON", session={"deterministic": "OFF"})


def test_get_context() -> None:
    assert msctx.get_context("runtime_num_threads", origin=True) == (30, "default")
    assert msctx.get_context("seed", origin=True) == (None, "default")
    assert msctx.get_context() == {}
    assert msctx.get_context("gpu_config") == {}, "a group of which nothing is set"
    with msctx.context(runtime_num_threads=1, seed_scope=True):
        assert msctx.get_context() == {"runtime_num_threads": 1, "seed_scope": True}
        assert msctx.get_context(origin=True)["seed_scope"].origin.startswith("with-block at test_precedence.py:")
    with pytest.raises(OptionError, match="did you mean deterministic"):
        msctx.get_context("determinstic")


@quiet
def test_the_value_in_force_on_the_main_device_is_read() -> None:
    import torch

    threads = torch.get_num_threads()
    with msctx.context(
        runtime_num_threads=threads + 1, device_context={"cpu": {"op_tuning": {"threads_num": threads + 2}}}
    ) as ctx:
        assert torch.get_num_threads() == threads + 2
        assert msctx.get_context("runtime_num_threads") == ctx.get("runtime_num_threads") == threads + 2
        assert msctx.get_context() == {"runtime_num_threads": threads + 2}
    with msctx.context(cpu_config={"matmul_allow_tf32": True}, matmul_allow_tf32=False):
        assert msctx.get_context("matmul_allow_tf32") is True
        assert msctx.get_context("gpu_config.matmul_allow_tf32") is False


@quiet
def test_a_value_for_another_device_is_no_value_here() -> None:
    with msctx.context(gpu_config={"conv_fprop_algo": "fft"}, device_target="CPU"):
        assert (msctx.get_context("conv_fprop_algo"), msctx.get_context("gpu_config.conv_fprop_algo")) == ("normal", "fft")
        assert msctx.get_context() == {"gpu_config.conv_fprop_algo": "fft", "device_target": "CPU"}


def test_the_keys_of_a_file_that_was_named_anew_are_gone() -> None:
    with (
        msctx.context(graph_kernel_flags="--opt_level=3 --dump_as_text"),
        msctx.context(graph_kernel_flags="--opt_level=1"),
    ):
        assert msctx.get_context() == {"graph_kernel_flags": "--opt_level=1", "graph_kernel_flags.opt_level": 1}
        assert msctx.get_context("graph_kernel_flags.dump_as_text") is False


@pytest.mark.parametrize("group_first", [True, False])
def test_a_later_call_that_a_group_overrides_is_told(group_first: bool) -> None:
    first, second = {"cpu_config": {"conv_allow_tf32": False}}, {"conv_allow_tf32": True}
    if not group_first:
        first, second = second, first
    try:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            msctx.set_context(**first)
            msctx.set_context(**second)
        assert msctx.get_context("conv_allow_tf32") is False
        overridden = [w for w in told if "overridden by cpu_config.conv_allow_tf32" in str(w.message)]
        assert bool(overridden) is group_first, "a group set after the flat spelling is what it is for"
    finally:
        msctx.reset_context()
