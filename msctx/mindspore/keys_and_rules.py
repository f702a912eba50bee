"""The keys of MindSpore's set_context and get_context, one row a key; values in force and set, and its rules of devices."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from msctx import devices
from msctx.context import current, set_options
from msctx.context.process_wide import BASE
from msctx.errors import DeviceError, Diagnostic, StrictError, user_frame
from msctx.mindspore.absent_names import NOT_READ, VARIABLES
from msctx.mindspore.errors import OptionRuntimeError, OptionTypeError
from msctx.notices import warn
from msctx.options import UNSET, Setting, find, make_layer
from msctx.options.kinds import show
from msctx.options.option import rank_of
from msctx.plan import TARGETS

GB = 2**30


@dataclass(frozen=True, slots=True)
class Key:
    """One key of set_context, or of one of its dictionaries.

    Attributes:
        types: what else raises TypeError; nothing: msctx's option decides alone.
        default: what get_context returns when nobody set it, or a function of device_target that returns it.
        targets: the targets that accept it; on others it is skipped with a warning. Nothing: all.
        shows: msctx's form → what get_context returns.
        ignored: why the value has no effect; get_context does not know such a key.
    """

    types: tuple[type, ...] = ()
    default: Any = None
    targets: tuple[str, ...] = ()
    shows: Callable[[Any], Any] = lambda value: value
    ignored: str = ""


IGNORED = "MindSpore ignores it, and so does msctx"
DUMP = f"{IGNORED}; msctx.set_context(session={{'enable_dump': True, 'dump_path': DIR}}) does that now"


def gigabytes(size: int) -> float:
    """Bytes as MindSpore's number of GB, to the digits that a C float has."""
    return float(f"{size / GB:.7g}")


def _device_id(target: str) -> int:
    """0, or what the environment sets."""
    text = os.environ.get("DEVICE_ID", "")
    return int(text) if text.isdecimal() else 0


def _interop_threads(target: str) -> int:
    """0, or what was once set and stays in force, whatever was refused since."""
    from msctx.switches.torch_core import interop_threads

    return interop_threads()


_bool, _int, _str = (partial(Key, (kind,)) for kind in (bool, int, str))
GROUPS: Mapping[str, Mapping[str, Key]] = {
    "ascend_config": {
        "precision_mode": Key(default=""),
        "jit_compile": Key(default="", shows=lambda value: {"true": True, "false": False, "auto": ""}[value]),
        "atomic_clean_policy": Key(default=""),
        "matmul_allow_hf32": Key(default=""),
        "conv_allow_hf32": Key(default=""),
        "exception_dump": Key(default="2"),
        "op_precision_mode": _str(""),
        "parallel_speed_up_json_path": _str(""),
        "host_scheduling_max_threshold": _int(""),
    },
    "gpu_config": {
        "conv_fprop_algo": Key(
            default="normal", shows=lambda value: "precomp_gemm" if value == "implicit_precomp_gemm" else value
        ),
        "conv_dgrad_algo": Key(default="normal"),
        "conv_wgrad_algo": Key(default="normal"),
        "conv_allow_tf32": _bool(True),
        "matmul_allow_tf32": _bool(False),
    },
    "aoe_config": {"job_type": Key(default="2")},
}
"""Dictionary → its keys; a key is also a name of get_context."""
GROUP_DEVICE = {"ascend_config": "ascend", "gpu_config": "cuda", "aoe_config": "ascend"}
FLAT: Mapping[str, tuple[str, str]] = {
    "aoe_job_type" if key == "job_type" else key: (group, key) for group, keys in GROUPS.items() for key in keys
}
"""The flat names that only get_context knows → the dictionary, and the key in it."""

KEYS: Mapping[str, Key] = {
    # the device and its memory
    "device_target": _str(None),
    "device_id": _int(_device_id),
    "max_device_memory": Key((str,), 1024.0, ("Ascend", "GPU"), gigabytes),
    "variable_memory_max_size": Key((str,), "0", ("Ascend",), lambda size: f"{size // GB} * 1024 * 1024 * 1024"),
    "mempool_block_size": Key((str,), 1.0, ("GPU", "Ascend"), gigabytes),
    "op_timeout": _int(900),
    # debugging
    "save_graphs": Key((bool, int), 0),
    "save_graphs_path": _str("."),
    "deterministic": _str("OFF"),
    "enable_dump": Key((bool,), ignored=DUMP),
    "save_dump_path": Key((str,), ignored=DUMP),
    "print_file_path": _str("", ("Ascend",)),
    "env_config_path": _str(""),
    "precompile_only": _bool(False),
    "reserve_class_name_in_scope": _bool(True),
    "pynative_synchronize": _bool(False),
    "debug_level": _int(0),
    # how programs run
    "mode": _int(1),
    "enable_graph_kernel": _bool(False),
    "graph_kernel_flags": _str(""),
    "enable_reduce_precision": _bool(True, ("Ascend",)),
    "aoe_tune_mode": _str(""),
    "aoe_config": Key((dict,)),
    "check_bprop": _bool(False),
    "max_call_depth": _int(1000),
    "grad_for_scalar": _bool(False),
    "enable_compile_cache": Key((bool,)),
    "compile_cache_path": _str(""),
    "inter_op_parallel_num": _int(_interop_threads),
    "runtime_num_threads": _int(lambda target: min(os.cpu_count() or 1, 30)),
    "disable_format_transform": _bool(False, ("GPU",)),
    "support_binary": _bool(False),
    "memory_optimize_level": Key((str,), lambda target: int(target == "Ascend"), shows=lambda level: int(level == "O1")),
    "memory_offload": Key((str,), False, shows=lambda value: value == "ON"),
    "jit_syntax_level": _int(2),
    "ascend_config": Key((dict,), targets=("Ascend",)),
    "gpu_config": Key((dict,), targets=("GPU",)),
    # what MindSpore accepts and ignores
    "enable_sparse": Key(ignored=IGNORED),
    "auto_tune_mode": Key(ignored=f"{IGNORED}; set_context(aoe_tune_mode='online') does that now"),
    "enable_auto_mixed_precision": Key((bool,), ignored=IGNORED),
}


