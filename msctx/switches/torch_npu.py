"""Switches of Ascend, through torch_npu and its compiler of graphs; they exist once torch_npu is imported and finds a device."""

from __future__ import annotations

import atexit
import copy
import ctypes
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from msctx.import_hooks import when_imported
from msctx.native.core import has_float32_products
from msctx.switches.accelerator import current_device, memory_cap, npu, npu_is_here, synchronize_each_op, wait
from msctx.switches.base import OF_THE_ENGINE, OF_THE_TUNER, Placed, Switch, of, place, variable


def soc_name() -> str | None:
    """The chip as CANN names it; torch_npu has the name of a device only once that is initialised."""
    if (ask := _acl("aclrtGetSocName")) is None:
        return None
    ask.restype = ctypes.c_char_p
    found = ask()
    return found.decode() if found else None


def _acl(function: str) -> Any:
    """A function of CANN's runtime; ``None``: this CANN has none of that name, or there is no CANN."""
    try:
        return getattr(ctypes.CDLL("libascendcl.so"), function)
    except (OSError, AttributeError):
        return None


def _hf32(name: str, kind: str) -> Switch:
    return Switch(name, lambda: getattr(npu(), kind).allow_hf32, lambda on: setattr(getattr(npu(), kind), "allow_hf32", on))


def _get(key: str) -> str | None:
    found = sys.modules["torch_npu"]._C._npu_getOption(key)
    return (found.decode() if isinstance(found, bytes) else found) or None


def _set(key: str, value: str) -> None:
    sys.modules["torch_npu"]._C._npu_setOption({key: value})


def _option(name: str, key: str, unset: Callable[[], str], **more: Any) -> Switch:
    """An option of torch_npu. *unset*: what holds where nobody has set it; CANN never gets an empty text, not even back."""

    def effective(value: str | None) -> str:
        return unset() if value is None else value

    return Switch(
        name,
        lambda: effective(_get(key)),
        lambda value: _set(key, effective(value)),
        satisfied=lambda value: effective(_get(key)) == effective(value),
        **more,
    )


def _folder(option: Switch) -> Switch:
    """The same, for an option that names a folder."""
    return replace(
        option,
        write=lambda path: option.set(place(path)),
        satisfied=lambda path: option.is_satisfied(place(path)),
        state=(option.read, option.put_back),
    )


def _cube_math_type() -> str | None:
    """What CANN gets for all float32 products, whatever other options are. ``None``: these decide."""
    found = npu().matmul.cube_math_type
    return None if found is None else str(found.name)


def _write_cube_math_type(name: str | None) -> None:
    if name is None:
        _set("CUBE_MATH_TYPE", "")  # torch_npu's own word for that: CANN gets none of its texts
    else:
        npu().matmul.cube_math_type = npu().CubeMathType[name]


def _cache_mode() -> str:
    """As torch_npu reads its variable when it first compiles an operator."""
    found = os.environ.get("ACL_OP_COMPILER_CACHE_MODE", "")
    return found if found in ("enable", "disable", "force") else "enable"


def _cache_dir() -> str:
    home = os.path.join(os.path.expanduser("~"), "atc_data")
    return os.environ.get("ACL_OP_COMPILER_CACHE_DIR") or os.environ.get("ASCEND_CACHE_PATH") or home


NO_EMPTY_LIST, ALWAYS_ON = "CANN has no word for an empty list", "torch_npu cannot switch it off again"


def _once_set(name: str, key: str, lasts: str, blocked: str) -> Switch:
    """An option without a word for unset. *blocked*: why ``None``, as others have it, cannot come back; ``{}`` is what is set."""
    return Switch(
        name,
        lambda: _get(key),
        lambda value: None if value is None else _set(key, value),
        restore=lasts,
        blocked=lambda value: blocked.format(_get(key)) if value is None else "",
    )


# --- how operators are compiled -----------------------------------------------------------------------------------------


def _is_jit_compiled() -> bool:
    """Whether CANN compiles operators for the shapes at hand; where nobody has said so, what it does by itself on this chip."""
    if (found := _get("jitCompile")) is not None:
        return found == "enable"
    return not npu().is_jit_compile_false() if npu().is_initialized() else not has_float32_products()


