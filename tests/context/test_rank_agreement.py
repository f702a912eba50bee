"""Ranks whose options differ find out at their first block in a process group."""

from __future__ import annotations

from pathlib import Path

import pytest
from ranks import two_ranks

import msctx
from msctx.context import rank_agreement
from msctx.native import ranks_and_process_group

BODY = """
from msctx.context import rank_agreement

def told(rank, *options):
    "What the first block of this rank reports, under the options of the rank"
    rank_agreement._compared.clear()
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        try:
            with msctx.context(**options[rank]):
                with msctx.context(runtime_num_threads=rank + 1):  # no longer the first
                    pass
        except msctx.StrictError as error:
            return f"StrictError: {error}"
    return "\\n".join(str(one.message) for one in found)

def test(rank):
    on, off = {"deterministic": "ON"}, {"deterministic": "OFF"}
    text = told(rank, on, off)
    assert text.startswith("ranks differ in options that decide results:"), text
    assert "deterministic: rank 0: ON, honoured (with-block at ranks.py:" in text, text
    assert "; rank 1: OFF, honoured (with-block at ranks.py:" in text, text
    assert "version" not in text and "num_threads" not in text, text
    for nothing in ({}, {"seed": 3}):
        text = told(rank, nothing, on)
        assert "deterministic: rank 0: not in force" in text and "; rank 1: ON, honoured" in text, text
    text = told(rank, {**on, "replica_check": 5}, {**on, "replica_check": 6})
    assert "replica_check: rank 0: 5, honoured" in text and "deterministic" not in text, text
    for strict in ({"strict": True}, {"fallback": "error"}):
        before = msctx.state()
        text = told(rank, {**on, **strict}, {**off, **strict})
        assert text.startswith("StrictError: ranks differ") and "Nothing was changed" in text, text
        assert msctx.state() == before
    assert not told(rank, on, on)
    own = {"seed": 1, "seed_by_rank": True, "max_device_memory": "8GB"}
    assert not told(rank, on, {**on, **own}), "what a rank draws and keeps is its own"

    with msctx.context():  # in the group, while one from before it is open
        rank_agreement._compared.clear()
        torch.utils.data.get_worker_info = lambda: "a worker that rank 1 has forked"
        if rank:
            with msctx.context(**off):
                pass
        assert not rank_agreement._compared
"""


def test_two_ranks(tmp_path: Path) -> None:
    two_ranks(tmp_path, BODY)


@pytest.mark.filterwarnings("error")
def test_many_ranks_are_named_by_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks_and_process_group, "run", lambda: -1)
    monkeypatch.setattr(rank_agreement, "_compared", set())

    def gathered(mine: rank_agreement.Values) -> list[rank_agreement.Values]:
        return [mine, {}, mine, {**mine, "version of torch": ("2.0", "installed")}]

    monkeypatch.setattr(ranks_and_process_group, "gathered", gathered)
    with pytest.raises(msctx.MsctxWarning) as caught:
        rank_agreement.check(msctx.context(deterministic="ON").plan)
    text = str(caught.value)
    assert "deterministic: ranks 0, 2-3: ON, honoured (with-block at test_rank_agreement.py:" in text
    assert "; rank 1: not in force" in text
    assert "version of torch: ranks 0, 2: " in text
    assert "; rank 3: 2.0 (installed)" in text
