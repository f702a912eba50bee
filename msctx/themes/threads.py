"""The threads of the host's operators, and what they take for zero."""

from __future__ import annotations

from msctx.options import Setting
from msctx.themes.base import STAYS, On, Outcome, Outcomes, approximated, honoured, inert

TORCHS = "0 means the framework's choice: torch's own number is kept"


def translate(on: On) -> Outcomes:
    return on.each(
        {
            "runtime_num_threads": _runtime_num_threads,
            "inter_op_parallel_num": _inter_op_parallel_num,
            "flush_denormal": _flush_denormal,
        }
    )


def _runtime_num_threads(on: On, setting: Setting) -> Outcome:
    if setting.value == 0:
        return honoured(reason=TORCHS)
    assignments = {"torch.num_threads": setting.value}
    if on.device == "cpu":
        return honoured(assignments)
    host = on.at("cpu").settings.get("runtime_num_threads")
    if host is not None and host.value != setting.value:  # there is one number for the whole process
        return inert(f"these are the host's threads, and {host.spelling}={host.value} sets them")
    return approximated(assignments, "sets the threads of the host's operators; the device schedules its own work")


def _inter_op_parallel_num(on: On, setting: Setting) -> Outcome:
    if setting.value == 0:
        return honoured(reason=TORCHS)
    assignments = {"torch.num_interop_threads": setting.value}
    once = f"{STAYS}: torch takes it once in a process"
    if on.device == "cpu":
        return honoured(assignments, once)
    return approximated(assignments, f"sets the host's pool for independent operators; streams are the program's own; {once}")


def _flush_denormal(on: On, setting: Setting) -> Outcome:
    differs = (
        "holds in the thread that enters, its pool and threads begun inside, also for our own kernels; threads that run already "
        "(those of a data loader, for instance) keep theirs"
    )
    return approximated({"torch.flush_denormal": setting.value}, differs)
