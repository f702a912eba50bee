"""What ms.set_context leaves: what MindSpore remembers, the state that is msctx's own, and the object of the module."""

from pathlib import Path
from typing import Any

import pytest

import msctx
import msctx.mindspore as ms
from msctx.errors import DeviceError, MsctxWarning

# --- what MindSpore remembers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "one", "same", "other"),
    [
        ("device_id", 1, 1, 2),
        ("max_device_memory", "4GB", "4.0GB", "5GB"),
        ("mempool_block_size", "4GB", "4.0GB", "5GB"),
        ("variable_memory_max_size", "4GB", "4GB", "5GB"),
    ],
)
def test_what_was_read_cannot_be_changed(key: str, one: Any, same: Any, other: Any) -> None:
    ms.set_context(device_target="Ascend", **{key: other})
    ms.set_context(**{key: one})  # not read yet
    shown = ms.get_context(key)
    ms.set_context(**{key: same})
    with pytest.raises(TypeError, match="cannot be changed any more"):
        ms.set_context(**{key: other})
    assert ms.get_context(key) == shown
    msctx.reset_context()
    ms.set_context(device_target="Ascend", **{key: other})
    assert ms.get_context(key) != shown


def test_the_default_counts_as_read_too() -> None:
    ms.set_context(device_target="GPU")
    assert ms.get_context("max_device_memory") == 1024.0
    ms.set_context(max_device_memory="1024GB")
    with pytest.raises(TypeError):
        ms.set_context(max_device_memory="4GB")


# --- values of msctx --------------------------------------------------------------------------------------------------


def test_it_is_msctxs_state() -> None:
    ms.set_context(deterministic="ON")
    assert msctx.get_context("deterministic", origin=True).origin.startswith(f"ms.set_context at {Path(__file__).name}:")
    with msctx.context(deterministic="OFF"):
        assert ms.get_context("deterministic") == "OFF"
    msctx.set_context(max_device_memory="512MB", conv_fprop_algo="implicit_precomp_gemm")
    assert ms.get_context("max_device_memory") == 0.5
    assert ms.get_context("conv_fprop_algo") == "precomp_gemm"
    msctx.reset_context()
    assert ms.get_context("deterministic") == "OFF"


def test_a_group_of_another_device_does_not_show() -> None:
    msctx.set_context(cpu_config={"conv_fprop_algo": "fft"}, jit_compile="auto")
    assert ms.get_context("conv_fprop_algo") == "normal"
    assert ms.get_context("jit_compile") == ""


def test_a_value_that_yields_to_another_option_still_shows() -> None:
    ms.set_context(enable_graph_kernel=True, graph_kernel_flags="--opt_level=0")
    assert ms.get_context("enable_graph_kernel") is True


def test_a_target_that_is_not_here_is_planned(absent: str) -> None:
    with pytest.warns(MsctxWarning, match="no such device here; what is set is planned"):
        ms.set_context(device_target=absent, deterministic="ON")
    assert ms.get_context("device_target") == absent
    plan = msctx.current().plan
    assert plan.missing
    assert plan.target == absent
    with pytest.raises(DeviceError), msctx.context(deterministic="ON"):
        pass
    import torch

    assert not torch.are_deterministic_algorithms_enabled()
    ms.set_context(device_target="CPU")
    assert torch.are_deterministic_algorithms_enabled()
    with msctx.context(deterministic="OFF"):
        assert not torch.are_deterministic_algorithms_enabled()


def test_memory_optimize_level_follows_the_target_until_it_is_set() -> None:
    ms.set_context(device_target="Ascend")
    assert ms.get_context("memory_optimize_level") == 1
    ms.set_context(device_target="CPU")
    assert ms.get_context("memory_optimize_level") == 0
    ms.set_context(memory_optimize_level="O0", device_target="Ascend")
    assert ms.get_context("memory_optimize_level") == 0


def test_device_id_begins_with_the_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEVICE_ID", "3")
    assert ms.get_context("device_id") == 3
    monkeypatch.setenv("DEVICE_ID", "x")
    assert ms.get_context("device_id") == 0


def test_the_old_name_of_ascend_is_reported() -> None:
    with pytest.warns(MsctxWarning, match="Davinci is the old name of Ascend"):
        ms.set_context(device_target="Davinci")


# --- the module and its object ----------------------------------------------------------------------------------------


def test_the_object_is_made_at_the_first_use() -> None:
    assert ms.context.K_CONTEXT is None
    ms.set_context(mode=ms.PYNATIVE_MODE)
    first = ms.context.K_CONTEXT
    assert first is ms.context._context()
    ms.context.K_CONTEXT = None
    second = ms.context._context()
    assert second is not first
    assert second.mode == first.mode == ms.PYNATIVE_MODE


def test_the_object_has_mindspores_methods() -> None:
    context = ms.context._context()
    context.set_mode(ms.GRAPH_MODE)
    assert context.get_mode() == context.get_param("mode") == ms.GRAPH_MODE
    context.set_param("mode", ms.PYNATIVE_MODE)
    context.check_bprop = True
    assert ms.get_context("mode") == 1
    assert ms.get_context("check_bprop") is True
    with pytest.raises(ValueError, match="mode"):
        context.set_mode(2)
    context.enable_debug_runtime = False
    assert not hasattr(context, "nonsense")
