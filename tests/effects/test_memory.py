"""Memory: the cap in bytes that each device gets and whose cap it is, and how the options of pools meet in one setting."""

from pathlib import Path

import pytest

import msctx
from msctx import devices, plan
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


ALLOCATOR = "torch.accelerator.allocator_settings"
STEP = {"cuda": {"large_segment_size_mb": 1024}, "ascend": {"large_segment_size_mb": 512}}
GROWS = {"expandable_segments": True}


def on(device: str, **options: object) -> dict[str, plan.Row]:
    return {row.option: row for row in plan.make(Settings([make_layer(options, "test")]), Facts.only(device)).rows}


@pytest.mark.parametrize("device", SWITCHES)
@pytest.mark.parametrize(
    ("options", "status", "settings"),
    [
        ({"static_memory_policy": 0}, "honoured", None),
        ({"static_memory_policy": 3}, "honoured", GROWS),
        ({"static_memory_policy": 4}, "approximated", GROWS),
    ],
)
def test_the_pool_of_an_accelerator_is_torchs_allocator(
    device: str, options: dict[str, object], status: str, settings: dict[str, object] | None
) -> None:
    (row,) = on(device, **options).values()
    assert (row.status, row.assignments) == (status, {ALLOCATOR: settings})
    assert row.reason


@pytest.mark.parametrize(("device", "size"), [("cuda", 3584), ("ascend", 512)])
def test_a_segment_is_as_large_as_is_asked_or_documented(device: str, size: int) -> None:
    (row,) = on(device, mempool_block_size="3.5GB").values()
    assert (row.status, row.assignments) == ("approximated", {ALLOCATOR: {"large_segment_size_mb": size}})
    assert f"takes {size} MB" in row.reason
    assert ("the most that torch_npu's documentation allows" in row.reason) == (device == "ascend")
    here = msctx.context(device_target={"cuda": "GPU", "ascend": "Ascend"}[device], mempool_block_size="3.5GB").plan
    rows = [row for row in here.rows if row.option == "mempool_block_size" and row.device == device]
    assert [row.assignments for row in rows] == [{ALLOCATOR: {"large_segment_size_mb": size}}], "planned where it is absent"


@pytest.mark.parametrize("device", SWITCHES)
@pytest.mark.parametrize(("level", "settings"), [("O0", None), ("O1", GROWS)])
def test_memory_first_is_segments_that_grow_and_recomputation(device: str, level: str, settings: object) -> None:
    (row,) = on(device, memory_optimize_level=level).values()
    assert (row.status, row.assignments) == ("honoured", {ALLOCATOR: settings, "models.recompute": level == "O1"})


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("level", ["O0", "O1"])
def test_what_is_recomputed_in_graph_mode_waits_for_it(device: str, level: str) -> None:
    rows = on(device, mode=0, memory_optimize_level=level, mempool_block_size="1GB")
    row, pool = rows["memory_optimize_level"], rows["mempool_block_size"]
    if level == "O0":
        assert row.status == "honoured"
    else:
        assert (row.status, row.assignments, row.reason) == ("not_built", {}, "not implemented yet: requires graph mode")
    assert pool.assignments == on(device, mempool_block_size="1GB")["mempool_block_size"].assignments


@pytest.mark.parametrize("device", SWITCHES)
@pytest.mark.parametrize("policy", [1, 2])
def test_memory_that_graphs_share_waits_for_them(device: str, policy: int) -> None:
    (row,) = on(device, static_memory_policy=policy).values()
    assert (row.status, row.assignments, row.reason) == ("not_built", {}, "not implemented yet: requires graph mode")


@pytest.mark.parametrize("device", SWITCHES)
def test_the_settings_of_an_allocator_are_one_assignment(device: str) -> None:
    rows = on(device, mempool_block_size="1GB", memory_optimize_level="O1", static_memory_policy=0)
    assert [row.assignments[ALLOCATOR] for row in rows.values()] == [STEP[device] | GROWS] * 3
    assert f"grows by {STEP[device]['large_segment_size_mb']} MB" in rows["mempool_block_size"].reason
    assert "for requests of 1 to 10 MB" in on(device, mempool_block_size="1GB")["mempool_block_size"].reason


