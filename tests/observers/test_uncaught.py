"""An exception of a collective that passes no block, since the option holds for the whole process: who shows it names the ranks."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from ranks import torchrun
from torch.distributed import HashStore

import msctx
from msctx.native import distributed
from msctx.observers import last_steps
from msctx.observers.uncaught import Hook

TIMED_OUT = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:537] Timed out waiting 2000ms for recv operation to complete"


def test_an_exception_that_nobody_catches_names_the_ranks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before, store = sys.excepthook, HashStore()
    for name, value in {"rank": 0, "size": 4, "store": store}.items():
        monkeypatch.setattr(distributed, name, lambda value=value: value)
    monkeypatch.setattr(last_steps, "GRACE", 0.01)
    store.append(last_steps.waiting(), "1 2 ")

    def uncaught(text: str) -> str:
        try:
            raise RuntimeError(text)
        except RuntimeError as error:
            sys.excepthook(type(error), error, error.__traceback__)
        return capsys.readouterr().err

    with msctx.context(hccl_timeout=2):
        text = uncaught(TIMED_OUT)
        assert "Timed out waiting 2000ms" in text, "it stays, as the cause"
        assert "CollectiveError: hccl_timeout=2 s: a collective at test_uncaught.py:" in text
        assert "rank 3 did not come: it had ended no step" in text
        assert "hccl_timeout" not in uncaught("mine")
    assert sys.excepthook is before
    assert "hccl_timeout" not in uncaught(TIMED_OUT)


def test_what_stands_in_front_meanwhile_stays() -> None:
    class Owner:
        excepthook = staticmethod(lambda *args: shown.append(args))

    owner, shown = Owner(), list[tuple[Any, ...]]()
    hook = Hook(owner, "excepthook", lambda args: (*args, "why"))
    ours = owner.excepthook
    owner.excepthook = staticmethod(lambda *args: ours("theirs", *args))  # as torch does when it makes a process group
    theirs = owner.excepthook
    owner.excepthook("error")
    hook.remove()
    owner.excepthook("error")
    assert owner.excepthook is theirs
    assert shown == [("theirs", "error", "why"), ("theirs", "error")]


@pytest.mark.full
@pytest.mark.parametrize(
    ("how", "finally_"),
    [("", "dist.destroy_process_group()"), ("import msctx; msctx.set_context(hccl_timeout=2)", "pass")],
    ids=["exec", "set_context"],
)
def test_real_ranks_without_a_block(tmp_path: Path, how: str, finally_: str) -> None:
    (tmp_path / "train.py").write_text(
        textwrap.dedent(f"""
            import time, torch, torch.distributed as dist
            {how}
            dist.init_process_group("gloo")
            if dist.get_rank() == 1:
                time.sleep(600)  # the agent ends it
            try:
                dist.all_reduce(torch.ones(3))
            finally:
                {finally_}
        """)
    )
    command = torchrun(2, tmp_path / "train.py")
    if not how:
        command = [sys.executable, "-m", "msctx", "exec", "hccl_timeout=2", "--", *command]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 1
    assert "[rank0]: msctx.errors.CollectiveError: hccl_timeout=2 s: all_reduce at train.py:" in done.stderr, done.stderr
    assert "rank 1 did not come: it had ended no step" in done.stderr
