"""hccl_timeout: how long a collective waits, and which rank is named when it has waited for too long."""

from __future__ import annotations

import re
import subprocess
import textwrap
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import torchrun
from torch.distributed import HashStore

import msctx
from msctx.native import distributed
from msctx.observers import last_steps

GLOO = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:537] "
TIMED_OUT = RuntimeError(f"{GLOO}Timed out waiting 2000ms for recv operation to complete")

GRACE = last_steps.GRACE


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Any:
    store = HashStore()
    monkeypatch.setattr(distributed, "rank", lambda: 0)
    monkeypatch.setattr(distributed, "size", lambda: 4)
    monkeypatch.setattr(distributed, "store", lambda: store)
    monkeypatch.setattr(last_steps, "GRACE", 0.01)
    monkeypatch.setattr(last_steps, "_waits", False)
    return store


def test_the_ranks_that_do_not_wait_are_named(store: Any) -> None:
    store.append(last_steps.waiting(), "1 ")
    store.set(last_steps.step_of(2), "17 14:03:22")
    with pytest.raises(msctx.CollectiveError) as caught, msctx.context(hccl_timeout=2):
        raise TIMED_OUT
    assert re.fullmatch(
        r"hccl_timeout=2 s: a collective at test_last_steps.py:\d+ in step 0 of rank 0 ended without the others: rank 2 did not "
        r"come: it had ended step 17 at 14:03:22 UTC by its clock; rank 3 did not come: it had ended no step "
        r"\(steps are written once a second\)",
        str(caught.value),
    )
    assert caught.value.__cause__ is TIMED_OUT
    assert last_steps.SLOT.read() is None


def test_a_group_that_the_program_destroys_on_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, "_distributed", lambda: dist if dist.is_initialized() else None)
    monkeypatch.setattr(distributed, "size", lambda: 2)
    update, error = dist.distributed_c10d._update_default_pg, RuntimeError(str(TIMED_OUT))

    def program() -> None:
        dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
        try:
            raise error
        finally:
            dist.destroy_process_group()

    with pytest.raises(msctx.CollectiveError, match="rank 1 did not come: it had ended no step"), msctx.context(hccl_timeout=2):
        program()
    assert dist.distributed_c10d._update_default_pg is update
    assert vars(error) == {}, "what would hold what it refers to, and its frames"


WORK = "(SeqNum=7, OpType=ALLREDUCE, NumelIn=4, NumelOut=4, Timeout(ms)=2000) ran for 2041 milliseconds before timing out."
"""As WorkNCCL's operator<< and checkTimeout of torch's ProcessGroupNCCL.cpp make it, and torch_npu's of WorkHCCL."""


@pytest.mark.parametrize(
    "message",
    [
        f"[Rank 0] Watchdog caught collective operation timeout: WorkNCCL{WORK}",
        f"[Rank 0] Watchdog caught collective operation timeout: WorkHCCL{WORK}",
        "[0] is setting up NCCL communicator and retrieving ncclUniqueId from [3] via c10d key-value store by key '0', but "
        "store->get('0') got error: wait timeout after 2000ms, keys: /default_pg/0//cuda//0",
        "wait timeout after 2000ms, keys: /default_pg/0//1//cpu//0/1",
        "EI0002: The wait execution of the Notify register times out. Reason: The Notify register has not received the Notify "
        "record from remote rank [unknown].",
    ],
    ids=["NCCL", "HCCL", "NCCL's first collective", "gloo's new group", "CANN"],
)
def test_what_other_back_ends_raise(store: Any, message: str) -> None:
    """Texts, not runs: they name the rank that waits; the store tells which one did not come."""
    store.append(last_steps.waiting(), "1 2 ")
    assert "rank 3 did not come: it had ended no step" in ended(message)
    store.append(last_steps.waiting(), "3 ")
    assert ended(message).endswith("all ranks wait, for each other or for one that has come too late")


