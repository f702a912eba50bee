"""Memory: the cap in bytes that each device gets and whose cap it is, and how the options of pools meet in one setting."""

from pathlib import Path
from typing import Any

import pytest
from plans import check, planned, rows

import msctx
from msctx import devices
from msctx.options import DEVICES
from msctx.options.graph import Compilation

GB = 2**30
CAPS = {"cuda": "torch.cuda.memory_cap", "ascend": "torch.npu.memory_cap"}
ALLOCATOR = "torch.accelerator.allocator_settings"
STEP = {"cuda": {"large_segment_size_mb": 1024}, "ascend": {"large_segment_size_mb": 512}}
GROWS = {"expandable_segments": True}


# --- accelerators -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", CAPS)
def test_the_settings_of_an_accelerators_allocator(device: str) -> None:
    shared = ("approximated", {ALLOCATOR: None}, "one caching allocator")
    cap = {CAPS[device]: 4 * GB}
    check(
        [
            (device, {"max_device_memory": "4GB"}, {"max_device_memory": ("approximated", cap, "caching allocator")}),
            (device, {"static_memory_policy": 0}, {"static_memory_policy": ("honoured", {ALLOCATOR: None}, "when it runs")}),
            (device, {"static_memory_policy": 1}, {"static_memory_policy": shared}),
            (device, {"static_memory_policy": 2}, {"static_memory_policy": shared}),
            (device, {"static_memory_policy": 3}, {"static_memory_policy": ("honoured", {ALLOCATOR: GROWS}, "segments")}),
            (
                device,
                {"static_memory_policy": 4},
                {"static_memory_policy": ("approximated", {ALLOCATOR: GROWS}, "one caching allocator")},
            ),
            *(
                (
                    device,
                    {"memory_optimize_level": level},
                    {"memory_optimize_level": ("honoured", {ALLOCATOR: found, "models.recompute": level == "O1"}, why)},
                )
                for level, found, why in (("O0", None, "nothing is computed again"), ("O1", GROWS, "segments grow"))
            ),
            (
                device,
                {"mempool_block_size": "1GB"},
                {"mempool_block_size": ("approximated", {ALLOCATOR: STEP[device]}, "for requests of 1 to 10 MB")},
            ),
        ]
    )
    together = rows({"mempool_block_size": "1GB", "memory_optimize_level": "O1", "static_memory_policy": 0}, on=device)
    assert [row.assignments[ALLOCATOR] for row in together.values()] == [STEP[device] | GROWS] * 3
    assert f"takes {STEP[device]['large_segment_size_mb']} MB" in together["mempool_block_size"].reason


@pytest.mark.parametrize(("device", "size"), [("cuda", 3584), ("ascend", 512)])
def test_a_segment_is_as_large_as_is_asked_or_documented(device: str, size: int) -> None:
    row = rows({"mempool_block_size": "3.5GB"}, on=device)["mempool_block_size"]
    assert (row.status, row.assignments) == ("approximated", {ALLOCATOR: {"large_segment_size_mb": size}})
    assert f"takes {size} MB" in row.reason
    here = msctx.context(device_target={"cuda": "GPU", "ascend": "Ascend"}[device], mempool_block_size="3.5GB").plan
    found = [row.assignments for row in here.rows if row.option == "mempool_block_size" and row.device == device]
    assert found == [{ALLOCATOR: {"large_segment_size_mb": size}}], "planned where there is none"


@pytest.mark.parametrize(("cap", "step"), [("80GB", 1024), ("4GB", 512), ("100MB", 20)])
def test_a_step_is_a_part_of_the_cap(cap: str, step: int) -> None:
    """Torch would raise OutOfMemoryError for a tensor of 1 MB where a whole step does not fit under the cap."""
    row = rows({"mempool_block_size": "1GB", "max_device_memory": cap}, on="cuda")["mempool_block_size"]
    assert row.assignments == {ALLOCATOR: {"large_segment_size_mb": step}}
    assert f"takes {step} MB" in row.reason


@pytest.mark.parametrize("device", DEVICES)
def test_in_graph_mode_the_compiler_computes_again(device: str) -> None:
    for level, keeps in (("O0", 1), ("O1", 0)):
        row = rows({"mode": 0, "memory_optimize_level": level}, on=device)["memory_optimize_level"]
        if device == "ascend" and level == "O1":
            assert (row.status, "torchair" in row.reason) == ("approximated", True)
        elif device != "ascend":
            assert row.status == "honoured"
            assert row.assignments["graph.compilation"] == Compilation(keeps=keeps)
            assert row.assignments.get("models.recompute", False) is False


REUSE: dict[str, dict[bool, dict[str, Any]]] = {
    "cuda": {True: {"torch.cuda.caching_allocator": True}, False: {"torch.cuda.caching_allocator": False}},
    "ascend": {True: {"env.PYTORCH_NO_NPU_MEMORY_CACHING": None}, False: {"env.PYTORCH_NO_NPU_MEMORY_CACHING": "1"}},
}
GRAPHS = {
    True: {"torch.inductor.allow_buffer_reuse": True, "torch.inductor.inplace_buffers": True},
    False: {
        "torch.inductor.allow_buffer_reuse": False,
        "torch.inductor.inplace_buffers": False,
        "torch.inductor.memory_planning": False,
    },
}


