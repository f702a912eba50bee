"""hccl_timeout: how long a collective waits, and which rank is named when it has waited for too long."""

from __future__ import annotations

import re
import subprocess
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
from ranks import torchrun
from torch.distributed import HashStore

import msctx
from msctx.native import distributed
from msctx.observers import last_steps

TIMED_OUT = RuntimeError("[unbound_buffer.cc:78] Timed out waiting 2000ms for recv operation to complete")


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Any:
    store = HashStore()
    monkeypatch.setattr(distributed, "rank", lambda: 0)
    monkeypatch.setattr(distributed, "size", lambda: 4)
    monkeypatch.setattr(distributed, "store", lambda: store)
    monkeypatch.setattr(last_steps, "GRACE", 0.01)
    return store


def test_the_ranks_that_do_not_wait_are_named(store: Any) -> None:
    store.set("msctx/last_steps/1/waits", "1")
    store.set("msctx/last_steps/2", f"17 {time.time() - 40}")
    with pytest.raises(msctx.CollectiveError) as caught, msctx.context(hccl_timeout=2):
        raise TIMED_OUT
    assert re.fullmatch(
        r"hccl_timeout=2 s: a collective at test_last_steps.py:\d+ in step 0 of rank 0 ended without the others: rank 2 did not "
        r"come: 40 s ago it had ended step 17 \(steps are written once a second\); rank 3 did not come: it had ended no step",
        str(caught.value),
    )
    assert caught.value.__cause__ is TIMED_OUT
    assert last_steps.SLOT.read() is None


def test_the_rank_that_came_too_late(store: Any) -> None:
    for rank in (1, 2, 3):
        store.set(f"msctx/last_steps/{rank}/waits", "1")
    with (
        pytest.raises(msctx.CollectiveError, match="the others had stopped waiting when this rank came"),
        msctx.context(hccl_timeout=2),
    ):
        raise RuntimeError("Connection closed by peer [127.0.0.1]")


def test_a_store_that_is_lost(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost() -> Any:
        raise RuntimeError("no store")

    monkeypatch.setattr(distributed, "store", lost)
    with pytest.raises(msctx.CollectiveError, match="gave no answer"), msctx.context(hccl_timeout=2):
        raise TIMED_OUT


def test_other_exceptions_are_the_programs_own(store: Any) -> None:
    with pytest.raises(RuntimeError, match=r"^mine$"), msctx.context(hccl_timeout=2):
        raise RuntimeError("mine")
    with pytest.raises(RuntimeError, match="Timed out") as caught, msctx.context(seed=0):
        raise TIMED_OUT
    assert caught.value is TIMED_OUT


@pytest.mark.full
@pytest.mark.parametrize("how", ["time.sleep(6)", "os.kill(os.getpid(), signal.SIGSTOP)"])
def test_real_ranks(tmp_path: Path, how: str) -> None:
    (tmp_path / "train.py").write_text(
        textwrap.dedent(f"""
            import msctx, os, signal, time, torch, torch.distributed as dist
            dist.init_process_group("gloo")
            rank = dist.get_rank()
            weight = torch.nn.Parameter(torch.ones(3))
            optimizer = torch.optim.SGD([weight], lr=0.1)
            try:
                with msctx.context(hccl_timeout=2):
                    for step in range(9):
                        weight.grad = torch.ones(3)
                        if step == 5 and rank == 1:
                            {how}
                        began = time.monotonic()
                        dist.all_reduce(weight.grad)
                        optimizer.step()
                        time.sleep(0.3)
            except msctx.CollectiveError as error:
                assert time.monotonic() - began < 4, "the limit and two seconds"
                print(error, flush=True)
            os._exit(0)
        """)
    )
    command = torchrun(3, tmp_path / "train.py")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        found = []
        for line in process.stdout:
            if "rank 1 did not come: " in line and "it had ended step" in line:
                found.append(line)
            if len(found) == 2:
                break
        process.send_signal(15)
    assert {re.search(r"of rank (\d)", line)[1] for line in found} == {"0", "2"}  # type: ignore[index]
    assert all("all_reduce at train.py:" in line for line in found)
