"""A certificate: under what a run ran, and the digests of each of its steps, to be replayed elsewhere."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msctx.errors import Diagnostic, FileError
from msctx.verify.wire import Message

FORMAT = "msctx.verify/1"
SETTINGS = ("settings", "versions", "machine")
WIDTH = 16
"""Digits of a digest."""


class Writer:
    """Takes what a run reports. The modules that ran one after the other are written once, for they repeat from step to step."""

    def __init__(self) -> None:
        self._surroundings: Message = {}
        self._layouts: dict[str, int] = {}
        self._steps: list[dict[str, Any]] = []

    def keep(self, message: Message) -> None:
        if "segments" not in message:
            self._surroundings = message
            return
        layout = json.dumps([segment[:3] for segment in message["segments"]])
        self._steps.append(
            {
                "digest": _hex(message["digest"]),
                "operators": message["count"],
                "layout": self._layouts.setdefault(layout, len(self._layouts)),
                "digests": "".join(_hex(segment[3]) for segment in message["segments"]),
                "ended": "ended" in message,
            }
        )

    def text(self) -> str:
        layouts = [json.loads(layout) for layout in self._layouts]
        lines = {**{name: self._surroundings[name] for name in SETTINGS}, "layouts": layouts, "steps": self._steps}
        return json.dumps({"format": FORMAT, **lines}, indent=1) + "\n"


class Certificate:
    def __init__(self, data: Mapping[str, Any]) -> None:
        self._data = data
        self.steps = len(data["steps"])

    def step(self, number: int) -> Message:
        """What the run reported of a step, as :class:`Writer` took it."""
        step = self._data["steps"][number]
        layout, digests = self._data["layouts"][step["layout"]], step["digests"]
        found = [int(digests[i : i + WIDTH], 16) for i in range(0, len(digests), WIDTH)]
        return {
            "digest": int(step["digest"], 16),
            "count": step["operators"],
            "segments": [[*place, one] for place, one in zip(layout, found, strict=True)],
            "unread": 0,
            **({"ended": {"status": "completed"}} if step["ended"] else {}),
        }

    def differing(self, surroundings: Message) -> dict[str, tuple[Any, Any]]:
        """What is not as it was: setting → there, here."""
        found = {}
        for part in SETTINGS:
            there, here = self._data[part], surroundings[part]
            for name in sorted({*there, *here}):
                if there.get(name) != here.get(name):
                    found[name] = there.get(name), here.get(name)
        return found


def read(path: str) -> Certificate:
    """Read a file.

    Raises:
        FileError: it is not there, or no certificate.
    """
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
        if (found_format := data.get("format")) != FORMAT:
            raise ValueError(f"its format is {found_format!r}, not {FORMAT!r}")
        found = Certificate(data)
        for number in range(found.steps):
            found.step(number)
        found.differing({name: {} for name in SETTINGS})
    except OSError as error:
        raise FileError([Diagnostic("", f"cannot be read: {error.strerror}", path)]) from None
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise FileError([Diagnostic("", f"is no certificate of msctx verify: {error}", path)]) from None
    return found


def _hex(digest: int) -> str:
    return f"{digest:0{WIDTH}x}"