@pytest.mark.parametrize("reuse", [True, False])
def test_without_reuse_nothing_is_kept(reuse: bool, tmp_path: Path) -> None:
    file = tmp_path / "env.json"
    file.write_text(f'{{"sys": {{"mem_reuse": {str(reuse).lower()}}}}}')
    beside = {"max_device_memory": "80GB", "mempool_block_size": "2GB"}
    for device in DEVICES:
        found = rows({"env_config_path": str(file), **beside, "memory_optimize_level": "O0"}, on=device)
        row = found["env_config_path.sys.mem_reuse"]
        if device == "cpu":
            pool = {"native.memory_pool": 150 if reuse else 0}
            assert (row.status, row.assignments) == ("honoured", pool | GRAPHS[reuse])
            assert ("no tensor gets an address that another one had" in row.reason) is not reuse
        else:
            expected = "honoured" if reuse else "approximated"
            assert (row.status, row.assignments) == (expected, REUSE[device][reuse] | GRAPHS[reuse])
            assert ("may give its address to the next one" in row.reason) is not reuse
        of_accelerators = ["mempool_block_size", "max_device_memory"] if device != "cpu" else []
        for option in ("memory_optimize_level", *of_accelerators):
            if not reuse and (device, option) not in (("cuda", "memory_optimize_level"), ("ascend", "memory_optimize_level")):
                assert (found[option].status, found[option].assignments) == ("refused", {}), (device, option)
                assert "while env_config_path.sys.mem_reuse is false" in found[option].reason
            else:
                assert found[option].status in ("honoured", "approximated"), (device, option)


def test_every_device_of_a_machine_is_capped() -> None:
    found = planned({"max_device_memory": "4GB"}, on=DEVICES)
    assert found.assignments == dict.fromkeys(CAPS.values(), 4 * GB)
    assert found.failing == ()


@pytest.mark.parametrize(("outer", "inner"), [("4GB", "8GB"), ("8GB", "4GB")])
def test_the_tightest_of_nested_scopes_holds(outer: str, inner: str) -> None:
    """An inner scope cannot loosen the cap of an outer one; what it asks of the allocator, it can take back."""
    found = planned({"max_device_memory": outer}, {"max_device_memory": inner}, on="cuda")
    assert found.assignments == {CAPS["cuda"]: 4 * GB}
    (row,) = found.rows
    asked, around = (f"{cap[0]} GiB" for cap in (inner, outer))
    assert row.reason.startswith(f"4 GiB, the least of {asked} asked for, {around} of layer 0; counts torch's")
    found = planned({"memory_optimize_level": "O1"}, {"memory_optimize_level": "O0"}, on="cuda")
    assert found.assignments == {ALLOCATOR: None, "models.recompute": False}


def test_an_option_beside_a_preset_beats_the_presets_cap(tmp_path: Path) -> None:
    """A preset, a file and the command line are no scopes around one another: the higher one wins."""
    preset = tmp_path / "small.yaml"
    preset.write_text("context:\n  max_device_memory: 4GB\n")
    found = msctx.explain({"preset": str(preset), "max_device_memory": "8GB"}, device="cuda")
    assert found.assignments == {CAPS["cuda"]: 8 * GB}


# --- the host ---------------------------------------------------------------------------------------------------------


def test_nested_caps_on_a_cpu_all_count() -> None:
    caps = ("4GB", "8GB", "1GB")
    (row,) = planned(*({"max_device_memory": cap} for cap in caps), free_memory=3 * GB).rows
    assert row.status == "honoured"
    wanted = {"native.memory_pool": 150, "native.memory_caps": [[4 * GB, "layer 0"], [8 * GB, "layer 1"], [GB, "layer 2"]]}
    assert row.assignments == wanted
    assert row.reason == "1 GiB, the least of 1 GiB asked for, 4 GiB of layer 0, 8 GiB of layer 1, 3 GiB free now"
    assert not planned({"max_device_memory": "4GB"}).rows[0].reason


def test_free_memory_is_the_cap_where_it_is_less(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "here", lambda: ("cpu",))
    monkeypatch.setattr(devices, "free_memory", lambda: 3 * GB)
    (row,) = msctx.explain({"max_device_memory": "8GB"}).rows
    assert (row.status, row.reason) == ("honoured", "3 GiB, the least of 8 GiB asked for, 3 GiB free now")


@pytest.mark.parametrize(("target", "applies"), [(None, False), ("GPU", False), ("CPU", True)])
def test_beside_an_accelerator_the_host_is_capped_where_it_is_the_target(target: str | None, applies: bool) -> None:
    found = planned({"max_device_memory": "4GB"} | ({"device_target": target} if target else {}), on=DEVICES)
    assert any(r.option == "max_device_memory" and r.device == "cpu" for r in found.rows) is applies


@pytest.mark.parametrize(
    ("options", "percent"), [({}, 150), ({"memory_optimize_level": "O0"}, 150), ({"memory_optimize_level": "O1"}, 100)]
)
def test_how_much_memory_is_kept(options: dict[str, object], percent: int) -> None:
    found = rows({"max_device_memory": "4GB", **options}).values()
    assert [(row.status, row.assignments["native.memory_pool"]) for row in found] == [("honoured", percent)] * len(found)


@pytest.mark.parametrize("options", [{"mempool_block_size": "2GB"}, *({"static_memory_policy": policy} for policy in range(5))])
def test_pools_of_devices_have_no_effect_on_a_cpu(options: dict[str, object]) -> None:
    (row,) = rows(options).values()
    assert (row.status, row.assignments) == ("inert", {})
    assert row.reason == "it sizes the memory pools of GPU and Ascend. For a cap on the CPU, set max_device_memory"


def test_without_a_native_core_a_cpu_has_no_cap() -> None:
    row = rows({"max_device_memory": "4GB"}, native="there is no compiler")["max_device_memory"]
    assert (row.status, row.reason) == ("refused", "there is no compiler")