def test_an_inner_scope_takes_back_what_an_outer_one_asked_of_the_allocator() -> None:
    layers = [make_layer({"memory_optimize_level": level}, level) for level in ("O1", "O0")]
    assert plan.make(Settings(layers), Facts.only("cuda")).assignments == {ALLOCATOR: None, "models.recompute": False}


@pytest.mark.parametrize(("cap", "step"), [("80GB", 1024), ("4GB", 512), ("100MB", 20)])
def test_a_step_is_a_part_of_the_cap(cap: str, step: int) -> None:
    """Torch would raise OutOfMemoryError for a tensor of 1 MB where a whole step does not fit under the cap."""
    row = on("cuda", mempool_block_size="1GB", max_device_memory=cap)["mempool_block_size"]
    assert row.assignments == {ALLOCATOR: {"large_segment_size_mb": step}}
    assert f"{step} MB (at most an eighth of max_device_memory" in row.reason


REUSE = {
    "cuda": {True: {"torch.cuda.caching_allocator": True}, False: {"torch.cuda.caching_allocator": False}},
    "ascend": {True: {"env.PYTORCH_NO_NPU_MEMORY_CACHING": None}, False: {"env.PYTORCH_NO_NPU_MEMORY_CACHING": "1"}},
}


@pytest.mark.parametrize("device", SWITCHES)
@pytest.mark.parametrize("reuse", [True, False])
def test_without_reuse_an_accelerator_caches_nothing(device: str, reuse: bool, tmp_path: Path) -> None:
    file = tmp_path / "env.json"
    file.write_text(f'{{"sys": {{"mem_reuse": {str(reuse).lower()}}}}}')
    rows = on(device, env_config_path=str(file), max_device_memory="80GB", mempool_block_size="1GB", memory_optimize_level="O0")
    row = rows.pop("env_config_path.sys.mem_reuse")
    graphs = {"torch.inductor.allow_buffer_reuse": reuse, "torch.inductor.inplace_buffers": reuse}
    never = {} if reuse else {"torch.inductor.memory_planning": False}
    assert (row.status, row.assignments) == ("honoured" if reuse else "approximated", REUSE[device][reuse] | graphs | never)
    assert ("the driver" in row.reason and "may give its address to the next one" in row.reason) is not reuse
    for option in ("max_device_memory", "mempool_block_size"):
        assert rows[option].status == ("approximated" if reuse else "refused")
        assert ("keeps and counts nothing while env_config_path.sys.mem_reuse is false" in rows[option].reason) is not reuse


ONLY_CPU = Facts.only("cpu")
POOL = {"keep": "all", "piece": 2**26}


def on_cpu(facts: Facts = ONLY_CPU, **options: object) -> dict[str, plan.Row]:
    return {row.option: row for row in plan.make(Settings([make_layer(options, "test")]), facts).rows if row.device == "cpu"}


def test_on_a_cpu_the_cap_is_that_of_the_pool() -> None:
    row = on_cpu(max_device_memory="4GB")["max_device_memory"]
    assert (row.status, row.assignments) == ("honoured", {"native.memory_pool": POOL, "native.memory_caps": [[4 * GB, "test"]]})


def test_nested_caps_on_a_cpu_all_count() -> None:
    layers = [make_layer({"max_device_memory": cap}, cap) for cap in ("4GB", "8GB", "1GB")]
    (row,) = plan.make(Settings(layers), Facts(free_memory=3 * GB)).rows
    assert row.assignments["native.memory_caps"] == [[4 * GB, "4GB"], [8 * GB, "8GB"], [GB, "1GB"]]
    assert row.reason == "1 GiB, the least of 1 GiB asked for, 4 GiB of 4GB, 8 GiB of 8GB, 3 GiB free now"


