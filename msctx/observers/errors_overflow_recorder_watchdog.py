"""What fails: operators that raise, make NaN or infinite values, or run too long; and what ran last before a program failed."""

from __future__ import annotations

import contextlib
import faulthandler
import itertools
import os
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from msctx import notices
from msctx.errors import named, user_frame
from msctx.native import core, memory, ranks_and_process_group
from msctx.observers import operator_events
from msctx.observers import slots_and_files as files
from msctx.observers.operator_events import Reader, Row, dtype_of, kind_of
from msctx.observers.slots_and_files import Slot
from msctx.options.switch_values import ErrorDump, Overflow, Recorder

# --- enable_exception_dump: what went into an operator that raised, in a file that ``torch.load`` reads ----------------------

MOST_RAISED = 20
"""Operators of one scope; code that catches errors may raise them without end."""
KEPT = ("operator", "overload", "module", "direction", "step", "algorithm")
"""Of a row, what the file has as it is."""
OURS = f"{Path(__file__).parent.parent}{os.sep}"


class ErrorReader(Reader):
    """In CANN's order of folders: NPU_COLLECT_PATH (which makes every level 1), ASCEND_WORK_PATH, the working directory."""

    def __init__(self, settings: ErrorDump) -> None:
        self.settings, self.option = settings, settings.option
        collected = os.environ.get("NPU_COLLECT_PATH")
        self._level = 1 if collected else settings.level
        parts = ["extra-info"] if self._level == 1 else ["extra-info", "data-dump", str(ranks_and_process_group.rank_or_0())]
        self.output = Path(settings.path or Path(collected or files.work_path() or "").joinpath(*parts)).absolute()
        self._count = 0

    @property
    def requested(self) -> Mapping[str, int]:
        return {"errors": int(self._count < MOST_RAISED), "tensors": 1}

    @property
    def folder(self) -> Path | None:
        return self.scratch

    def take(self, rows: list[Row]) -> None:
        for row in rows:
            self._count += 1
            self.guarded(partial(self._write, row))
        operator_events.refresh()

    def _write(self, row: Row) -> None:
        path = self.output / f"{kind_of(row['operator'])}.{files.name_of(row['module']) or 'Net'}.{row['id']}.{row['began']}.pt"
        try:
            if row["problem"]:
                raise OSError(row["problem"])
            files.write(path, partial(torch.save, self._contents(row)))
        finally:
            self.drop(row)
        notices.warn(f"{row['operator']} raised; its inputs and arguments are in {path}: torch.load reads them")

    def _contents(self, row: Row) -> dict[str, Any]:
        tensors = [self._tensor(one) for one in row["inputs"]]
        found = {name: row[name] for name in KEPT}
        found["arguments"] = {name: _value(value, tensors) for name, value in row["attributes"].items()}
        found["inputs"] = [_described(one) for one in row["inputs"]]
        if self._level == 1:
            found["outputs"] = [one["argument"] for one in row["inputs"] if one.get("is_written")]
        stack = [frame for frame in traceback.extract_stack() if not frame.filename.startswith(OURS)]
        return found | {"traceback": "".join(traceback.format_list(stack))}

    def _tensor(self, one: dict[str, Any]) -> torch.Tensor | None:
        if not one["file"]:
            return None
        return torch.from_numpy(np.load(self.scratch / one["file"])).to(getattr(torch, dtype_of(one)))


def _described(one: dict[str, Any]) -> dict[str, Any]:
    names = ("argument", "shape", "strides", "requires_grad", "device")
    return {name: one[name] for name in names} | {"dtype": dtype_of(one), "unread": one.get("unread", "")}


def _value(value: Any, tensors: list[torch.Tensor | None]) -> Any:
    """An argument as it was; a tensor that cannot be read is ``None``, and what torch alone has is its name."""
    if isinstance(value, list):
        return [_value(one, tensors) for one in value]
    if not isinstance(value, dict):
        return value
    if "tensor" in value:
        return tensors[value["tensor"]]
    return float(value["float"]) if "float" in value else complex(value["complex"]) if "complex" in value else value["torch"]


ERRORS = Slot(ErrorReader)


# --- enable_dump_debug: the operator that turned finite values into NaN or infinite ones, not those that pass them on --------

MODES = {"aicore_overflow": 1, "atomic_overflow": 2, "all": 3}
PASSED_ON = 4
"""Also the first operator that passes on what was not finite before: a parameter, an input, what ran unseen."""
MOST_OVERFLOWS = 100
"""Operators whose data are written into one folder, at most."""
_written: Counter[Path] = Counter()
"""How many have been, in this process: a context may be entered in each step."""


