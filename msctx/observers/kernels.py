"""``op_debug_config`` dump_cce, dump_loc: what inductor generates, kept in ``kernel_meta``.

torch reports each graph that it compiles, or finds in its caches, to a logger that nobody else listens to by default. A file is named
by its content: what is there already is left as it is.
"""

from __future__ import annotations

import ast
import hashlib
import json
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from torch._logging._internal import trace_log

from msctx import notices
from msctx.observers import files
from msctx.observers.stack_traces import frames
from msctx.options.observation import Kernels

OPTION = "op_debug_config"
_SUFFIXES = {"cpp": "cpp", "cpp_pybinding": "cpp", "triton": "py", "cutlass": "cu", "cuda": "cu"}
"""The function of async_compile → the language of the source that it compiles."""


class Kernel(NamedTuple):
    name: str
    suffix: str
    source: str


def kernels_in(module: str) -> Iterator[Kernel]:
    """The kernels in the source of a module that inductor generates: ``name = async_compile.cpp(…, source)``."""
    try:
        statements = ast.parse(module).body
    except SyntaxError:  # under cpp_wrapper it is C++
        return
    for statement in statements:
        match statement:
            case ast.Assign(
                targets=[ast.Name(name)], value=ast.Call(func=ast.Attribute(ast.Name("async_compile"), how), args=args)
            ):
                texts = [a.value for a in args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
                if texts:
                    yield Kernel(name, _SUFFIXES.get(how, "txt"), texts[-1])


class _LastGraph(threading.local):
    names: dict[str, str] = {}
    """Kernel → the stem of its files, of the graph that this thread has just compiled."""


def _folder(path: str) -> Path:
    root = Path(path).expanduser() if path else files.work_path() or Path()
    return root.absolute() / "kernel_meta"


class Keeper(logging.Handler):
    def __init__(self, settings: Kernels, before: Keeper | None = None) -> None:
        super().__init__(logging.DEBUG)
        self.settings = settings
        # one that goes on stays where it is: the program may have changed its directory
        self._folder: Path = before._folder if before and before.settings.path == settings.path else _folder(settings.path)
        self._last = _LastGraph()

    def emit(self, record: logging.LogRecord) -> None:
        found, payload = getattr(record, "metadata", {}), getattr(record, "payload", None)
        if not isinstance(payload, str):
            return
        try:
            if "inductor_output_code" in found:
                files.guarded(OPTION, self._folder, lambda: self._keep(payload))
            elif self.settings.locations and _name(found) == "inductor_provenance_tracking_kernel_stack_traces":
                files.guarded(OPTION, self._folder, lambda: self._locate(payload))
        except Exception as error:  # whatever torch reports, it goes on compiling
            notices.warn(OPTION, str(error), f"{OPTION}: what inductor generates cannot be kept: {error}")

    def _keep(self, module: str) -> None:
        graph, self._last.names = f"graph_{_digest(module)}.py", {}
        self._put(graph, module)
        for kernel in kernels_in(module):
            command = _command() if kernel.suffix == "cpp" else ""
            stem = f"{kernel.name}_{_digest(kernel.source + command)}"
            self._last.names[kernel.name] = stem
            source = f"{stem}.{kernel.suffix}"
            self._put(source, kernel.source)
            described = {"kernel": kernel.name, "source": source, "graph": graph, "command": command}
            self._put(f"{stem}.json", json.dumps(described, indent=1))

    def _locate(self, traces: str) -> None:
        for kernel, found in json.loads(traces).items():
            stem = self._last.names.get(kernel.rpartition(":")[0])
            if stem is not None:
                self._put(f"{stem}_loc.json", json.dumps([*_places(found)], indent=1))

    def _put(self, name: str, text: str) -> None:
        if not (path := self._folder / name).exists():
            files.write(path, text)


def _name(found: dict[str, Any]) -> str:
    artifact = found.get("artifact")
    return str(artifact.get("name", "")) if isinstance(artifact, dict) else ""


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _places(traces: list[str]) -> Iterator[dict[str, Any]]:
    """Of each operator in a kernel, the lines of Python that lead to it, the outermost first."""
    for trace in traces:
        yield {"lines": [frame._asdict() for frame in frames(trace)]}


def _command() -> str:
    """With which inductor compiles a kernel, under its configuration now."""
    from torch._inductor.cpp_builder import CppBuilder, CppTorchDeviceOptions
    from torch._inductor.cpu_vec_isa import pick_vec_isa

    options = CppTorchDeviceOptions(vec_isa=pick_vec_isa(), device_type="cpu")
    return str(CppBuilder(name="kernel", sources="kernel.cpp", BuildOption=options).get_command_line())


_current: Keeper | None = None


def read() -> Kernels | None:
    return None if _current is None else _current.settings


def write(settings: Kernels | None) -> None:
    load(None if settings is None else Keeper(settings, _current))


def save() -> Keeper | None:
    return _current


def load(keeper: Keeper | None) -> None:
    global _current
    if _current is not None:
        trace_log.removeHandler(_current)
    _current = keeper
    if keeper is not None:
        trace_log.addHandler(keeper)