IGNORED_BY_JIT = (
    *("capture_mode", "backend", "mode", "exec_order", "infer_boost", "disable_format_transform", "compile_once"),
    *("ge_options", "jit_config", "input_signature", "hash_args"),
)
"""Parameters of MindSpore's ``jit`` that concern its own compiler alone; of ``jit_config`` the level counts."""


def in_force(option: str, device: str) -> Setting | None:
    """The setting of an option that acts on a device, in this thread; also one that yields to another option."""
    BASE.start()
    for layer in reversed(current().acting().layers):
        mine = [s for s in layer.settings.values() if s.option.name == option and s.device in (None, device)]
        if mine:
            return max(mine, key=lambda setting: rank_of(setting.spelling))
    return None


def target() -> str:
    """``device_target``: the one in force, else the accelerator of this machine, else the CPU."""
    BASE.start()
    found = current().settings.get("device_target")
    return default_target() if found is None else found.value


def default_target() -> str:
    return next((word for word in TARGETS if word != "CPU" and is_here(word)), "CPU")


def is_here(word: str) -> bool:
    return TARGETS[word] in devices.here()


def set_by(spelling: str) -> Setting | None:
    """What this program set for the process under just this spelling: what can be set only once stands here."""
    BASE.start()
    layer = BASE.levels.get("set_context")
    return None if layer is None else layer.settings.get(spelling)


def origin(what: str) -> str:
    return f"{what} at {user_frame()[0]}"


def wrong_type(name: str, value: Any, types: tuple[type, ...], where: str) -> list[Diagnostic]:
    """The problem of a value whose type MindSpore does not take."""
    if not types or isinstance(value, types):
        return []
    text = f"{show(value)} is of type {type(value).__name__}"
    return [Diagnostic(name, text, where, " or ".join(kind.__name__ for kind in types))]


def store(options: Mapping[str, Any], what: str) -> None:
    """Set options for the process, all at once, and take back those that are ``UNSET``.

    A target that is not on this machine is planned only.
    """
    BASE.start()
    if given := {name: value for name, value in options.items() if value is not UNSET}:
        settings = make_layer(given, origin(what)).settings.values()
        word = next((setting.value for setting in settings if setting.option.name == "device_target"), before := target())
        if not (is_here(word) or (word == before and BASE.plan.missing)):  # else it was told
            text = "device not available; what is set is planned, and waits for a machine with that device"
            warn(f"device_target={word!r}: {text}")
        set_options(given, what, absent=True)
    BASE.take_back("set_context", {*options} - {*given})
    _tell_variables()


@cache
def _tell_variables() -> None:
    """Warn once of MindSpore's variables that are set, where no option has taken their place."""
    for name, option in VARIABLES.items():
        is_set = os.environ.get(name, "0") not in ("", "0") and not name.startswith("HCCL")  # HCCL reads its own
        if is_set and in_force(option.partition("=")[0], TARGETS[target()]) is None:
            warn(f"{name}: {NOT_READ[name]}")


def set_one(name: str, value: Any) -> None:
    """Set an option by one of its newer names, under MindSpore's rules of devices and of what can be set only once.

    Raises:
        TypeError, ValueError: a wrong type, a wrong value.
        RuntimeError: another value was set before.
    """
    option, what = find(name), f"ms.{name}"
    assert option is not None
    wanted = {"gpu": "GPU", "ascend": "Ascend"}.get(name.split(".")[1] if "." in name else "")
    if wanted and (here := target()) != wanted:
        tell_all([f"{what}: device_target is {here}, and MindSpore takes this only with {wanted}: the value is ignored"])
        return
    group, inner = FLAT.get(option.name.replace("aoe_config.", "aoe_"), ("", ""))
    types = GROUPS[group][inner].types if group else KEYS[option.name].types
    types = (bool,) if name == "set_deterministic" else types
    where = origin(what)
    if wrong := wrong_type(name, value, types, where):
        raise OptionTypeError(wrong)
    before = set_by(name)
    (setting,) = make_layer({name: value}, where).settings.values()
    if wanted != "GPU" and name != "set_recursion_limit" and before is not None and before.value != setting.value:
        raise OptionRuntimeError([Diagnostic(what, "it can be set only once", where)])
    store({name: value}, what)


def tell_all(notes: Sequence[str]) -> None:
    """Warn of each; under ``strict=True`` that is an error."""
    strict = in_force("strict", "cpu")
    if notes and strict is not None and strict.value is True:
        raise StrictError.of(notes)
    for note in notes:
        warn(note)


def torch_module(word: str) -> Any:
    """``torch.cuda`` or ``torch.npu``; None for the CPU.

    Raises:
        DeviceError: there is no such device here.
    """
    if word == "CPU":
        return None
    import torch

    if not is_here(word):
        raise DeviceError.missing(word, [known for known in TARGETS if is_here(known)])
    return getattr(torch, {"GPU": "cuda", "Ascend": "npu"}[word])
