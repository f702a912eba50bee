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
POOL = {"keep": "all", "piece": 2**26}


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
    assert f"grows by {STEP[device]['large_segment_size_mb']} MB" in together["mempool_block_size"].reason


@pytest.mark.parametrize(("device", "size"), [("cuda", 3584), ("ascend", 512)])
def test_a_segment_is_as_large_as_is_asked_or_documented(device: str, size: int) -> None:
    row = rows({"mempool_block_size": "3.5GB"}, on=device)["mempool_block_size"]
    assert (row.status, row.assignments) == ("approximated", {ALLOCATOR: {"large_segment_size_mb": size}})
    assert f"takes {size} MB" in row.reason
    assert ("the most that torch_npu's documentation allows" in row.reason) == (device == "ascend")
    here = msctx.context(device_target={"cuda": "GPU", "ascend": "Ascend"}[device], mempool_block_size="3.5GB").plan
    found = [row.assignments for row in here.rows if row.option == "mempool_block_size" and row.device == device]
    assert found == [{ALLOCATOR: {"large_segment_size_mb": size}}], "planned where there is none"


@pytest.mark.parametrize(("cap", "step"), [("80GB", 1024), ("4GB", 512), ("100MB", 20)])
def test_a_step_is_a_part_of_the_cap(cap: str, step: int) -> None:
    """Torch would raise OutOfMemoryError for a tensor of 1 MB where a whole step does not fit under the cap."""
    row = rows({"mempool_block_size": "1GB", "max_device_memory": cap}, on="cuda")["mempool_block_size"]
    assert row.assignments == {ALLOCATOR: {"large_segment_size_mb": step}}
    assert f"{step} MB (at most an eighth of max_device_memory" in row.reason


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
            pool = {"native.memory_pool": {"keep": "all", "piece": 2 * GB} if reuse else {"keep": "nothing", "piece": 2**26}}
            assert (row.status, row.assignments) == ("honoured", pool | GRAPHS[reuse])
            assert ("no tensor gets an address that another one had" in row.reason) is not reuse
        else:
            expected = "honoured" if reuse else "approximated"
            assert (row.status, row.assignments) == (expected, REUSE[device][reuse] | GRAPHS[reuse])
            assert ("may give its address to the next one" in row.reason) is not reuse
        for option in ("mempool_block_size", "memory_optimize_level", *(["max_device_memory"] if device != "cpu" else [])):
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
    wanted = {"native.memory_pool": POOL, "native.memory_caps": [[4 * GB, "layer 0"], [8 * GB, "layer 1"], [GB, "layer 2"]]}
    assert row.assignments == wanted
    assert row.reason == "1 GiB, the least of 1 GiB asked for, 4 GiB of layer 0, 8 GiB of layer 1, 3 GiB free now"
    assert not planned({"max_device_memory": "4GB"}).rows[0].reason


@pytest.mark.parametrize("name", ["max_device_memory", "mempool_block_size"])
def test_free_memory_is_the_cap_where_it_is_less(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "here", lambda: ("cpu",))
    monkeypatch.setattr(devices, "free_memory", lambda: 3 * GB)
    (row,) = msctx.explain({name: "8GB"}).rows
    assert (row.status, row.reason) == ("honoured", "3 GiB, the least of 8 GiB asked for, 3 GiB free now")
    assert not rows({"mempool_block_size": "8GB"}, free_memory=9 * GB)["mempool_block_size"].reason


@pytest.mark.parametrize(("target", "applies"), [(None, False), ("GPU", False), ("CPU", True)])
def test_beside_an_accelerator_the_host_is_capped_where_it_is_the_target(target: str | None, applies: bool) -> None:
    found = planned({"max_device_memory": "4GB"} | ({"device_target": target} if target else {}), on=DEVICES)
    assert any(r.option == "max_device_memory" and r.device == "cpu" for r in found.rows) is applies


