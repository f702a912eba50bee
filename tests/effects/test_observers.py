"""What shows the inside of a run is carried out alike on every device."""

from plans import check

from msctx.options import DEVICES


def test_printed_values_go_to_the_file_on_every_device() -> None:
    check((d, {"print_file_path": "p"}, {"print_file_path": ("honoured", {"observers.print_file": "p"}, "")}) for d in DEVICES)
