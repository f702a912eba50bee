"""``enable_dump_debug``: the operator that turned finite values into NaN or infinite ones, not those that pass them on."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from msctx import notices
from msctx.native import distributed
from msctx.observers import collector, files
from msctx.observers.collector import Reader, Row, dtype_of, kind_of
from msctx.options.policies import Overflow

MODES = {"aicore_overflow": 1, "atomic_overflow": 2, "all": 3}
PASSED_ON = 4
"""Also the first operator that passes on what was not finite before: a parameter, an input, what ran unseen."""
MOST = 100
"""Operators whose data are written into one folder, at most."""
_written: Counter[Path] = Counter()
"""How many have been, in this process: a context may be entered in each step."""


class OverflowReader(Reader):
    """Of each operator in each module, the first overflow of a scope is reported and its data written."""

    wants_lines = True

    def __init__(self, settings: Overflow) -> None:
        self.settings = settings
        self._folder = Path(settings.path).absolute()
        self._begun = time.strftime("%Y%m%d%H%M%S")
        self._scratch = files.Scratch(self._folder)
        self.found: list[Row] = []

    @property
    def requested(self) -> Mapping[str, int]:
        return {"overflow": MODES[self.settings.mode] | (0 if self.found else PASSED_ON)}

    @property
    def folder(self) -> Path | None:
        most = min(self.settings.most or MOST, MOST)
        return self._scratch.path if _written[self._folder] < most else None

    def begin(self) -> None:
        """The folder comes with the first overflow."""

    def pause(self) -> None:
        self._scratch.remove()

    def take(self, rows: list[Row]) -> None:
        for row in rows:
            same = (row["operator"], row["module"], row["direction"])
            if any(same == (one["operator"], one["module"], one["direction"]) for one in self.found):
                self._scratch.drop(row)
                continue
            row["source"] = row["line"] or collector.line_here()
            self.found.append(row)
            if self.folder is not None:
                _written[self._folder] += 1
                files.guarded(self.settings.option, self._folder, partial(self._write, row))
            collector.refresh()
            notices.warn(sentence(row))
        self._scratch.remove_empty()

    def _write(self, row: Row) -> None:
        """As CANN names them: the operator's tensors, and what overflowed."""
        place = self._folder / self._begun / str(distributed.rank_or_0()) / "Net" / "0" / str(row["step"])
        place.mkdir(parents=True, exist_ok=True)
        kind, name = kind_of(row), files.name_of(f"{row['module']}/{kind_of(row)}".lstrip("/"))
        for side in ("input", "output"):
            for slot, tensor in enumerate(row[f"{side}s"]):
                if tensor["file"]:
                    new = f"{kind}.{name}.{row['id']}.0.{row['began']}.{side}.{slot}.npy"
                    files.move(self._scratch.path / tensor["file"], place / new)
        ids = {"model_id": 0, "stream_id": 0, "task_id": row["id"], "task_type": 0}
        status = {**ids, "pc_start": "0x0", "para_base": "0x0", "status": 0}
        bits = sum(
            bit
            for bit, key in ((1, "nan"), (2, "positive_inf"), (4, "negative_inf"))
            if any(t.get(key) for t in row["outputs"])
        )
        atomic = row.get("accumulates", False)
        found = {
            "DHA Atomic Add": status | {"status": bits if atomic else 0},
            "L2 Atomic Add": status,
            "AI Core": status | {"kernel_code": "0x0", "block_idx": 0, "status": 0 if atomic else bits},
            "msctx": row,
        }
        files.write_json(place / f"Opdebug.Node_OpDebug.{row['id']}.0.{row['began']}.output.0.json", found)
        if row["problem"]:
            raise OSError(row["problem"])


def sentence(row: Row) -> str:
    """The report on an overflow in one line."""
    where = f"module {row['module']}" if row["module"] else "no watched module"
    node = f" ({row['node']})" if row["node"] else ""  # a compiled backward pass has none
    direction = {"forward": "forward pass", "backward": f"backward pass{node}", "optimizer": "optimizer"}[row["direction"]]
    inputs = ", ".join(f"{_named(t)} {t['min']:.3g} to {t['max']:.3g}" for t in row["inputs"] if t.get("min") is not None)
    rank = f" of rank {distributed.rank_or_0()}" if distributed.rank() is not None else ""
    came = [f"{_named(t)} ({count})" for t in row["inputs"] if (count := _counted([t]))]
    unread = [f"{_named(t)} ({t['unread']})" for t in row["inputs"] if "count" not in t and "float" in dtype_of(t)]
    origin = (
        f"not finite before: {', '.join(came)}" if came else f"from {'' if unread else 'finite '}inputs ({inputs or 'none'})"
    )
    origin += f", not read: {', '.join(unread)}" if unread else ""
    return (
        f"overflow in step {row['step']}{rank}: {row['operator']} in {where}, {direction}, {row['source']}: "
        f"{_counted(row['outputs'])}, {origin}"
    )


def _named(t: Row) -> str:
    return f"{t['argument'] or 'input'} {dtype_of(t)}[{t['shape']}]"


def _counted(tensors: list[Row]) -> str:
    """``2 NaN and 1 Inf``"""
    names = {"nan": "NaN", "positive_inf": "Inf", "negative_inf": "-Inf"}
    counts = {name: sum(t.get(key, 0) for t in tensors) for key, name in names.items()}
    return " and ".join(f"{count} {name}" for name, count in counts.items() if count)
