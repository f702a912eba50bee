"""print_file_path, check_bprop: what shows the inside of a run."""

from msctx.effects.base import Outcome, Want, approximated, effect, honoured


@effect("print_file_path")
def print_file_path(want: Want) -> Outcome:
    return honoured({"observers.print_file": want.value})


@effect("check_bprop")
def check_bprop(want: Want) -> Outcome:
    return _checks({"observers.check_bprop": want.value})


@effect("check_bprop_values")
def check_bprop_values(want: Want) -> Outcome:
    return _checks({"observers.check_bprop_values": want.value})


def _checks(assignments: dict[str, bool]) -> Outcome:
    """torch.compile takes a Function into its graph, where nothing is left that returns gradients of its own."""
    if not any(assignments.values()):
        return honoured(assignments)
    return approximated(
        assignments, "Functions that run inside compiled code (torch.compile, compiled autograd) are not checked"
    )