def test_the_rank_that_came_too_late(store: Any) -> None:
    store.append(last_steps.waiting(), "1 2 3 ")
    with (
        pytest.raises(msctx.CollectiveError, match="the others had stopped waiting when this rank came"),
        msctx.context(hccl_timeout=2),
    ):
        raise RuntimeError(f"{GLOO}Connection closed by peer [127.0.0.1]")


def ended(message: str = str(TIMED_OUT)) -> str:
    """What a block says whose collective has waited too long."""

    def collective() -> None:
        raise RuntimeError(message)

    with pytest.raises(msctx.CollectiveError) as caught, msctx.context(hccl_timeout=2):
        collective()
    return str(caught.value)


def test_a_second_wait_that_was_too_long_is_not_taken_for_the_first(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 1 comes too late each time; in between both end a step."""
    waits = {0: False, 1: False}

    def as_rank(rank: int, step: int, message: str) -> str:
        monkeypatch.setattr(distributed, "rank", lambda: rank)
        monkeypatch.setattr(last_steps, "_waits", waits[rank])
        last_steps._leave(rank, step)
        text = ended(message)
        waits[rank] = last_steps._waits
        return text

    monkeypatch.setattr(distributed, "size", lambda: 2)
    for step in range(3):
        assert "rank 1 did not come" in as_rank(0, step, str(TIMED_OUT))
        assert "the others had stopped waiting when this rank came" in as_rank(1, step, f"{GLOO}Connection closed by peer")


def test_a_rank_whose_group_waits_names_those_outside(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 waits for rank 1, which waits for rank 2, which is stuck: nobody says that rank 0 had come too late."""
    monkeypatch.setattr(last_steps, "_call", lambda trace: ("all_reduce", "", [0, 1]))
    store.append(last_steps.waiting(), "1 3 ")
    assert "the ranks of its group wait, too; of the others, rank 2 does not wait: it had ended no step" in ended()
    assert "-0" not in store.get(last_steps.waiting()).decode()
    store.append(last_steps.waiting(), "2 ")
    assert ended().endswith("all ranks wait, for each other or for one that has come too late")


@pytest.mark.parametrize("late", [1, 200])
def test_what_a_rank_asks_does_not_grow_with_those_that_wait(store: Any, monkeypatch: pytest.MonkeyPatch, late: int) -> None:
    asked = []

    class Counted:
        def __getattr__(self, name: str) -> Any:
            asked.append(name)
            return getattr(store, name)

    monkeypatch.setattr(distributed, "size", lambda: 512)
    monkeypatch.setattr(distributed, "store", Counted)
    store.append(last_steps.waiting(), "".join(f"{rank} " for rank in range(1, 512 - late)))
    text = ended()
    assert len(asked) <= 2 + 2 * last_steps.NAMED
    assert f"rank {512 - late} did not come: it had ended no step" in text
    assert ("; ranks 320-511 did not come" in text) == (late == 200)


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("all_reduce(tensor, group=group)", {3}),
        ("recv(tensor, src=2)", {2}),
        ("send(tensor, dst=2)", {2}),
        ("recv(tensor, group_src=1, group=group)", {3}),
        ("barrier()", {1, 2, 3}),
    ],
)
def test_only_those_are_named_that_had_to_come(
    store: Any, monkeypatch: pytest.MonkeyPatch, call: str, expected: set[int]
) -> None:
    def raises(*args: object, **kwargs: object) -> None:
        raise RuntimeError(str(TIMED_OUT))

    monkeypatch.setattr(dist, "get_process_group_ranks", lambda group: [0, 3] if group == "group" else [0, 1, 2, 3])
    for name in ("_rank_not_in_group", "irecv", "_get_default_group"):
        monkeypatch.setattr(dist.distributed_c10d, name, raises)
    with pytest.raises(msctx.CollectiveError) as caught, msctx.context(hccl_timeout=2):
        eval(f"dist.{call}", {"dist": dist, "tensor": torch.ones(1), "group": "group"})
    assert {int(rank) for rank in re.findall(r"rank (\d) did not come", str(caught.value))} == expected
    assert "in which group" not in str(caught.value)