def _jit(on: bool | None) -> bool:
    """``None``: as torch_npu has it on this chip."""
    return not has_float32_products() if on is None else on


def _allows_internal_format() -> bool:
    """Where nobody has said so, torch_npu forbids them when it initialises a chip whose matrix unit computes float32."""
    found = _get("ALLOW_INTERNAL_FORMAT")
    return not has_float32_products() if found is None else found != "disable"


# --- the time that an operator may take ---------------------------------------------------------------------------------

MILLISECONDS = 547_000
"""What torch_npu sends when it initialises a device."""


def _op_limit() -> int | None:
    """In milliseconds, as CANN has it; torch_npu has no call that reads it. ``None``: an older CANN has none either."""
    found, ask = ctypes.c_uint32(), _acl("aclrtGetOpExecuteTimeout")
    return None if ask is None or ask(ctypes.byref(found)) else found.value


LONGEST = (2**32 - 1) // 1000
"""Seconds: torch_npu counts milliseconds in 32 bits; as good as no limit."""


class _Timeout:
    seconds: int | None = None
    found = MILLISECONDS
    in_force: int | None = None
    """What CANN had after our own call: it may round a limit up."""

    def read(self) -> int | None:
        """A limit that the program has set since is not ours."""
        return None if self.seconds is None or self.in_force != _op_limit() else self.seconds

    def write(self, seconds: int | None) -> None:
        """``None``: as it was before."""
        if seconds is not None or npu().is_initialized():
            npu().current_stream()  # the first stream initialises the device, which sends a limit of its own
            if self.read() is None:
                limit = _op_limit()
                self.found = MILLISECONDS if limit is None else limit
            npu().set_op_timeout_ms(self.found if seconds is None else min(seconds, LONGEST) * 1000)
        self.seconds = seconds
        self.in_force = None if seconds is None else _op_limit()


# --- what only the start of the device reads ----------------------------------------------------------------------------

ACL_INIT = "TORCH_ACL_INIT_CONFIG_PATH"
_init_path = variable(ACL_INIT)
SCENES = {"1": "aic_err_norm_dump", "2": "aic_err_brief_dump"}
"""What exception_dump has CANN write → its word for it."""


def _exception_dump() -> str | None:
    """What aclInit is or was given: our files have it in their names. ``None``: a file of the program's own says it."""
    if (path := os.environ.get(ACL_INIT)) is None:
        return "2"  # torch_npu's own words for it
    return (found := re.match(r"msctx_acl_([012])_", Path(path).name)) and found[1]


def _no_exception_dump(value: str) -> str:
    """Why another dump cannot be requested."""
    if _exception_dump() is None:
        return f"{ACL_INIT} is set: give that file the dump_scene, or unset the variable"
    return is_late("exception_dump")


def _write_exception_dump(value: str) -> None:
    """A file as CANN 8.3 and newer want it, which names the device."""
    content: dict[str, Any] = {"defaultDevice": {"default_device": "0"}}
    if value != "0":
        content["dump"] = {"dump_scene": SCENES[value]}
    handle, name = tempfile.mkstemp(prefix=f"msctx_acl_{value}_", suffix=".json")
    with open(handle, "w", encoding="utf-8") as file:
        json.dump(content, file)
    atexit.register(_remove, name, os.getpid())
    _init_path.set(name)


def _remove(name: str, process: int) -> None:
    if os.getpid() == process:  # a fork's end is not the end of the file
        Path(name).unlink(missing_ok=True)


def is_late(what: str) -> str:
    """Why what only the start of the device reads cannot be set; nothing is initialised to find out."""
    if npu_is_here() and npu().is_initialized():
        return f"{what} comes too late, torch_npu is already initialised; start with `msctx run`"
    return ""


# --- graphs of single operators, recorded for CANN's tuner ---------------------------------------------------------------


_recorded: list[str] = []
"""The folder into which they go: torch_npu has no call that reads it, and goes on once it records."""


