"""Where operators run: the current device, the device new tensors are created on; the host's threads, and what they take for zero."""

from __future__ import annotations

from msctx.options import Setting
from msctx.options.kinds import Bool, Choice, Int
from msctx.options.option import Option, extension, session_option
from msctx.options.rules import Overrides, Rule, When, is_set
from msctx.themes.base import STAYS, On, Outcome, approximated, honoured, inert, reason

# fmt: off
OPTIONS = (
    Option("device_id", Int(0, 4095), default=0, example=1, also=("set_device.device_id",),
        help="Which device of the kind device_target becomes the current one: the number in cuda:1 or npu:1. There is only "
             "one CPU device, so there any other number than 0 has no effect."),
    Option("device_target", Choice({
            "CPU": "the processor of this machine, torch's cpu", "GPU": "an NVIDIA GPU, torch's cuda",
            "Ascend": "an Ascend NPU, torch_npu's npu",
        }, {
            "Davinci": "Ascend", "cpu": "CPU", "gpu": "GPU", "cuda": "GPU", "ascend": "Ascend", "npu": "Ascend",
        }), example="GPU", also=("set_device.device_target",),
        help="The kind of device that work is meant for (Davinci is the old name of Ascend). It gives ctx.device and "
             "decides whose plan decides when an option is honoured on one device and not on another."),
    session_option("session_device_id", Int(0), example=1, ge="ge.session_device_id",
        help="The device that this session is bound to, so that one script can drive several, each with its own session"
             "; unset, the context's device_id holds, else $ASCEND_DEVICE_ID, else $DEVICE_ID."),
    session_option("use_off_line", Bool, default=True, example=False,
        help="Whether the program runs on the accelerator at all; false makes the CPU its device, whatever device_target is."),
    extension("default_device", Bool, example=True,
        help="Makes tensors that name no device be created on the context's device (device_target, device_id). Off unless "
             "requested: torch does it with a Python mode that costs some microseconds per call."),
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

RULES: tuple[Rule, ...] = (
    Overrides(When("use_off_line", (False,)), When("device_target", ("GPU", "Ascend")), always=True),
    Overrides(When("session_device_id", test=is_set), When("device_id", test=is_set)),
)

WORDS = {"cpu": "CPU", "cuda": "GPU", "ascend": "Ascend"}
CURRENT = {"cuda": "torch.cuda.current_device", "ascend": "torch.npu.current_device"}
"""Device → the switch of the thread's current one."""
MOVE = "move model and batches with .to(ctx.device), or set default_device=True"


def translate(on: On, setting: Setting) -> Outcome | None:
    """The outcome of one of these options; ``None``: this device does not show it."""
    value, is_cpu = setting.value, on.device == "cpu"
    match setting.option.name:
        case "device_target":
            how = f"ctx.device is {on.device.replace('ascend', 'npu')}"
            if not (is_cpu or on.get("default_device")):
                how = reason(f"{how}; PyTorch creates tensors on the CPU", MOVE)
            return honoured(cause=how) if value == WORDS[on.device] else None
        case "device_id" | "session_device_id":
            return _device_id(on, setting)
        case "use_off_line":  # CANN's switch between the device and the host
            if value:
                return honoured(cause="the device of device_target is used")
            return approximated({}, "ctx.device is cpu; a model that names another device itself is not moved")
        case "default_device":
            return _default_device(on) if value else honoured()
        case "runtime_num_threads" | "inter_op_parallel_num" if value == 0:
            return honoured(cause="0 means the framework's choice: torch's own number is kept")
        case "runtime_num_threads":
            found = {"torch.num_threads": value}
            differs = "sets the threads of the host's operators; the device schedules its own work"
            return honoured(found) if is_cpu else approximated(found, differs)
        case "inter_op_parallel_num":
            found, stays = {"torch.num_interop_threads": value}, f"it {STAYS}: torch takes it once"
            return honoured(found, stays) if is_cpu else approximated(found, f"sets the host's pool, no streams; {stays}")
        case "flush_denormal":
            differs = "holds in this thread, its pool, and threads begun inside; other threads keep theirs"
            return approximated({"torch.flush_denormal": value}, differs)
    return None


def _device_id(on: On, setting: Setting) -> Outcome | None:
    """The CPU has one device; on the others the id becomes the current device of the thread."""
    target = on.get("device_target")
    if target not in (None, WORDS[on.device]):
        return None
    if on.device != "cpu":
        return honoured({CURRENT[on.device]: setting.value})
    if target is None and set(on.facts.devices) != {"cpu"}:
        return None
    if setting.option.name == "session_device_id":
        return approximated({}, "there is one CPU device: any id means it") if setting.value else honoured()
    if setting.value:
        return inert("there is one CPU device, the id is ignored as MindSpore does")
    return honoured(cause="numbers other than 0 are inert")


def _default_device(on: On) -> Outcome | None:
    target = "CPU" if on.get("use_off_line") is False else on.get("device_target")
    if target is None:
        return inert("no device_target is set", "set it to CPU, GPU or Ascend")
    if WORDS[on.device] != target:
        return None
    kind = {"cpu": "cpu", "cuda": "cuda", "ascend": "npu"}[on.device]
    number = on.get("session_device_id", on.get("device_id"))
    return honoured({"torch.default_device": kind if number is None or kind == "cpu" else f"{kind}:{number}"})