def test_free_memory_is_the_cap_where_it_is_less() -> None:
    row = on_cpu(Facts(free_memory=3 * GB // 2), max_device_memory="4GB")["max_device_memory"]
    assert row.reason == "1.5 GiB, the least of 4 GiB asked for, 1.5 GiB free now"


@pytest.mark.parametrize(
    ("options", "speaks"),
    [
        ({}, False),
        ({"device_target": "GPU"}, False),
        ({"device_target": "CPU"}, True),
    ],
)
def test_beside_an_accelerator_the_host_is_capped_where_that_is_said(options: dict[str, object], speaks: bool) -> None:
    found = on_cpu(Facts(devices=DEVICES), max_device_memory="4GB", **options)
    assert ("max_device_memory" in found) == speaks


@pytest.mark.parametrize(
    ("options", "keep", "piece"),
    [
        ({"memory_optimize_level": "O0"}, "all", 2**26),
        ({"memory_optimize_level": "O1"}, "some", 2**26),
        ({"session": {"static_memory_policy": 2}}, "some", 2**26),
        ({"session": {"static_memory_policy": 3}}, "all", 2**26),
        ({"session": {"static_memory_policy": 4}, "max_device_memory": "4GB"}, "some", 2**26),
        ({"session": {"static_memory_policy": 3}, "memory_optimize_level": "O1"}, "some", 2**26),
        ({"mempool_block_size": "2GB"}, "all", 2 * GB),
        ({"mempool_block_size": "2GB", "memory_optimize_level": "O1", "max_device_memory": "4GB"}, "some", 2 * GB),
    ],
)
def test_the_pool_has_one_policy(options: dict[str, object], keep: str, piece: int) -> None:
    rows = on_cpu(**options).values()
    assert {row.status for row in rows} <= {"honoured", "approximated"}
    assert [row.assignments["native.memory_pool"] for row in rows] == [{"keep": keep, "piece": piece}] * len(rows)


def test_without_reuse_nothing_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "env.json"
    file.write_text('{"sys": {"mem_reuse": false}}')
    options = {"mempool_block_size": "2GB", "static_memory_policy": 3}
    rows = on_cpu(env_config_path=str(file), **options)
    assert on_cpu(env_config_path=str(file), memory_optimize_level="O0")["memory_optimize_level"].status == "refused"
    assert rows.pop("env_config_path.sys.mem_reuse").assignments == {
        "native.memory_pool": {"keep": "nothing", "piece": 2 * GB},
        "torch.inductor.allow_buffer_reuse": False,
        "torch.inductor.inplace_buffers": False,
        "torch.inductor.memory_planning": False,
    }
    for option in options:
        assert (rows[option].status, rows[option].assignments) == ("refused", {})
        assert rows[option].reason == "nothing is kept while env_config_path.sys.mem_reuse is false"


@pytest.mark.parametrize(
    ("policy", "status", "says"),
    [
        (1, "approximated", ["one pool for all code"]),
        (2, "approximated", ["one pool for all code"]),
        (3, "honoured", ["by pages", "one and a half times the peak"]),
        (4, "approximated", ["one pool", "as 2 does here", "by pages"]),
    ],
)
def test_each_static_policy_tells_what_is_had_of_it(policy: int, status: str, says: list[str]) -> None:
    row = on_cpu(static_memory_policy=policy)["static_memory_policy"]
    assert row.status == status
    assert all(part in row.reason for part in says)


@pytest.mark.parametrize(
    "beside", [{"max_device_memory": "1GB"}, {"mempool_block_size": "1GB"}, {"memory_optimize_level": "O1"}]
)
def test_no_static_policy_is_inert_while_other_options_use_the_pool(beside: dict[str, object]) -> None:
    row = on_cpu(static_memory_policy=0, **beside)["static_memory_policy"]
    assert (row.status, row.assignments) == ("inert", {})
    assert next(iter(beside)) in row.reason


def test_static_policies_that_mean_different_things_are_not_honoured_alike() -> None:
    """What 4 adds to 2 is in each of them: alike in both, and no more than approximated."""
    rows = [on_cpu(static_memory_policy=policy)["static_memory_policy"] for policy in range(5)]
    none, _, biggest, grows, both = (row.assignments for row in rows)
    assert none == {}
    assert biggest == both != grows
    alike = [row.value for row in rows if row.assignments == biggest]
    assert alike == [2, 2, 4], "1 is the old form of 2"
    assert {row.status for row in rows if row.value in alike} == {"approximated"}


@pytest.mark.parametrize("policy", [1, 2, 3, 4])
@pytest.mark.parametrize("nested", [False, True])
def test_speed_first_takes_the_place_of_a_static_policy(policy: int, nested: bool) -> None:
    given: list[dict[str, object]] = [{"memory_optimize_level": "O0"}, {"static_memory_policy": policy}]
    layers = [make_layer(one, "test") for one in (given if nested else [given[0] | given[1]])]
    rows = {row.option: row for row in plan.make(Settings(layers), ONLY_CPU).rows}
    row = rows["static_memory_policy"]
    assert (row.status, row.winner, row.assignments) == ("inert", "memory_optimize_level", {})
    assert row.reason == "overridden by memory_optimize_level='O0' from test"
    assert rows["memory_optimize_level"].assignments["native.memory_pool"] == POOL


def test_speed_first_leaves_the_policies_of_an_accelerator_which_act() -> None:
    facts = Facts(devices=("cpu", "cuda"))
    options = {"memory_optimize_level": "O0", "static_memory_policy": 3}
    found = plan.make(Settings([make_layer(options, "test")]), facts)
    assert {(row.option, row.device): row.status for row in found.rows} == {(name, "cuda"): "honoured" for name in options}
    assert found.assignments[ALLOCATOR] == GROWS


def test_a_block_is_no_larger_than_what_is_free() -> None:
    row = on_cpu(Facts(free_memory=3 * GB), mempool_block_size="8GB")["mempool_block_size"]
    assert (row.status, row.reason) == ("honoured", "3 GiB, the least of 8 GiB asked for, 3 GiB free now")
    assert not on_cpu(Facts(free_memory=9 * GB), mempool_block_size="8GB")["mempool_block_size"].reason


@pytest.mark.parametrize("name", ["max_device_memory", "mempool_block_size"])
def test_what_is_shown_of_this_machine_tells_what_is_free(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "here", lambda: ("cpu",))
    monkeypatch.setattr(devices, "free_memory", lambda: 3 * GB)
    (row,) = msctx.explain({name: "8GB"}).rows
    assert "3 GiB, the least of 8 GiB asked for, 3 GiB free now" in row.reason


def test_offload_that_a_cpu_refuses_takes_no_other_options_place() -> None:
    rows = on_cpu(memory_offload="ON", mempool_block_size="2GB")
    assert rows["memory_offload"].status == "refused"
    assert rows["mempool_block_size"].assignments["native.memory_pool"]["piece"] == 2 * GB
    assert on("cuda", memory_offload="ON", mempool_block_size="2GB")["mempool_block_size"].winner


def test_without_a_native_core_a_cpu_has_no_cap() -> None:
    row = on_cpu(Facts(native="there is no compiler"), max_device_memory="4GB")["max_device_memory"]
    assert (row.status, row.reason) == ("refused", "there is no compiler")


def test_every_device_of_a_machine_is_capped() -> None:
    found = plan.make(Settings([make_layer({"max_device_memory": "4GB"}, "test")]), Facts(devices=DEVICES))
    assert found.assignments == dict.fromkeys(SWITCHES.values(), 4 * GB)
    assert found.failing == ()


@pytest.mark.parametrize(("outer", "inner"), [("4GB", "8GB"), ("8GB", "4GB")])
def test_the_tightest_of_nested_scopes_holds(outer: str, inner: str) -> None:
    """An inner scope cannot loosen the cap of an outer one."""
    layers = [make_layer({"max_device_memory": cap}, cap) for cap in (outer, inner)]
    found = plan.make(Settings(layers), Facts.only("cuda"))
    assert found.assignments == {SWITCHES["cuda"]: 4 * GB}
    assert [row.origin for row in found.rows] == [inner]
    asked, around = (f"{cap[0]} GiB" for cap in (inner, outer))
    assert found.rows[0].reason.startswith(f"4 GiB, the least of {asked} asked for, {around} of {outer}; counts torch's")


def test_an_option_beside_a_preset_beats_the_presets_cap(tmp_path: Path) -> None:
    """A preset, a file and the command line are no scopes around one another: the higher one wins."""
    preset = tmp_path / "small.yaml"
    preset.write_text("context:\n  max_device_memory: 4GB\n")
    found = msctx.explain({"preset": str(preset), "max_device_memory": "8GB"}, device="cuda")
    assert found.assignments == {SWITCHES["cuda"]: 8 * GB}