def _record(folder: str | None) -> None:
    if folder is not None:
        npu().set_aoe(folder)
        _recorded[:] = [folder]


# --- what goes to CANN's graph engine with what torchair, torch_npu's compiler of graphs, sends by itself ---------------
# The engine is initialised once in a process, with the first graph; torchair raises at later ones that come with other options.
# Options of a graph go with each graph; the engine looks for one there first.

CONVERTER = "torchair._ge_concrete_graph.fx2ge_converter"
ENGINE = "torchair.core._backend"
ALLOW_HF32, AS_SWITCHED = "ge.exec.allow_hf32", "-"
"""A digit for convolutions and one for products, or the sign for torch_npu's switch as it is then."""
DUMPS = (
    *("ge.exec.enableDump", "ge.exec.dumpPath", "ge.exec.dumpMode", "ge.exec.dumpStep", "ge.exec.dumpLayer"),
    *("ge.exec.dumpData", "ge.quant_dumpable"),
)
"""Options of a graph that torchair writes to a file; among those of the engine they would hold for the whole process."""


class _Engine(Placed):
    def read(self) -> dict[str, str] | None:
        return dict((self.now if _initialised() is None else _Sent.engine) or {}) or None

    def holds(self, texts: Any) -> bool:
        """Whether the engine has these; others that it has beside them stay."""
        there, wanted = _initialised(), dict(self.placed(texts) or {})
        if there is None:
            return self.read() == (wanted or None)
        return all(there.get(key) == value for key, value in wanted.items())

    def blocked(self, texts: Any) -> str:
        there, wanted = _initialised(), self.placed(texts) or {}
        if there is None or self.holds(texts):
            return ""
        differing = next(key for key, value in wanted.items() if there.get(key) != value)
        return (
            f"{differing}={wanted[differing]} comes too late: torchair has initialised the graph engine with its first graph, "
            f"with {differing}={there.get(differing, 'unset')}; start with `msctx run`, or enter the context before that graph"
        )


_engine, _graph, _tuner = _Engine(OF_THE_ENGINE), Placed(OF_THE_ENGINE), Placed(OF_THE_TUNER)
"""As they are wanted; torchair requests them when it compiles a graph, and gets nothing where nothing is wanted."""


class _Sent:
    engine: dict[str, str] = {}
    """What of the engine's options was ours when it was initialised."""
    hf32: dict[str, str] = {}
    """What goes with each graph from then on where the engine took HF32 from switches that we had set."""
    dumped: dict[str, str] = {}
    """The settings of the graphs in torchair's list of those that CANN dumps."""


def _initialised() -> dict[str, str] | None:
    """What the engine was initialised with; ``None``: it was not."""
    found = getattr(sys.modules.get(ENGINE), "_GLOBAL_COMPILE_OPTION", None)
    return None if found is None else dict(found)


def _into_torchair() -> None:
    converter: Any = sys.modules[CONVERTER]
    graphs, taken = converter.GeConcreteGraph, converter._get_ge_dump_options
    make, normal = graphs.__init__, graphs._normalize_ge_option

    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        if _tuner.now is not None and self.config.aoe_config.aoe_mode.value is None:
            self._config = _tuning(self.config, _tuner.now)

    graphs.__init__ = made
    graphs._normalize_ge_option = lambda self: _merged(*normal(self))
    converter._get_ge_dump_options = lambda engine: taken(engine) | _dumps()


when_imported(CONVERTER, _into_torchair)


