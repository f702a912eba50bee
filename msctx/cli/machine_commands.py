"""The commands about this machine: `msctx doctor`, `msctx build` for the native core or the CUDA kernels, `msctx tune`."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import import_module, metadata
from pathlib import Path
from typing import Annotated, Any

import typer

from msctx import devices
from msctx.cli import output
from msctx.cli.arguments_and_completion import Json
from msctx.cli.output import NO_CANN, emit
from msctx.errors import NativeError, named
from msctx.native import build as native
from msctx.native import cachedir, core, tuning_file, tuning_in_core
from msctx.native.cuda import compiled_kernels as kernels
from msctx.native.cuda.compiled_kernels import ARCHS
from msctx.run.experiment_and_entry import read
from msctx.state_and_environment import library_version

TESTED_TORCH = "2.13.0"  # with which the whole test suite runs


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
    emit([asdict(c) for c in found], json_, lambda: output.pairs_table(rows, ("", "status", "found", "fix")))
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
    note = "" if version == TESTED_TORCH else f"; msctx is tested with {TESTED_TORCH}"
    capability = torch.backends.cpu.get_cpu_capability()
    yield Check("torch", "ok", f"{torch.__version__}, {capability}, {torch.get_num_threads()} threads{note}")
    mapped = maps.read_text(encoding="utf-8", errors="replace") if (maps := Path("/proc/self/maps")).exists() else ""
    preloaded = [name for name in ("tcmalloc", "jemalloc", "mimalloc") if f"lib{name}" in mapped]
    yield Check("memory allocator", "ok", ", ".join(preloaded) or "the C library's")


def _cuda() -> Iterator[Check]:
    import torch

    if not torch.backends.cuda.is_built():
        fix = "needs an NVIDIA GPU and the CUDA build of torch"
        if Path("/proc/driver/nvidia/version").exists():
            fix = "this machine has a GPU: install the CUDA build of torch"
        yield Check("cuda", "missing", "this torch is built without CUDA", fix)
    elif not (count := torch.cuda.device_count()):
        yield Check("cuda", "missing", f"torch is built for CUDA {torch.version.cuda}, no device found", "check `nvidia-smi`")
    else:
        cudnn = torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else "none"
        yield Check("cuda", "ok", f"{count} x {torch.cuda.get_device_name(0)}, CUDA {torch.version.cuda}, cuDNN {cudnn}")
        fix = "conv_fprop_algo, conv_dgrad_algo and conv_wgrad_algo run only on the CPU"
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
        ("C++ compiler", native.find_compiler, "apt install g++ (only for the native core)"),
        ("CUDA compiler", kernels.find_nvrtc, "only for msctx's CUDA kernels: direct, and those that performance chooses"),
    ):
        try:
            yield Check(name, "ok", str(find()))
        except NativeError as error:
            yield Check(name, "missing", str(error), fix)


def _libraries() -> Iterator[Check]:
    """What is optional: pip installs the dependencies."""
    for name, use in {"scikit-learn": "the digits experiment", "pytest": "the test suite"}.items():
        found, version = ("not installed", f"pip install {name} ({use})"), library_version(name)
        yield Check(name, "ok", version) if version else Check(name, "missing", *found)


def _native() -> Iterator[Check]:
    if reason := native.obstacle():
        fix = "install what is missing, then run msctx build; everything else works without"
        yield Check("native core", "missing", reason, fix)
    elif (made := native.found()) is None:
        yield Check("native core", "ok", "not built yet: the first option that needs it builds it", "msctx build")
    else:
        library = core.load()
        isa = f"{library.c.msctx_isa_in_use()} of {', '.join(library.isas())}"
        yield Check("native core", "ok", f"{made.origin}, {isa}, {made.glue}")


def _switches() -> Iterator[Check]:
    from msctx.switches import SWITCHES, present

    available = present()
    for switch in available:
        switch.read()
    writable = sum(s.write is not None for s in available)
    yield Check("switches", "ok", f"{len(available)} readable here, {writable} set by options, of {len(SWITCHES)} known")
    yield Check("msctx", "ok", metadata.version("msctx"))


def build(
    clean: Annotated[bool, typer.Option("--clean", help="First remove everything that was built before.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show each command of the compiler.")] = False,
    cuda: Annotated[bool, typer.Option("--cuda", help="Compile the CUDA kernels instead. Ends with 1 if one fails.")] = False,
    json_: Json = False,
) -> None:
    """Build the native core now rather than when an option first needs it, load it, and check that PyTorch calls it."""
    removed = cachedir.remove() if clean else 0
    if cuda:
        reports = kernels.build(ARCHS)
        listed = [report.as_dict() for report in reports]
        emit(listed, json_, lambda: output.modules_table(listed))
        for report in reports:
            if text := report.error or report.log * verbose:
                print(f"{report.module} for {report.arch}\n{text}", file=sys.stderr)
        raise typer.Exit(any(report.error for report in reports))
    import_module("torch")  # takes longer than to find what is built
    began = time.perf_counter()
    made, seconds, library = native.build(verbose), time.perf_counter() - began, core.load()
    found = {
        "kernels": str(made.kernels),
        "library": str(made.glue),
        "origin": made.origin,
        "seconds": round(seconds, 1),
        "compiler": library.c.msctx_compiler(),
        "built_for": [*native.VECTORS, *native.TILES],
        "processor_has": library.isas(),
        "in_use": library.c.msctx_isa_in_use(),
        "bytes_removed": removed,
    }
    emit(found, json_, lambda: output.pairs_table(found, ("native core", "")))


tune = typer.Typer(help="Show or clear what performance has measured, or is to.", no_args_is_help=True, rich_markup_mode=None)
File = Annotated[str | None, typer.Option(help="The tuning file. Default: that of tuning_file, else the one in the cache.")]


@tune.command("show")
def show(file: File = None, json_: Json = False) -> None:
    """What the tuning file holds, and which entries this machine uses."""
    found = contents(_place(file))
    emit(found, json_, lambda: output.tuning_page(found))


@tune.command("clear")
def clear(file: File = None, json_: Json = False) -> None:
    """Remove the entries, so that their problems are measured again."""
    path = _place(file)
    found = {"file": str(path), "removed": tuning_file.clear(path)}
    emit(found, json_, lambda: output.pairs_table(found, ("tuning", "")))


def _place(file: str | None) -> Path:
    """The file that a command applies to: the one named, that of the option ``tuning_file``, or the one in the cache."""
    if file is None:
        setting = read(None, ()).settings.get("tuning_file")
        file = setting.value if setting is not None else None
    return tuning_file.location(file)


def contents(path: Path) -> dict[str, Any]:
    """A group for each stamp, and whether this machine uses it (``None``: unknown)."""
    stamps, groups, listed = tuning_in_core.here(), tuning_file.read(path), []
    for stamp in sorted(groups):
        mine = stamps.get(stamp.place)
        differs = [name for name, text in asdict(stamp).items() if mine and getattr(mine, name) != text]
        entries = [asdict(entry) for _, entry in sorted(groups[stamp].items())]
        group = {"stamp": asdict(stamp), "place": stamp.place, "used": not differs if mine else None, "differs": differs}
        listed.append({**group, "entries": entries})
    here = {place: asdict(mine) for place, mine in stamps.items()}
    return {"file": str(path), "there": path.exists(), "stamps_here": here, "groups": listed}
