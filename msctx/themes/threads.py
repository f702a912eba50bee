"""The threads of the host's operators, and what they take for zero."""

from __future__ import annotations

from msctx.options import Setting
from msctx.options.kinds import Bool, Int
from msctx.options.option import Option, extension
from msctx.options.rules import Rule
from msctx.themes.base import STAYS, On, Outcome, approximated, honoured, inert, translates

# fmt: off
OPTIONS = (
    Option("inter_op_parallel_num", Int(0, 1024), default=0, example=4, defaults={"runtime": 5},
        also=("runtime.dispatch_threads_num",),
        help="How many independent operators may run side by side: the size of torch's inter-op thread pool, which can be "
             "set once and only before its first use. 0 leaves the choice to torch."),
    Option("runtime_num_threads", Int(0, 1024), default=30, example=8, defaults={"device_context": 25},
        also=("device_context.cpu.op_tuning.threads_num",),
        help="How many threads one CPU operator may use (torch.set_num_threads). 0 leaves torch's number; with a GPU or NPU "
             "as target it concerns the host's share of the work. MindSpore's default is 30, or the number of cores if that "
             "is less."),
    extension("flush_denormal", Bool, default=False, example=True, devices=("cpu",),
        help="Takes numbers below the smallest normal one (1.2e-38 in float32) for zero, as torch.set_flush_denormal does, "
             "in all of the CPU's operators: results so small become 0, and Python's own floats follow; what computes with "
             "many of them is several times faster. On a GPU each kernel was compiled one way or the other."),
)
# fmt: on

RULES: tuple[Rule, ...] = ()

TORCHS = "0 means the framework's choice: torch's own number is kept"


@translates("runtime_num_threads")
def _runtime_num_threads(on: On, setting: Setting) -> Outcome:
    if setting.value == 0:
        return honoured(cause=TORCHS)
    assignments = {"torch.num_threads": setting.value}
    if on.device == "cpu":
        return honoured(assignments)
    host = on.at("cpu").settings.get("runtime_num_threads")
    if host is not None and host.value != setting.value:  # there is one number for the whole process
        return inert(f"these are the host's threads, and {host.spelling}={host.value} sets them")
    return approximated(assignments, "sets the threads of the host's operators; the device schedules its own work")


@translates("inter_op_parallel_num")
def _inter_op_parallel_num(on: On, setting: Setting) -> Outcome:
    if setting.value == 0:
        return honoured(cause=TORCHS)
    assignments = {"torch.num_interop_threads": setting.value}
    once = f"{STAYS}: torch takes it once in a process"
    if on.device == "cpu":
        return honoured(assignments, once)
    return approximated(assignments, f"sets the host's pool for independent operators; streams are the program's own; {once}")


@translates("flush_denormal")
def _flush_denormal(on: On, setting: Setting) -> Outcome:
    differs = (
        "holds in the thread that enters, its pool, and threads begun inside; threads that run already (those of a data loader, for "
        "instance) keep theirs"
    )
    return approximated({"torch.flush_denormal": setting.value}, differs)
