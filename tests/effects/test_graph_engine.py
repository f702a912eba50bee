"""What goes to CANN's graph engine on Ascend, and what becomes of the same options elsewhere."""

import pytest
from plans import check, planned, rows
from samples import DATA

GRAPH, ENGINE = "torch.npu.graph_options", "torch.npu.engine_options"


@pytest.mark.parametrize(
    ("options", "sent"),
    [
        ({"atomic_clean_policy": 0}, {"ge.exec.atomicCleanPolicy": "0"}),
        ({"session": {"atomic_clean_policy": 1}}, {"ge.exec.atomicCleanPolicy": "1"}),
        ({"host_scheduling_max_threshold": 20}, {"ge.exec.hostSchedulingMaxThreshold": "20"}),
        ({"buffer_optimize": "off_optimize"}, {"ge.bufferOptimize": "off_optimize"}),
        ({"stream_max_parallel_num": "AIcoreEngine:4"}, {"ge.streamMaxParallelNum": "AIcoreEngine:4"}),
        ({"ge_options": {"session": {"ge.new": "x"}}}, {"ge.new": "x"}),
        ({"jit_compile": "auto"}, {"ge.jit_compile": "2"}),
        ({"ascend_config": {"jit_compile": True}}, {"ge.jit_compile": "1"}),
        ({"session": {"jit_compile": "false"}}, {"ge.jit_compile": "0"}),
        ({"op_debug_level": 1}, {"ge.opDebugLevel": "1"}),
        ({"op_compiler_cache_mode": "force"}, {"ge.op_compiler_cache_mode": "force"}),
    ],
)
def test_options_that_go_with_each_graph(options: dict[str, object], sent: dict[str, str]) -> None:
    found = planned(options, on=("ascend",)).assignments
    assert found[GRAPH] == sent
    assert found["torch.dynamo.apart"], "code that was compiled with other options does not run"


def test_all_come_to_one_value() -> None:
    options = {"atomic_clean_policy": 0, "buffer_optimize": "off_optimize", "ge_options": {"session": {"ge.new": "x"}}}
    found = {str(r.assignments[GRAPH]) for r in planned(options, on=("ascend",)).rows}
    assert len(found) == 1


def test_torch_npus_switch_for_operators_that_are_compiled_for_the_call() -> None:
    switch = "torch.npu.jit_compile"
    found = {value: rows({"jit_compile": value}, on="ascend")["jit_compile"] for value in ("true", "false", "auto")}
    assert {value: (row.status, row.assignments[switch]) for value, row in found.items()} == {
        "true": ("honoured", True),
        "false": ("honoured", False),
        "auto": ("approximated", None),
    }
    assert found["auto"].reason.startswith("torch_npu's default for this chip applies to eager operators; it has no `auto`")


def test_a_key_that_is_an_option_acts_as_that_option() -> None:
    raw = {"ge.exec.atomicCleanPolicy": "0", "ge.new": "x"}
    found = planned({"atomic_clean_policy": 1, "ge_options": {"global": raw}}, on=("ascend",)).assignments
    assert found[ENGINE] == {"ge.new": "x"}
    assert found[GRAPH] == {"ge.exec.atomicCleanPolicy": "0"}, "ge_options wins"
    known = rows({"ge_options": {"session": {"ge.exec.atomicCleanPolicy": "0"}}}, on="ascend")["ge_options.session"]
    assert (known.status, known.assignments, known.reason) == ("honoured", {}, "its keys are options of their own")


def test_a_key_that_the_engine_does_not_get_is_told() -> None:
    """Of two that torchair fixes, its own values hold in graphs."""
    for level in ("global", "session"):
        name = f"ge_options.{level}"
        for key, value, status, reason in (
            ("ge.exec.precision_mode", "force_fp16", "honoured", "ge.exec.precision_mode: carried out by msctx, the engine"),
            ("ge.opSelectImplmode", "high_performance", "approximated", "torchair's ge.opSelectImplmode=high_precision holds"),
            ("ge.opSelectImplmode", "high_precision", "honoured", "the engine does not get it"),
            ("ge.exec.staticMemoryPolicy", "0", "approximated", "torchair's ge.exec.staticMemoryPolicy=2 holds"),
            ("ge.exportCompileStat", "0", "honoured", "its keys are options of their own"),
            ("ge.bufferOptimize", "off_optimize", "honoured", "its keys are options of their own"),
        ):
            check([("ascend", {name: {key: value}}, {name: (status, {}, reason)})])


def test_what_torchair_writes_over_in_the_engine_is_reported() -> None:
    text = "torchair overwrites ge.exec.allow_hf32"
    for level, more, status in (
        ("global", {}, "refused"),
        ("global", {"ge.new": "x"}, "approximated"),
        ("session", {}, "honoured"),
    ):
        row = rows({"ge_options": {level: {"ge.exec.allow_hf32": "11"} | more}}, on="ascend")[f"ge_options.{level}"]
        assert (row.status, text in row.reason) == (status, level == "global")
        if level == "global":
            assert row.assignments.get(ENGINE, {}) == more


def test_what_the_engine_is_initialised_with() -> None:
    file = str(DATA / "fusion_switch.json")
    found = planned({"ge_options": {"global": {"ge.new": "x"}}, "fusion_switch_file": file}, on=("ascend",)).assignments
    assert found[ENGINE] == {"ge.fusionSwitchFile": file, "ge.new": "x"}


def test_other_devices_take_what_has_a_meaning_there() -> None:
    reuse = ("allow_buffer_reuse", "inplace_buffers", "reorder_for_locality")
    for device in ("cpu", "cuda"):
        for value, on in (("off_optimize", False), ("l2_optimize", True)):
            row = rows({"buffer_optimize": value}, on=device)["buffer_optimize"]
            assert row.assignments == {f"torch.inductor.{name}": on for name in reuse} | {"torch.dynamo.apart": None}
        check(
            (device, {name: value}, {name: expected})
            for name, value, expected in (
                ("atomic_clean_policy", 1, ("honoured", {}, "zero their own memory")),
                ("atomic_clean_policy", 0, ("refused", {}, "one block of memory")),
                ("stream_max_parallel_num", "DNN_VM_AICPU:1", ("honoured", {}, "one after the other")),
                ("stream_max_parallel_num", "DNN_VM_AICPU:2", ("refused", {}, "one after the other")),
                ("jit_compile", "auto", ("approximated", {}, "for the shapes that come first")),
            )
        )
        for value, dynamic, ready_made in (("true", False, False), ("false", None, True)):
            wanted = rows({"jit_compile": value, "mode": 0}, on=device)["jit_compile"].assignments["graph.compilation"]
            assert (wanted.shapes.dynamic, wanted.ready_made) == (dynamic, ready_made)
    beside = {"jit_compile": "false", "enable_graph_kernel": True, "mode": 0}
    assert rows(beside)["jit_compile"].status == "inert"
    compilation = rows(beside)["mode"].assignments["graph.compilation"]
    assert (compilation.fused, compilation.ready_made) == (True, False)
    check(
        (device, {name: value}, {name: expected})
        for device, name, value, expected in (
            ("cpu", "ac_parallel_enable", "1", ("refused", {}, "nothing beside it")),
            ("cuda", "ac_parallel_enable", "1", ("approximated", {}, "on the thread that calls")),
            ("cuda", "ac_parallel_enable", "0", ("refused", {}, "goes on")),
            ("cpu", "host_scheduling_max_threshold", 20, ("honoured", {}, "from the host")),
            ("cuda", "host_scheduling_max_threshold", 20, ("approximated", {}, "CUDA graphs")),
        )
    )
