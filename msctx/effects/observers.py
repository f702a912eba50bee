"""print_file_path: what shows the inside of a run."""

from msctx.effects.base import Outcome, Want, effect, honoured


@effect("print_file_path")
def print_file_path(want: Want) -> Outcome:
    return honoured({"observers.print_file": want.value})
