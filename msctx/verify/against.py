"""What the second run of `msctx verify` differs in from the first."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from msctx.errors import Diagnostic, OptionError, nearest
from msctx.verify.runs import Side

CAPABILITIES = {"generic": "default", "avx2": "avx2", "avx512": "avx512", "amx": "avx512", "amx_fp16": "avx512"}
"""The instruction sets of msctx's kernels → what comes next to them for torch's own, in ATEN_CPU_CAPABILITY."""
NAMES = ("run", "threads", "isa")
ALLOWED = "run, threads[:N], isa[:NAME], KEY=VALUE, or the file of a certificate (*.json)"


@dataclass(frozen=True)
class Pair:
    """The two sides, and what must be known about them."""

    against: str
    sides: tuple[Side, Side]
    note: str = ""


def read(words: Sequence[str]) -> Pair:
    """What ``--against`` names: one of :data:`NAMES`, or any number of options.

    Raises:
        OptionError: it names nothing that is known.
    """
    options = [word for word in words if "=" in word]
    if options and len(options) == len(words):
        return Pair(" ".join(options), (Side("as given"), Side(" ".join(options), options)))
    if len(words) > 1:
        raise _error(" ".join(words), "several are allowed only if all are options")
    what, colon, value = (words[0] if words else "run").partition(":")
    if what == "run" and not colon:
        return Pair("run", (Side("first run"), Side("second run")))
    if what == "threads" and (not colon or (value.isdecimal() and int(value) > 0)):
        count = int(value or max(2, len(os.sched_getaffinity(0))))
        return Pair(f"threads:{count}", (_threads(1), _threads(count)))
    if what == "isa" and value in ("", *CAPABILITIES):
        return Pair(
            f"isa:{value or 'generic'}",
            (_isa(value or "generic"), Side("best instruction set")),
            "isa concerns msctx's kernels (MSCTX_ISA) and torch's own (ATEN_CPU_CAPABILITY); oneDNN and MKL choose for themselves",
        )
    raise _error(words[0], "is nothing that runs can differ in", nearest(what, NAMES))


def _error(what: str, text: str, near: str = "") -> OptionError:
    return OptionError([Diagnostic("--against", f"{what!r}: {text}", "command line", ALLOWED, near)])


def _threads(count: int) -> Side:
    return Side(f"{count} thread{'s' * (count > 1)}", [f"runtime_num_threads={count}"])


def _isa(name: str) -> Side:
    return Side(f"instruction set {name}", (), {"MSCTX_ISA": name, "ATEN_CPU_CAPABILITY": CAPABILITIES[name]})
