"""What the second run of `msctx verify` differs in from the first."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from msctx.errors import Diagnostic, OptionError, nearest
from msctx.verify.runs import Side

CAPABILITIES = {"generic": "default", "avx2": "avx2", "avx512": "avx512", "amx": "avx512", "amx_fp16": "avx512"}
"""The instruction sets of msctx's kernels → what comes next to them for torch's own, in ATEN_CPU_CAPABILITY."""
NAMES = ("run", "threads", "isa", "compiled", "ranks", "deterministic")
ALONE = {"compiled": Side("eager and compiled code"), "deterministic": Side("deterministic=ON", ["deterministic=ON"])}
"""What is not compared digest by digest → what is run."""
ALLOWED = "run, threads[:N], isa[:NAME], compiled, ranks[:N], deterministic, KEY=VALUE, or the file of a certificate (*.json)"


@dataclass(frozen=True)
class Against:
    """The sides, and what must be known about them.

    Attributes:
        are_ranks: of one run, which go together.
    """

    what: str
    sides: Sequence[Side]
    note: str = ""
    are_ranks: bool = False


def read(words: Sequence[str]) -> Against:
    """What ``--against`` names: one of :data:`NAMES`, or any number of options.

    Raises:
        OptionError: it names nothing that is known.
    """
    options = [word for word in words if "=" in word]
    if options and len(options) == len(words):
        return Against(" ".join(options), (Side("as given"), Side(" ".join(options), options)))
    if len(words) > 1:
        raise _error(" ".join(words), "several are allowed only if all are options")
    what, colon, value = (words[0] if words else "run").partition(":")
    if what == "run" and not colon:
        return Against("run", (Side("first run"), Side("second run")))
    if what == "threads" and (not colon or (value.isdecimal() and int(value) > 0)):
        count = int(value or max(2, len(os.sched_getaffinity(0))))
        return Against(f"threads:{count}", (_threads(1), _threads(count)))
    if what == "isa" and value in ("", *CAPABILITIES):
        return Against(
            f"isa:{value or 'generic'}",
            (_isa(value or "generic"), Side("best instruction set")),
            "isa concerns msctx's kernels (MSCTX_ISA) and torch's own (ATEN_CPU_CAPABILITY); oneDNN and MKL choose for themselves",
        )
    if what in ALONE and not colon:
        return Against(what, [ALONE[what]])
    if what == "ranks" and (not colon or (value.isdecimal() and int(value) > 1)):
        return Against(words[0], _ranks(int(value or 2)), are_ranks=True)
    raise _error(words[0], "is not something to compare against", nearest(what, NAMES))


def _error(what: str, text: str, near: str = "") -> OptionError:
    return OptionError([Diagnostic("--against", f"{what!r}: {text}", "command line", ALLOWED, near)])


def _threads(count: int) -> Side:
    return Side(f"{count} thread{'s' * (count > 1)}", [f"runtime_num_threads={count}"])


def _isa(name: str) -> Side:
    return Side(f"instruction set {name}", (), {"MSCTX_ISA": name, "ATEN_CPU_CAPABILITY": CAPABILITIES[name]})


def _ranks(count: int) -> list[Side]:
    """With the variables that torchrun sets."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    everyone = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}
    threads = {} if "OMP_NUM_THREADS" in os.environ else {"OMP_NUM_THREADS": "1"}
    return [Side(f"rank {n}", (), everyone | threads | {"RANK": str(n), "LOCAL_RANK": str(n)}) for n in range(count)]