def _merged(graph: dict[str, str], engine: dict[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    ours = {key: value for key, value in (_graph.now or {}).items() if key not in DUMPS}
    if _initialised() is None:
        _Sent.engine = dict(_engine.now or {})
        _Sent.hf32 = {ALLOW_HF32: AS_SWITCHED * 2} if ALLOW_HF32 in ours else {}
    graph = graph | _Sent.hf32 | ours
    if AS_SWITCHED in (digits := graph.get(ALLOW_HF32, "")):
        there = [str(int(switch.allow_hf32)) for switch in (npu().conv, npu().matmul)]
        graph[ALLOW_HF32] = "".join(n if d == AS_SWITCHED else d for d, n in zip(digits, there, strict=True))
    return graph, engine | _Sent.engine


def _dumps() -> dict[str, str]:
    """What is to be dumped of the graph that is about to be compiled. torchair's list has one path and one mode, those of its first
    graph: a list ends when the settings change."""
    found = {key: value for key, value in (_graph.now or {}).items() if key in DUMPS}
    if found != _Sent.dumped:
        vars(sys.modules[CONVERTER])["g_cached_dump_root"] = None
        _Sent.dumped = found
    if found:
        os.makedirs(found["ge.exec.dumpPath"], exist_ok=True)
    return found


def _tuning(config: Any, tuner: Mapping[str, str]) -> Any:
    """A configuration of its own for this graph: the program's is not changed."""
    made = copy.deepcopy(config)
    made.aoe_config.aoe_mode = tuner["mode"]
    made.aoe_config.work_path = tuner["path"]
    if tuner["file"]:
        made.aoe_config.aoe_config_file = tuner["file"]
    return made


SWITCHES = (
    current_device("torch.npu.current_device", npu),
    memory_cap("torch.npu.memory_cap", npu),
    synchronize_each_op("torch.npu.synchronize_each_op", npu),
    _hf32("torch.npu.matmul.allow_hf32", "matmul"),
    _hf32("torch.npu.conv.allow_hf32", "conv"),
    Switch("torch.npu.matmul.cube_math_type", _cube_math_type, _write_cube_math_type),
    _option(
        "torch.npu.precision_mode",
        "ACL_PRECISION_MODE",
        lambda: "must_keep_origin_dtype" if has_float32_products() else "allow_fp32_to_fp16",
    ),
    _option("torch.npu.op_select_implmode", "ACL_OP_SELECT_IMPL_MODE", lambda: "high_performance"),
    _once_set(
        "torch.npu.optypelist_for_implmode",  # idle once the mode is back; None: the mode is for all operators
        "ACL_OPTYPELIST_FOR_IMPLMODE",
        NO_EMPTY_LIST,
        f"op_select_implmode is limited to {{}}, set before: {NO_EMPTY_LIST}",
    ),
    # whatever it is set to, torch_npu switches its debugged kernels on
    _once_set("torch.npu.op_debug_option", "ACL_OP_DEBUG_OPTION", ALWAYS_ON, f"{{}} is on in this process, and {ALWAYS_ON}"),
    _option("torch.npu.op_debug_level", "ACL_OP_DEBUG_LEVEL", lambda: "0"),
    _folder(_option("torch.npu.debug_dir", "ACL_DEBUG_DIR", lambda: os.environ.get("ASCEND_WORK_PATH") or ".")),
    _option("torch.npu.op_compiler_cache_mode", "ACL_OP_COMPILER_CACHE_MODE", _cache_mode),
    _folder(_option("torch.npu.op_compiler_cache_dir", "ACL_OP_COMPILER_CACHE_DIR", _cache_dir)),
    Switch(
        "torch.npu.jit_compile",
        _is_jit_compiled,
        lambda on: npu().set_compile_mode(jit_compile=_jit(on)),
        satisfied=lambda on: _is_jit_compiled() is _jit(on),
    ),
    Switch(
        "torch.npu.allow_internal_format",
        _allows_internal_format,
        lambda on: _set("ALLOW_INTERNAL_FORMAT", "enable" if on else "disable"),
    ),
    of("torch.npu.op_timeout", _Timeout()),
    wait("torch.npu.event_sync_timeout", npu, "Event"),
    Switch(
        "torch.npu.exception_dump",
        _exception_dump,
        _write_exception_dump,
        state=(_init_path.read, _init_path.set),
        restore="it is read only before the first use of an NPU",
        blocked=_no_exception_dump,
    ),
    _folder(Switch("torch.npu.aoe_folder", lambda: next(iter(_recorded), None), _record, restore=ALWAYS_ON)),
    of("torch.npu.engine_options", _engine, restore="it is read only before the first graph that torchair compiles"),
    of("torch.npu.graph_options", _graph),
    of("torch.npu.graph_tuner", _tuner),
)