@pytest.mark.parametrize(
    ("options", "keep", "piece"),
    [
        ({"memory_optimize_level": "O0"}, "all", 2**26),
        ({"memory_optimize_level": "O1"}, "some", 2**26),
        ({"session": {"static_memory_policy": 2}}, "some", 2**26),
        ({"session": {"static_memory_policy": 3}}, "all", 2**26),
        ({"session": {"static_memory_policy": 4}, "max_device_memory": "4GB"}, "some", 2**26),
        ({"session": {"static_memory_policy": 3}, "memory_optimize_level": "O1"}, "all", 2**26),
        ({"mempool_block_size": "2GB"}, "all", 2 * GB),
        ({"mempool_block_size": "2GB", "memory_optimize_level": "O1", "max_device_memory": "4GB"}, "settled", 2 * GB),
    ],
)
def test_the_pool_has_one_policy(options: dict[str, object], keep: str, piece: int) -> None:
    found = rows(options).values()
    assert {row.status for row in found} <= {"honoured", "approximated"}
    assert [row.assignments["native.memory_pool"] for row in found] == [{"keep": keep, "piece": piece}] * len(found)


def test_each_static_policy_reports_what_is_had_of_it() -> None:
    """What 4 adds to 2 is in each of them: alike in both, and no more than approximated. 1 is the old form of 2."""
    biggest, grows = ({"native.memory_pool": {"keep": keep, "piece": 2**26}} for keep in ("some", "all"))
    for policy, status, assignments, says in (
        (0, "honoured", {}, ["when it runs"]),
        (1, "approximated", biggest, ["one pool for all code"]),
        (2, "approximated", biggest, ["one pool for all code"]),
        (3, "honoured", grows, ["by pages", "one and a half times the peak (two and a half"]),
        (4, "approximated", biggest, ["one pool", "as 2 does here", "by pages"]),
    ):
        row = rows({"static_memory_policy": policy})["static_memory_policy"]
        assert (row.status, row.assignments) == (status, assignments)
        assert all(part in row.reason for part in says)
    for beside in ({"max_device_memory": "1GB"}, {"mempool_block_size": "1GB"}, {"memory_optimize_level": "O1"}):
        row = rows({"static_memory_policy": 0} | beside)["static_memory_policy"]
        assert (row.status, row.assignments) == ("inert", {}), "the pool is in use"
        assert next(iter(beside)) in row.reason


@pytest.mark.parametrize("nested", [False, True])
def test_speed_first_takes_the_place_of_a_static_policy_on_a_cpu(nested: bool) -> None:
    for policy in (1, 2, 3, 4):
        given: list[dict[str, object]] = [{"memory_optimize_level": "O0"}, {"static_memory_policy": policy}]
        found = {row.option: row for row in planned(*(given if nested else [given[0] | given[1]])).rows}
        row = found["static_memory_policy"]
        assert (row.status, row.winner, row.assignments) == ("inert", "memory_optimize_level", {})
        assert row.reason == "overridden by memory_optimize_level='O0' from layer 0"
        assert found["memory_optimize_level"].assignments["native.memory_pool"] == POOL
    options = {"memory_optimize_level": "O0", "static_memory_policy": 3}
    both = planned(options, on=("cpu", "cuda"))
    assert {(row.option, row.device): row.status for row in both.rows} == {(name, "cuda"): "honoured" for name in options}
    assert both.assignments[ALLOCATOR] == GROWS


def test_offload_that_a_cpu_refuses_takes_no_other_options_place() -> None:
    found = rows({"memory_offload": "ON", "mempool_block_size": "2GB"})
    assert found["memory_offload"].status == "refused"
    assert found["mempool_block_size"].assignments["native.memory_pool"]["piece"] == 2 * GB
    assert "mempool_block_size" not in rows({"memory_offload": "ON", "mempool_block_size": "2GB"}, on="cuda")


def test_without_a_native_core_a_cpu_has_no_cap() -> None:
    row = rows({"max_device_memory": "4GB"}, native="there is no compiler")["max_device_memory"]
    assert (row.status, row.reason) == ("refused", "there is no compiler")
