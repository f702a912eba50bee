"""What shows the inside of a run is carried out alike on every device."""

from plans import check

from msctx.options import DEVICES


def test_printed_values_go_to_the_file_on_every_device() -> None:
    check((d, {"print_file_path": "p"}, {"print_file_path": ("honoured", {"observers.print_file": "p"}, "")}) for d in DEVICES)


def test_gradients_are_checked_but_in_compiled_code() -> None:
    for name in ("check_bprop", "check_bprop_values"):
        options, switch = {"check_bprop": True}, f"observers.{name}"
        why = "inside compiled code"
        check((d, options | {name: True}, {name: ("approximated", {switch: True}, why)}) for d in DEVICES)
        check((d, options | {name: False}, {name: ("honoured", {switch: False}, "")}) for d in DEVICES)


def test_values_are_not_compared_without_the_check() -> None:
    check((d, {"check_bprop_values": True}, {"check_bprop_values": ("inert", {}, "check_bprop")}) for d in DEVICES)
