"""max_device_memory: the cap in bytes that each device gets, and whose cap it is."""

from pathlib import Path

import pytest

import msctx
from msctx import plan
from msctx.effects import Facts
from msctx.options import DEVICES, Settings, make_layer

GB = 2**30
SWITCHES = {"cuda": "torch.cuda.memory_cap", "ascend": "torch.npu.memory_cap"}


@pytest.mark.parametrize(("device", "switch"), SWITCHES.items())
@pytest.mark.parametrize(("given", "size"), [("4GB", 4 * GB), ("512MB", GB // 2), (123456789, 123456789)])
def test_the_cap_goes_to_the_caching_allocator(device: str, switch: str, given: object, size: int) -> None:
    found = msctx.explain({"max_device_memory": given}, device=device)
    assert found.assignments == {switch: size}
    (row,) = found.rows
    assert (row.status, row.value) == ("approximated", size)
    assert "caching allocator" in row.reason


def test_on_a_cpu_it_waits_for_the_pool() -> None:
    (row,) = msctx.explain({"max_device_memory": "4GB"}, device="cpu").rows
    assert (row.status, row.assignments) == ("not_built", {})
    assert "memory pool" in row.reason


def test_every_device_of_a_machine_is_capped() -> None:
    found = plan.make(Settings([make_layer({"max_device_memory": "4GB"}, "test")]), Facts(devices=DEVICES))
    assert found.assignments == dict.fromkeys(SWITCHES.values(), 4 * GB)
    assert found.failing == (), "what the accelerator carries out is carried out"


@pytest.mark.parametrize(("outer", "inner"), [("4GB", "8GB"), ("8GB", "4GB")])
def test_the_tightest_of_nested_scopes_holds(outer: str, inner: str) -> None:
    """An inner scope cannot loosen the cap of an outer one."""
    layers = [make_layer({"max_device_memory": cap}, cap) for cap in (outer, inner)]
    found = plan.make(Settings(layers), Facts.only("cuda"))
    assert found.assignments == {SWITCHES["cuda"]: 4 * GB}
    assert [row.origin for row in found.rows] == [inner]


def test_an_option_beside_a_preset_beats_the_presets_cap(tmp_path: Path) -> None:
    """A preset, a file and the command line are no scopes around one another: the higher one wins."""
    preset = tmp_path / "small.yaml"
    preset.write_text("context:\n  max_device_memory: 4GB\n")
    found = msctx.explain({"preset": str(preset), "max_device_memory": "8GB"}, device="cuda")
    assert found.assignments == {SWITCHES["cuda"]: 8 * GB}