class OverflowReader(Reader):
    """Of each operator in each module and line, the first overflow of a scope is reported and its data written."""

    wants_lines = True

    def __init__(self, settings: Overflow) -> None:
        self.settings = settings
        self.option, self.output = settings.option, Path(settings.path).absolute()
        self._begun = time.strftime("%Y%m%d%H%M%S")
        self.found: list[Row] = []

    @property
    def requested(self) -> Mapping[str, int]:
        wanted = MODES[self.settings.mode] | (0 if self.found else PASSED_ON)
        return {"overflow": wanted, "statistics": 1, "tensors": int(self.folder is not None)}

    @property
    def folder(self) -> Path | None:
        most = min(self.settings.most or MOST_OVERFLOWS, MOST_OVERFLOWS)
        return self.scratch if _written[self.output] < most else None

    def take(self, rows: list[Row]) -> None:
        for row in rows:
            row["line"] = row["line"] or user_frame()[0]
            if any(all(row[part] == one[part] for part in ("operator", "module", "direction", "line")) for one in self.found):
                self.drop(row)
                continue
            self.found.append(row)
            is_full = self.folder is None
            if not is_full:
                _written[self.output] += 1
                self.guarded(partial(self._write, row))
            operator_events.refresh()
            notices.warn(sentence(row) + "; its data are not written: the folder has those of the most reports" * is_full)

    def _write(self, row: Row) -> None:
        """The operator's tensors and its row, in files that are named as CANN's."""
        place = self.output / self._begun / str(ranks_and_process_group.rank_or_0()) / "Net" / "0" / str(row["step"])
        place.mkdir(parents=True, exist_ok=True)
        kind = kind_of(row["operator"])
        name = files.name_of(f"{row['module']}/{kind}".lstrip("/"))
        for side in ("input", "output"):
            for slot, tensor in enumerate(row[f"{side}s"]):
                if tensor["file"]:
                    old, tensor["file"] = tensor["file"], f"{kind}.{name}.{row['id']}.0.{row['began']}.{side}.{slot}.npy"
                    (self.scratch / old).replace(place / tensor["file"])
        files.write_json(place / f"Opdebug.Node_OpDebug.{row['id']}.0.{row['began']}.output.0.json", row)
        if row["problem"]:
            raise OSError(row["problem"])


OVERFLOWS = Slot(OverflowReader)


def sentence(row: Row) -> str:
    """The report on an overflow in one line."""
    where = f"module {row['module']}" if row["module"] else "no watched module"
    node = f" ({row['node']})" if row["node"] else ""  # a compiled backward pass has none
    direction = {"forward": "forward pass", "backward": f"backward pass{node}", "optimizer": "optimizer"}[row["direction"]]
    inputs = ", ".join(f"{_named(t)} {t['min']:.3g} to {t['max']:.3g}" for t in row["inputs"] if t.get("min") is not None)
    rank = f" of rank {ranks_and_process_group.rank_or_0()}" if ranks_and_process_group.rank() is not None else ""
    came = [f"{_named(t)} ({count})" for t in row["inputs"] if (count := _counted([t]))]
    unread = [f"{_named(t)} ({t['unread']})" for t in row["inputs"] if "count" not in t and "float" in dtype_of(t)]
    origin = (
        f"not finite before: {', '.join(came)}" if came else f"from {'' if unread else 'finite '}inputs ({inputs or 'none'})"
    )
    origin += f", not read: {', '.join(unread)}" if unread else ""
    others = {dtype_of(t) for t in row["outputs"] if _counted([t])} - {dtype_of(t) for t in row["inputs"]}  # autocast's
    found = _counted(row["outputs"]) + f" in {' and '.join(sorted(others))}" * bool(others)
    return f"overflow in step {row['step']}{rank}: {row['operator']} in {where}, {direction}, {row['line']}: {found}, {origin}"


def _named(t: Row) -> str:
    return f"{t['argument'] or 'input'} {dtype_of(t)}[{t['shape']}]"


def _counted(tensors: list[Row]) -> str:
    """``2 NaN and 1 Inf``"""
    names = {"nan": "NaN", "positive_inf": "Inf", "negative_inf": "-Inf"}
    counts = {name: sum(t.get(key, 0) for t in tensors) for key, name in names.items()}
    return " and ".join(f"{count} {name}" for name, count in counts.items() if count)


# --- env_config_path.rdr: what ran last, written when a program fails ------------------------------------------------------

