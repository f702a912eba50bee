"""The tables of bench/ leave no contender out."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parents[1] / "bench"
FAULTS, SYSTEM = {"torch": 10.0, "msctx": 0.0}, {"torch": 0.125, "msctx": 0.0}


def row(subject: str, **ratios: float) -> dict[str, Any]:
    return {"subject": subject, "threads": 1, "ms": 100.0, "ratios": ratios, "faults": FAULTS, "system": SYSTEM}


def test_an_opponent_that_has_not_run_everywhere_stays_in_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    for name in ("memory", "contest", "networks"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import memory

    of = {"cpu": "a CPU", "amx_fp16": False, "cores": 2, "torch": "2"}
    rows = [row("one", msctx=1.5, jemalloc=2.0), row("other", msctx=1.25, tcmalloc=3.0)]
    head, _, *lines, _, _ = memory.table([{"machine": of, "processes": 1, "subjects": [one]} for one in rows])
    assert head.split(" | ")[5:] == ["msctx", "jemalloc", "tcmalloc |"]
    assert lines[0].startswith("| one | 1 | 100 | 12.5% → 0.0% | 10 → 0 |")
    assert [line.split("|")[6:9] for line in lines] == [[" **1.50** ", " 2.00 ", "  "], [" **1.25** ", "  ", " 3.00 "]]
