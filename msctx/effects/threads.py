"""runtime_num_threads, inter_op_parallel_num, flush_denormal: the threads of the host's operators, and what they take for zero."""

from msctx.effects.base import STAYS, Outcome, Want, approximated, effect, honoured, inert


@effect("runtime_num_threads")
def runtime_num_threads(want: Want) -> Outcome:
    if want.value == 0:
        return honoured(reason="0 means the framework's choice: torch's own number is kept")
    assignments = {"torch.num_threads": want.value}
    if want.device == "cpu":
        return honoured(assignments)
    host = want.settings.get(want.option.name, "cpu")
    if host is not None and host.value != want.value:  # there is one number for the whole process
        return inert(f"these are the host's threads, and {host.spelling}={host.value} sets them")
    return approximated(assignments, "sets the threads of the host's operators; the device schedules its own work")


@effect("inter_op_parallel_num")
def inter_op_parallel_num(want: Want) -> Outcome:
    if want.value == 0:
        return honoured(reason="0 means the framework's choice: torch's own number is kept")
    assignments = {"torch.num_interop_threads": want.value}
    once = f"{STAYS}: torch takes it once in a process"
    if want.device == "cpu":
        return honoured(assignments, once)
    return approximated(assignments, f"sets the host's pool for independent operators; streams are the program's own; {once}")


@effect("flush_denormal")
def flush_denormal(want: Want) -> Outcome:
    differs = (
        "holds in the thread that enters, its pool and threads begun inside, also for our own kernels; threads that run already "
        "(those of a data loader, for instance) keep theirs"
    )
    return approximated({"torch.flush_denormal": want.value}, differs)