_files = itertools.count(1)  # of the files of this process


class RecorderReader(Reader):
    """Files are named as those of MindSpore's Running Data Recorder. On a fatal signal ``faulthandler`` prints all stacks."""

    def __init__(self, graphs: Callable[[], list[dict[str, Any]]], settings: Recorder) -> None:
        self.settings = settings
        self._graphs = graphs
        self.option = "env_config_path.rdr.enable"
        self.output = Path(settings.path).absolute() / f"rank_{ranks_and_process_group.rank_or_0()}" / "rdr"

    @property
    def requested(self) -> Mapping[str, int]:
        return {"recent": 1}

    def start(self) -> None:
        self._around = files.last_error()  # it is none of its own
        self._has_enabled = not faulthandler.is_enabled()
        if self._has_enabled:
            faulthandler.enable(sys.__stderr__ or 2)

    def pause(self) -> None:
        if self._has_enabled:
            faulthandler.disable()
        error = files.last_error()
        if error not in (None, self._around) and not (isinstance(error, SystemExit) and not error.code):
            self.write(named(error))
        elif self.settings.mode == 2 and operator_events.recent():
            self.write("ended")

    def write(self, reason: str) -> None:
        """Under ``{module}.{name}.{suffix}.{timestamp}``, as RDR's; a forked process has its parent's operators only."""
        if self.process != os.getpid():
            return
        name = f"KERNEL.graph_exec_order.{os.getpid()}_{next(_files)}.{time.strftime('%Y%m%d%H%M%S')}.json"
        found: dict[str, Any] = {"reason": reason, "operators": operator_events.recent(), "memory": _memory()}
        found |= {"graphs": self._graphs(), "collectives": ranks_and_process_group.flight_record()}
        self.guarded(lambda: files.write_json(self.output / name, found))


RECORDER = Slot(RecorderReader)


def _memory() -> dict[str, Any]:
    """Bytes of the process, of counted host memory, and of the accelerator that the program uses."""
    import resource  # of Unix

    found = memory.statistics() | {"peak_resident_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}
    if memory.accelerator():
        of_torch = torch.accelerator
        found["device"] = {"allocated": of_torch.memory_allocated(), "peak": of_torch.max_memory_allocated()}
    return found


# --- op_timeout: what runs too long ------------------------------------------------------------------------------------------

EXIT_CODE = 124
"""As of timeout(1)."""


class WatchdogReader(Reader):
    """Ends the process where one operator runs too long, with the stacks of all threads.

    The time of an operator is counted in the watchdog's own ticks, each of which counts as at most two: while the whole process
    stands still (a machine that was suspended, SIGSTOP), the watchdog does so, too. Ticks do not count while Python runs inside an
    operator: a hook that packs what autograd keeps, or a mode.
    """

    def __init__(self, settings: int) -> None:
        self.settings = settings

    @property
    def requested(self) -> Mapping[str, int]:
        return {"running": 1}

    def start(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, args=(self._stop, core.load()), name="msctx watchdog", daemon=True)
        self._thread.start()

    def pause(self) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self, stop: threading.Event, library: core.Core) -> None:
        tick = min(1.0, self.settings / 10)
        running: dict[tuple[int, int], float] = {}
        before = time.monotonic()
        while not stop.wait(tick):
            now = time.monotonic()
            passed, before = min(now - before, 2 * tick), now
            found = {(row["thread"], row["began"]): row for row in library.c.msctx_running()}
            frames = sys._current_frames()
            is_own = {key: row["caller"] in (0, id(frames.get(row["ident"]))) for key, row in found.items()}
            del frames
            running = {key: running.get(key, -passed) + passed if is_own[key] else running.get(key, 0.0) for key in found}
            for key, seconds in running.items():
                if seconds > self.settings and not stop.is_set():
                    self._end(found[key])

    def _end(self, row: dict[str, Any]) -> None:
        where = f" in module {row['module']}" if row["module"] else ""
        text = f"op_timeout: {row['operator']}{where} has run for more than {self.settings} s in thread {row['thread']}"
        with contextlib.suppress(OSError, ValueError):
            print(f"{text}; the process ends with exit code {EXIT_CODE}. All threads:", file=sys.stderr, flush=True)
            faulthandler.dump_traceback(sys.__stderr__ or 2, all_threads=True)
            sys.stdout.flush()
        if RECORDER.on is not None:
            RECORDER.on.write(f"TimeoutError: {text}")
        os._exit(EXIT_CODE)


WATCHDOG = Slot(WatchdogReader)
