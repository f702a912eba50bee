"""`msctx doctor`: what this machine can do, and one line for each thing that is missing and how to get it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import import_module, metadata
from pathlib import Path

import typer

from msctx import devices
from msctx.cli import render
from msctx.cli.render import NO_CANN, Json, emit
from msctx.errors import NativeError, named
from msctx.inspection import library_version
from msctx.native import build, compiler, core
from msctx.native.cuda import nvrtc

TESTED_TORCH = ("2.11.0", "2.13.0", "2.14.1")
"""The versions of torch that the test suite has really run with."""


@dataclass(frozen=True, slots=True)
class Check:
    """One finding. ``status``: ``ok``, ``missing`` (optional; *fix*: how to get it) or ``broken`` (msctx cannot work)."""

    name: str
    status: str
    found: str
    fix: str = ""


def doctor(json_: Json = False) -> None:
    """What this machine can do: PyTorch, devices, compilers, libraries; one line to fix each thing missing."""
    found = list(checks())
    rows = {c.name: (c.status, c.found, c.fix) for c in found}
    emit([asdict(c) for c in found], json_, lambda: render.pairs_table(rows, ("", "status", "found", "fix")))
    raise typer.Exit(any(c.status == "broken" for c in found))


def checks() -> Iterator[Check]:
    """Every finding; each survives a broken machine."""
    try:
        import_module("torch")
    except Exception as error:
        broken = named(error).splitlines()[0]
        found = library_version("torch")
        fix = NO_CANN if "torch_npu" in broken else "pip install 'torch>=2.11'"
        yield Check("torch", "broken", broken if found else "not installed", fix)
        finders = [_compilers, _libraries]
    else:
        finders = [_torch, _cuda, _ascend, _compilers, _libraries, _native, _switches]
    for find in finders:
        try:
            yield from find()
        except Exception as error:  # a doctor must outlive its patient
            yield Check(find.__name__.strip("_"), "broken", named(error), "report this with `msctx doctor --json`")


def _torch() -> Iterator[Check]:
    import torch

    version = torch.__version__.split("+")[0]
    if tuple(int(part) for part in version.split(".")[:2] if part.isdigit()) < (2, 11):
        yield Check("torch", "broken", f"{torch.__version__}, too old", "pip install 'torch>=2.11'")
        return
    note = "" if version in TESTED_TORCH else f"; msctx is tested with {', '.join(TESTED_TORCH)}"
    capability = torch.backends.cpu.get_cpu_capability()
    yield Check("torch", "ok", f"{torch.__version__}, {capability}, {torch.get_num_threads()} threads{note}")


def _cuda() -> Iterator[Check]:
    import torch

    if not torch.backends.cuda.is_built():
        fix = "needs an NVIDIA GPU and the CUDA build of torch"
        if Path("/proc/driver/nvidia/version").exists():
            fix = "a GPU is here: install the CUDA build of torch"
        yield Check("cuda", "missing", "this torch is built without CUDA", fix)
    elif not (count := torch.cuda.device_count()):
        yield Check("cuda", "missing", f"torch is built for CUDA {torch.version.cuda}, no device found", "check `nvidia-smi`")
    else:
        cudnn = torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else "none"
        yield Check("cuda", "ok", f"{count} x {torch.cuda.get_device_name(0)}, CUDA {torch.version.cuda}, cuDNN {cudnn}")
        fix = "conv_fprop_algo and its like run on the CPU alone"
        why = core.cudnn_obstacle()
        yield Check("cuDNN by name", "missing", why, fix) if why else Check("cuDNN by name", "ok", "algorithms can be named")


def _ascend() -> Iterator[Check]:
    version = library_version("torch-npu")
    if version is None:
        yield Check("ascend", "missing", "torch_npu is not installed", "needs an Ascend NPU with CANN: pip install torch_npu")
    elif "torch_npu" not in sys.modules:
        fix = "import torch_npu, or unset TORCH_DEVICE_BACKEND_AUTOLOAD"
        yield Check("ascend", "missing", f"torch_npu {version}, not loaded", fix)
    elif not (npu := sys.modules["torch_npu"].npu).is_available():
        fix = "source CANN's set_env.sh; check `npu-smi info`"
        yield Check("ascend", "missing", f"torch_npu {version}, no device found", fix)
    else:
        chip = devices.ascend() or {}
        text = f"torch_npu {version}, {npu.device_count()} devices ({chip.get('soc') or 'of unknown kind'}, CANN {chip.get('cann')})"
        yield Check("ascend", "ok", text)


def _compilers() -> Iterator[Check]:
    for name, find, fix in (
        ("C++ compiler", compiler.find, "apt install g++ (for the native core alone)"),
        ("CUDA compiler", nvrtc.find, "for CUDA kernels of msctx's own alone: direct, and what performance takes"),
    ):
        try:
            yield Check(name, "ok", str(find()))
        except NativeError as error:
            yield Check(name, "missing", str(error), fix)


def _libraries() -> Iterator[Check]:
    """The dependencies as the package declares them; extras are optional."""
    for name in ("numpy", "pyyaml", "pydantic", "rich", "typer", "filelock", "platformdirs"):  # all commands import them
        yield Check(name, "ok", library_version(name) or "")
    extras = {"scikit-learn": "'msctx[experiments]' (the digits experiment)", "pytest": "'msctx[test]' (the test suite)"}
    for name, extra in extras.items():
        version = library_version(name)
        yield Check(name, "ok", version) if version else Check(name, "missing", "not installed", f"pip install {extra}")


def _native() -> Iterator[Check]:
    if reason := build.obstacle():
        yield Check("native core", "missing", reason, "conv_fprop_algo and its like need it; everything else works without")
    elif (made := build.found()) is None:
        yield Check("native core", "ok", "not built yet: the first option that needs it builds it", "msctx build")
    else:
        library = core.load()
        yield Check("native core", "ok", f"{made.origin}, {library.isa()} of {', '.join(library.isas())}, {made.glue}")


def _switches() -> Iterator[Check]:
    from msctx.switches import SWITCHES, present

    available = present()
    for switch in available:
        switch.read()
    writable = sum(s.write is not None for s in available)
    text = f"{len(available)} readable here, {writable} of them set by options, of {len(SWITCHES)} known"
    yield Check("switches", "ok", text)
    yield Check("msctx", "ok", metadata.version("msctx"))
