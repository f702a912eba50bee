"""The kernels as they are not shipped: with matrix units in software beside, on a processor with AVX-512; with sanitizers."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from msctx.native import build
from msctx.native.build import BuildSpec, Units, kernels_spec
from msctx.native.cachedir import digest
from msctx.native.core import cpuinfo


def has_avx512() -> bool:
    flags = cpuinfo().get("flags", "").split()
    return all(flag.removeprefix("-m") in flags for flag in build.AVX512)


def emulated(spec: BuildSpec) -> BuildSpec:
    """With each unit that is compiled for tiles once more, for tiles in software."""
    units = _with_flags(spec, lambda name, flags: (*flags, *(["-DMSCTX_WITH_EMULATED"] * name.startswith("common/"))))
    in_software: Units = tuple(
        (name, (*(f"{flag}_emulated" if flag.startswith("-DMSCTX_ISA=") else flag for flag in flags), "-DMSCTX_EMULATED_TILES"))
        for name, flags in spec.units
        if name.startswith("cpu/amx/")
    )
    return _varied(spec, (*units, *in_software)) if has_avx512() else spec


def sanitized(spec: BuildSpec, names: str) -> BuildSpec:
    """*names*: such as ``address,undefined``."""
    # use-after-scope: what unrolled loops keep in registers would each be watched, which takes minutes to compile
    no_scope = "-fno-sanitize-address-use-after-scope"
    # -g1: the lines that a report names; with the variables, which it does not, compiling takes nearly twice as long
    checks = (f"-fsanitize={names}", no_scope, "-fno-omit-frame-pointer", "-g1", "-O1")
    return _varied(spec, _with_flags(spec, lambda _, flags: (*(flag for flag in flags if flag[:2] != "-O"), *checks)), *checks)


def kernels_library(names: str = "") -> Path:
    """With matrix units in software, and sanitizers if any are given."""
    spec = emulated(kernels_spec())
    return build.library(sanitized(spec, names) if names else spec)


def use_emulated() -> None:
    """This process loads the core with matrix units in software beside (``MSCTX_ISA=amx_fp16_emulated`` and its like)."""
    build.kernels_spec = lambda: emulated(kernels_spec())


def _with_flags(spec: BuildSpec, changed: Callable[[str, tuple[str, ...]], tuple[str, ...]]) -> Units:
    return tuple((name, changed(name, flags)) for name, flags in spec.units)


def _varied(spec: BuildSpec, units: Units, *link: str) -> BuildSpec:
    """Under another name, which a glue that is linked with it needs it by."""
    file = f"libmsctx_kernels-{digest(spec.file, units)[:16]}.so"
    named = tuple(word.replace(spec.file, file) for word in spec.link)
    return replace(spec, file=file, units=units, link=(*link, *named))
