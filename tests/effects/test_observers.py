"""What shows the inside of a run is carried out alike on every device."""

from plans import check, planned

from msctx.options import DEVICES
from msctx.options.observation import Dump, ErrorDump, Overflow, Watchdog


def test_printed_values_go_to_the_file_on_every_device() -> None:
    check((d, {"print_file_path": "p"}, {"print_file_path": ("honoured", {"observers.print_file": "p"}, "")}) for d in DEVICES)


def test_gradients_are_checked_but_in_compiled_code() -> None:
    for name in ("check_bprop", "check_bprop_values"):
        options, switch = {"check_bprop": True}, f"observers.{name}"
        why = "Functions in compiled code"
        there = [d for d in DEVICES if (d, name) != ("ascend", "check_bprop_values")]
        check((d, options | {name: True}, {name: ("approximated", {switch: True}, why)}) for d in there)
        check((d, options | {name: False}, {name: ("honoured", {switch: False}, "")}) for d in there)
    asked = {"check_bprop": True, "check_bprop_values": True}
    check([("ascend", asked, {"check_bprop_values": ("refused", {}, "casts to float64 give float32")})])
    asked["check_bprop_values"] = False
    check([("ascend", asked, {"check_bprop_values": ("honoured", {}, "nothing is asked for")})])


def test_values_are_not_compared_without_the_check() -> None:
    check((d, {"check_bprop_values": True}, {"check_bprop_values": ("inert", {}, "check_bprop")}) for d in DEVICES)


DUMP = {"session.enable_dump": True, "dump_path": "p"}
WATCHED = ("the time that the host takes", "operators that torch.compile has fused")
UNSEEN = "operators that torch.compile has fused are not seen one by one"


def test_all_options_of_a_dump_come_to_one_value() -> None:
    more = {"dump_step": "0|3-5", "dump_mode": "all", "dump_data": "stats", "dump_layer": "a b", "dump_format": "msprobe"}
    value = {"observers.dump": Dump("p", "0|3-5", "all", "stats", ("a", "b"), "msprobe")}
    check([("cpu", DUMP | more, dict.fromkeys(("session.enable_dump", *more), ("approximated", value, UNSEEN)))])
    check([("cpu", DUMP | more, {"dump_path": ("approximated", value | {"observers.overflow": None}, UNSEEN)})])
    copied = dict.fromkeys(("session.enable_dump", *more), ("approximated", value, "each tensor is copied to the host"))
    check([("cuda", DUMP | more, copied)])
    check([("cpu", {"session.enable_dump": False}, {"session.enable_dump": ("honoured", {"observers.dump": None}, "")})])
    nothing = ("inert", {}, "session.enable_dump=True or enable_dump_debug=True")
    check([("cpu", {"dump_path": "p"}, {"dump_path": nothing})])


def test_graphs_of_torchair_are_dumped_by_cann() -> None:
    plan = planned(DUMP | {"dump_step": "0|3-5", "dump_mode": "all"}, on=("ascend",))
    assert all("ge_dump_data_json" in row.reason for row in plan.rows)
    found = plan.assignments
    assert found["observers.dump"] == Dump("p", "0|3-5", "all")
    assert found["torch.npu.graph_options"] == {
        "ge.exec.enableDump": "1",
        "ge.exec.dumpPath": "p",
        "ge.exec.dumpMode": "all",
        "ge.exec.dumpStep": "0|3-5",
    }


def test_overflow_is_looked_for_by_its_mode() -> None:
    for mode in ("aicore_overflow", "atomic_overflow", "all"):
        given = {"enable_dump_debug": True, "dump_path": "p", "dump_debug_mode": mode}
        value = {"observers.overflow": Overflow("p", mode)}
        check(
            (d, given, dict.fromkeys(("enable_dump_debug", "dump_debug_mode"), ("approximated", value, UNSEEN)))
            for d in DEVICES
        )


def test_errors_recorder_and_watchdog() -> None:
    for device in ("cpu", "cuda"):
        for level, found in ((0, None), (1, ErrorDump(1)), (2, ErrorDump(2))):
            status = (
                ("approximated", {"observers.errors": found}, UNSEEN) if found else ("honoured", {"observers.errors": None}, "")
            )
            if found:
                check(
                    [
                        (
                            device,
                            {"enable_exception_dump": level},
                            {"enable_exception_dump": (*status[:2], "no workspace is saved")},
                        )
                    ]
                )
            check([(device, {"enable_exception_dump": level}, {"enable_exception_dump": status})])
        for given, seconds in (({"op_timeout": 9}, 9), ({"op_timeout": 9, "op_execute_timeout": 5}, 5)):
            check(
                [
                    (
                        device,
                        given,
                        {
                            name: ("approximated", {"observers.watchdog": Watchdog(seconds)}, WATCHED[device == "cpu"])
                            for name in given
                        },
                    )
                ]
            )
        check([(device, {"op_timeout": 0}, {"op_timeout": ("honoured", {"observers.watchdog": None}, "")})])


def test_what_cann_itself_does_on_ascend() -> None:
    for name, level in (("enable_exception_dump", 1), ("exception_dump", "1")):
        found = planned({name: level}, on=("ascend",))
        assert found.assignments == {"observers.errors": ErrorDump(1), "torch.npu.exception_dump": "1"}
        assert "TORCH_ACL_INIT_CONFIG_PATH" in found.rows[0].reason
    assert planned({"exception_dump": "0"}, on=("ascend",)).assignments["torch.npu.exception_dump"] == "0"
    assert planned({"exception_dump": "2"}, on=("cpu",)).assignments == {"observers.errors": ErrorDump(2)}
    both = planned({"exception_dump": "2", "enable_exception_dump": 1}, on=("cpu",))
    assert both.assignments == {"observers.errors": ErrorDump(1)}, "a session's word wins"
    found = planned({"op_timeout": 9, "op_execute_timeout": 5}, on=("ascend",))
    assert found.assignments == {"observers.watchdog": Watchdog(5), "torch.npu.op_timeout": 5}
    assert planned({"op_timeout": 0}, on=("ascend",)).assignments == {"observers.watchdog": None, "torch.npu.op_timeout": None}


def test_without_a_native_core_they_are_refused() -> None:
    refused = ("refused", {}, "no compiler")
    check([("cpu", DUMP, {"session.enable_dump": refused})], native="no compiler")
    check([("cpu", {"op_timeout": 5}, {"op_timeout": refused})], native="no compiler")


def test_the_shortest_time_of_all_devices_counts() -> None:
    """There is one watchdog."""
    found = planned({"op_execute_timeout": 90, "device_context.ascend.op_debug.execute_timeout": 60}, on=("cpu", "ascend"))
    assert [row.assignments["observers.watchdog"] for row in found.rows] == [Watchdog(60)] * 3