def test_a_group_that_is_not_known_is_told_where_there_are_several(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, "groups", lambda: 2)
    assert ended().endswith("in which group it was is unknown, and ranks outside of that did not have to come")


def test_a_store_that_is_lost(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost() -> Any:
        raise RuntimeError("no store")

    monkeypatch.setattr(distributed, "store", lost)
    with pytest.raises(msctx.CollectiveError, match="gave no answer"), msctx.context(hccl_timeout=2):
        raise TIMED_OUT


def test_a_store_without_an_answer_is_not_asked_in_each_step(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []
    monkeypatch.setattr(distributed, "within", lambda seconds, call: asked.append(seconds))
    monkeypatch.setattr(distributed, "_silent", set[tuple[int, str]]())
    monkeypatch.setattr(last_steps, "EVERY", 0.0)
    with msctx.context(hccl_timeout=2):
        for _ in range(3):
            msctx.step()
    assert len(asked) == 1


@pytest.mark.parametrize("answers", [True, False])
def test_an_error_is_two_seconds_later_than_the_limit_at_most(
    store: Any, monkeypatch: pytest.MonkeyPatch, answers: bool
) -> None:
    """By a clock that only passes where msctx waits: for the store, and in what it asks the store for the others."""
    waited, ended_by_test = [], threading.Event()

    class Silent:
        def __getattr__(self, name: str) -> Any:
            return lambda *_: ended_by_test.wait()

    def wait(asked: Any, seconds: float) -> None:
        if answers:
            asked._thread.join()
        else:
            waited.append(seconds)

    monkeypatch.setattr(distributed.Asked, "wait", wait)
    monkeypatch.setattr(distributed, "store", lambda: store if answers else Silent())
    monkeypatch.setattr(last_steps, "GRACE", GRACE)
    monkeypatch.setattr(last_steps, "time", SimpleNamespace(**{**vars(time), "sleep": waited.append}))
    text = ended()
    ended_by_test.set()
    assert ("rank 1 did not come" in text, "gave no answer" in text) == (answers, not answers)
    assert waited == ([GRACE] if answers else [2.0])
    assert sum(waited) <= 2.0


def test_steps_are_left_once_a_second(store: Any) -> None:
    with msctx.context(hccl_timeout=2):
        for _ in range(3):
            msctx.step()
    assert store.get(last_steps.step_of(0)).decode().startswith("0 ")


def test_steps_are_left_where_a_replica_check_had_no_answer(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, "_silent", set[tuple[int, str]]())
    distributed.in_step("replica_check", 1.0, lambda: int("no answer"))
    assert distributed.is_silent("replica_check")
    with msctx.context(hccl_timeout=2):
        msctx.step()
    assert store.check([last_steps.step_of(0)])


def test_other_exceptions_are_the_programs_own(store: Any) -> None:
    with pytest.raises(RuntimeError, match=r"^mine$"), msctx.context(hccl_timeout=2):
        raise RuntimeError("mine")
    with pytest.raises(ConnectionResetError), msctx.context(hccl_timeout=2):
        raise ConnectionResetError("[Errno 104] Connection reset by peer")  # of a download
    with pytest.raises(RuntimeError, match="Timed out") as caught, msctx.context(seed=0):
        raise TIMED_OUT
    assert caught.value is TIMED_OUT


@pytest.mark.parametrize(
    "text",
    [
        "Connection reset by peer",
        "Timed out waiting for a lock",
        "s3: Read error [10.0.0.1]:443: Connection closed by peer",
        "wait timeout after 2000ms, keys: /default_pg/0//of_the_program",
    ],
)
def test_messages_of_other_libraries_are_theirs(store: Any, text: str) -> None:
    with pytest.raises(RuntimeError) as caught, msctx.context(hccl_timeout=2):
        raise RuntimeError(text)
    assert not isinstance(caught.value, msctx.CollectiveError)


def test_what_the_ranks_of_a_start_left_is_not_taken_for_that_of_the_next(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """torchrun's agent keeps one store for all restarts: there rank 1 has waited, and rank 2 has ended step 17."""
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    monkeypatch.setattr(distributed, "size", lambda: 3)
    store.append(last_steps.waiting(), "1 ")
    store.set(last_steps.step_of(2), "17 14:03:22")
    assert "rank 2 did not come: it had ended step 17" in ended()
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert "rank 1 did not come: it had ended no step; rank 2 did not come: it had ended no step" in ended()
    monkeypatch.setenv("GROUP_WORLD_SIZE", "2")  # each agent counts the failures of its own ranks
    assert "rank 2 did not come: it had ended step 17" in ended()


@pytest.mark.full
@pytest.mark.parametrize("how", ["time.sleep(600)", "os.kill(os.getpid(), signal.SIGSTOP)"])
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
                        dist.all_reduce(weight.grad)
                        optimizer.step()
                        time.sleep(0.3)
            except msctx.CollectiveError as error:
                print(f"{{error}}\\n", end="", flush=True)  # one write: the ranks share the pipe
            os._exit(0)
        """)
    )
    command = torchrun(3, tmp_path / "train.py")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        found = []
        for line in process.stdout:
            if "hccl_timeout=" in line:
                found.append(line)
            if len(found) == 2:  # torchrun would wait for a rank that is stopped
                break
        process.send_signal(15)
    assert all("rank 1 did not come: " in line and "it had ended step" in line for line in found), found
    assert {re.search(r"of rank (\d)", line)[1] for line in found} == {"0", "2"}  # type: ignore[index]
    assert all("all_reduce at train.py:" in line for line in found)


@pytest.mark.full
def test_real_ranks_outside_of_the_group_and_in_a_backward_pass(tmp_path: Path) -> None:
    """Rank 1 comes too late twice; rank 2 is not in the first group."""
    (tmp_path / "train.py").write_text(
        textwrap.dedent("""
            import msctx, os, time, torch, torch.distributed as dist
            dist.init_process_group("gloo")
            rank = dist.get_rank()
            model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
            group = dist.new_group([0, 1])

            def reduces():
                if rank < 2:
                    time.sleep(5 * rank)
                    dist.all_reduce(torch.ones(1), group=group)

            def trains():
                time.sleep(5 * (rank == 1))
                model(torch.ones(2, 4)).sum().backward()

            for collective in reduces, trains:
                try:
                    with msctx.context(hccl_timeout=2):
                        collective()
                except msctx.CollectiveError as error:
                    print(f"{error}\\n", end="", flush=True)  # one write: the ranks share the pipe
                dist.distributed_c10d._get_default_store().add(collective.__name__, 1)
                while dist.distributed_c10d._get_default_store().add(collective.__name__, 0) < 3:
                    time.sleep(0.1)
            os._exit(0)
        """)
    )
    done = subprocess.run(torchrun(3, tmp_path / "train.py"), capture_output=True, text=True, timeout=300, check=False)
    errors = done.stdout.splitlines()
    found = {("of rank 0" in error, "backward pass" in error): error for error in errors if "of rank 1 " not in error}
    assert set(found) == {(True, False), (True, True), (False, True)}, [*errors, done.stderr]
    assert "all_reduce at train.py:" in found[True, False]
    assert "rank 1 did not come: it had ended no step" in found[True, False]
    assert all("rank 1 did not come" in error and "rank 2 did" not in error for error in found.values())
    assert sum("of rank 1 ended without the others: the others had stopped" in error for error in errors) == 2
