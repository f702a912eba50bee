"""hccl_timeout with NCCL: a wait that raises nothing in the program. Here gloo's Flight Recorder stands for NCCL's."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from torch.distributed import HashStore, distributed_c10d

import msctx
from msctx.native import distributed
from msctx.observers import last_steps, stalls
from msctx.observers.stalls import Calls, Collective, Watch


@dataclass
class Driven:
    """A watch whose clock is driven, on the record of one process group; what it does, with the moment."""

    monkeypatch: pytest.MonkeyPatch
    limit: float
    began: int = 0
    ended: int = 0
    others_wait: bool = False
    entries: list[dict[str, Any]] = field(default_factory=list)
    now: float = 1000.0
    done: list[tuple[str, float]] = field(default_factory=list)
    asked: list[bool] = field(default_factory=list)

    def __post_init__(self) -> None:
        def calls(name: str) -> Any:
            return lambda *_: self.done.append((name, round(self.now - 1000, 1)))

        def has_word() -> bool:
            calls("asked")()
            return self.others_wait

        self.watch = Watch(self.limit, Calls(calls("word"), calls("back"), has_word, calls("report")))
        self.monkeypatch.setattr(distributed, "nccl_record", self._record)
        self.monkeypatch.setattr(stalls.time, "time", lambda: self.now)
        self.monkeypatch.setattr(stalls, "_ranks", lambda launch: [0, 1])

    def _record(self, entries: bool) -> dict[str, Any]:
        self.asked.append(entries)
        numbers = {"last_enqueued_collective": str(self.began), "last_completed_collective": str(self.ended)}
        return {"pg_status": {"0": numbers}, "entries": self.entries}

    def starts(self, name: str = "nccl:all_reduce", **changed: Any) -> None:
        self.began += 1
        self.entries.append(entry(self.began, name, created=self.now) | changed)

    def ends(self) -> None:
        self.ended = self.began
        self.entries = [one | {"retired": True} for one in self.entries]

    def unasked(self) -> list[tuple[str, float]]:
        return [one for one in self.done if one[0] != "asked"]

    def pass_time(self, seconds: float, step: float = 0.5) -> None:
        for _ in range(round(seconds / step)):
            self.now += step
            self.watch.look(self.now)


def entry(number: int, name: str, created: float) -> dict[str, Any]:
    return {
        "record_id": number,
        "pg_id": 0,
        "process_group": ["0", "default_pg"],
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "is_p2p": False,
        "profiling_name": name,
        "time_created_ns": created * 1e9,
        "timeout_ms": 101_000,
        "retired": False,
        "state": "scheduled",
        "thread_id": "0",
    }


@pytest.fixture
def driven(monkeypatch: pytest.MonkeyPatch) -> Driven:
    return Driven(monkeypatch, limit=100.0)


def test_a_rank_leaves_word_before_its_time_is_over_and_reports_then(driven: Driven) -> None:
    driven.starts()
    driven.pass_time(400)
    assert driven.unasked() == [("word", 75.0), ("report", 100.0)]


def test_one_that_began_later_leaves_word_with_the_others(driven: Driven) -> None:
    driven.pass_time(50)
    driven.starts()
    driven.others_wait = True
    driven.pass_time(30)
    assert driven.done[-2:] == [("asked", 55.5), ("word", 55.5)]


def test_the_store_is_asked_now_and_then(driven: Driven) -> None:
    driven.starts()
    driven.pass_time(74)
    moments = [moment for name, moment in driven.done if name == "asked"]
    assert moments == [5.5, 15.5, 25.5, 35.5, 45.5, 55.5, 65.5]


def test_what_ends_in_time_is_not_reported_and_costs_no_entries(driven: Driven) -> None:
    for _ in range(100):
        driven.starts()
        driven.pass_time(4)
        driven.ends()
        driven.pass_time(1)
    assert driven.done == []
    assert not any(driven.asked), "the device would be asked about each entry"


def test_one_that_waited_behind_another_counts_from_its_own_beginning(driven: Driven) -> None:
    driven.starts()
    driven.starts()
    driven.pass_time(60)
    driven.ended, driven.entries[0]["retired"] = 1, True
    driven.pass_time(60)
    assert ("report", 100.0) in driven.done


def test_numbers_that_differ_where_nothing_waits(driven: Driven) -> None:
    """A message counts by itself: the collective that ended last has another number."""
    driven.starts("nccl:send 0->1", is_p2p=True, p2p_seq_id=1, collective_seq_id=0, retired=True)
    driven.starts(retired=True)
    driven.pass_time(400)
    assert driven.done == []
    assert driven.asked.count(True) == 1


def test_after_that_the_next_collective_is_followed(driven: Driven) -> None:
    """One that ends after a later one leaves numbers that differ; the next begins when nobody has ended anything since."""
    driven.starts(retired=True)
    driven.pass_time(60)
    driven.starts()
    driven.pass_time(110)
    assert driven.unasked() == [("word", 135.0), ("report", 160.0)]


def test_word_is_taken_back_when_nothing_waits_any_more(driven: Driven) -> None:
    """Not only when the next step ends: an evaluation has none."""
    driven.starts()
    driven.pass_time(80)
    driven.ends()
    driven.pass_time(100)
    assert driven.unasked() == [("word", 75.0), ("back", 80.5)]


@pytest.mark.parametrize(("own", "report"), [(30.0, [30.0]), (100.0, [100.0]), (1800.0, [])])
def test_a_group_whose_timeout_the_program_has_given(own: float, report: list[float], driven: Driven) -> None:
    """A group of several back ends has the limit itself: torch takes NCCL's default for groups of NCCL alone."""
    driven.starts(timeout_ms=own * 1e3)
    driven.pass_time(400)
    assert [moment for name, moment in driven.done if name == "report"] == report


def test_what_a_graph_has_captured_gets_no_end(driven: Driven) -> None:
    driven.starts("nccl:send 0->1", is_p2p=True, p2p_seq_id=1, collective_seq_id=0)
    driven.ended = driven.began = 0
    driven.pass_time(300)
    driven.starts()
    driven.pass_time(60)
    assert driven.unasked() == []


def batch(record: int, sequence: int) -> list[dict[str, Any]]:
    """As batch_isend_irecv leaves it: the last entry has the numbers of the others, and alone gets an end, but is no message."""
    numbers = {"collective_seq_id": 3, "p2p_seq_id": sequence}
    names = ("nccl:send 0->1", True), ("nccl:recv 0<-2", True), ("nccl:coalesced", False)
    return [entry(record + number, name, 1000.0) | numbers | {"is_p2p": is_p2p} for number, (name, is_p2p) in enumerate(names)]


def test_of_messages_that_go_together_the_last_entry_counts(driven: Driven) -> None:
    driven.entries = [*batch(0, 1), *batch(3, 2)]
    driven.began, driven.ended = 2, 1
    for number in (2, 5):
        driven.entries[number]["retired"] = True
    driven.pass_time(400)
    assert driven.done == []


def test_messages_that_have_ended_hide_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's own list of what is active has the messages of a batch for ever: they get no end."""
    entries = [*batch(0, 1), entry(3, "nccl:all_reduce", 1090.0) | {"collective_seq_id": 4}]
    entries[2] |= {"retired": True, "state": "completed"}

    def dump(collectives: bool = True, only_active: bool = False) -> str:
        return json.dumps({"entries": [one for one in entries if not only_active or one["state"] != "completed"]})

    monkeypatch.setattr(distributed, "_dump", lambda kind: dump)
    monkeypatch.setattr(stalls.time, "time", lambda: 1095.0)
    found = stalls._waits(0, 100.0)
    assert found is not None
    assert (found[0].name, found[1]) == ("all_reduce", 95.0)


def test_messages_that_go_together_wait_for_all_their_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(distributed_c10d._world.pg_names, "group", "0")
    monkeypatch.setattr(dist, "get_process_group_ranks", lambda group: [4, 7, 9])
    before = entry(0, "nccl:all_reduce", 990.0) | {"collective_seq_id": 3, "retired": True}
    monkeypatch.setattr(distributed, "nccl_record", lambda entries: {"entries": [before, *batch(1, 1)]})
    monkeypatch.setattr(stalls.time, "time", lambda: 1010.0)
    found = stalls._waits(0, 100.0)
    assert found is not None
    assert (found[0].name, found[0].ranks, found[1]) == ("send", [7, 9], 90.0)


@pytest.mark.parametrize(
    ("name", "shown", "ranks"),
    [
        ("nccl:all_reduce", "all_reduce", [4, 7]),
        ("nccl:_all_gather_base", "all_gather_base", [4, 7]),
        ("nccl:send 0->1", "send", [7]),
        ("nccl:recv 1<-0", "recv", [4]),
    ],
)
def test_the_collective_and_the_ranks_that_have_to_come(
    name: str, shown: str, ranks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(distributed_c10d._world.pg_names, "group", "0")
    monkeypatch.setattr(dist, "get_process_group_ranks", lambda group: {"group": [4, 7]}[group])
    record = {"entries": [entry(1, name, created=1000.0)]}
    monkeypatch.setattr(distributed, "nccl_record", lambda entries: record)
    monkeypatch.setattr(stalls.time, "time", lambda: 1000.0)
    found = stalls._waits(0, 100.0)
    assert found is not None
    assert (found[0].name, found[0].ranks) == (shown, ranks)
    assert re.fullmatch(r"\w+\.py:\d+", found[0].place)


def test_a_group_that_was_destroyed_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    launch = [entry(1, "nccl:all_reduce", created=0.0)]
    assert stalls._ranks(launch) is None
    monkeypatch.setitem(distributed_c10d._world.pg_names, "group", "0")  # and has gone from the table of ranks
    assert stalls._ranks(launch) is None


# --- the report ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    store = HashStore()
    monkeypatch.setattr(distributed, "rank", lambda: 0)
    monkeypatch.setattr(distributed, "size", lambda: 3)
    monkeypatch.setattr(distributed, "store", lambda: store)
    monkeypatch.setattr(last_steps, "_waits", False)
    return store


def test_the_report_names_the_rank_that_did_not_come(store: Any, capsys: pytest.CaptureFixture[str]) -> None:
    store.append(last_steps.waiting(), "1 ")
    store.set(last_steps.step_of(2), "17 14:03:22")
    words: list[msctx.CollectiveError] = []
    last_steps.last_words.append(words.append)
    with msctx.context(hccl_timeout=60):
        last_steps._report(Collective("all_reduce", [0, 1, 2], "train.py:41"))
    last_steps.last_words.remove(words.append)
    text = (
        "hccl_timeout=60 s: all_reduce in step 0 of rank 0, whose program is at train.py:41, waits without the others: rank 2 did "
        "not come: it had ended step 17 at 14:03:22 UTC by its clock (steps are written once a second)"
    )
    assert [str(word) for word in words] == [text]
    assert capsys.readouterr().err == f"{text}\n"


def test_word_of_a_wait_is_taken_back_in_the_next_step(store: Any) -> None:
    assert not last_steps._has_word()
    with msctx.context(hccl_timeout=60):
        last_steps._leave_word()
        assert last_steps._has_word()
        assert last_steps._waiting_in(store) == {0}
        msctx.step()
    assert last_steps._waiting_in(store) == set()
    assert not last_steps._has_word(), "or each wait of five seconds would leave word from then on"


def test_word_of_a_wait_that_is_over_is_taken_back_once(store: Any) -> None:
    last_steps._leave_word()
    for _ in range(2):
        last_steps._take_word_back()
    assert store.get(last_steps.waiting()) == b"0 -0 "


def test_a_program_that_waits_in_the_store_itself_goes_on_to_write_its_steps(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client of the store answers one call after the other: that this one gets no answer says nothing about later ones."""
    waits, over = threading.Event(), threading.Event()
    monkeypatch.setattr(distributed, "store", lambda: waits.set() or (over.wait(30) and store))
    monkeypatch.setattr(last_steps, "SECONDS", 0.05)
    assert not last_steps._has_word()
    last_steps._leave_word()
    over.set()
    assert waits.is_set()
    assert not distributed.is_silent("hccl_timeout")


def test_nobody_watches_without_nccl_or_without_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = []
    monkeypatch.setattr(Watch, "begin", lambda watch: begun.append(watch.limit))
    with msctx.context(hccl_timeout=60):
        pass
    monkeypatch.setattr(distributed, "has_nccl", lambda: True)
    with msctx.context(hccl_timeout=60), msctx.context(hccl_timeout=0):
        pass
    assert begun == [60, 60], "once more when the inner block closes"


PROGRAM = """
    import datetime, os, signal, threading, time
    import torch, torch.distributed as dist, msctx
    from torch._C import _distributed_c10d as c10d

    c10d._dump_nccl_trace_json = c10d._dump_fr_trace_json  # gloo's record stands for NCCL's

    def all_reduce(tensor):
        "As NCCL's: it raises nothing, and a watchdog ends the process."
        options = dist.AllreduceOptions()
        options.timeout = datetime.timedelta(seconds=LIMIT + 1)
        work = dist.distributed_c10d._get_default_group().allreduce([tensor], options)
        watchdog = threading.Timer(LIMIT + 1.5, os.abort)
        watchdog.start()
        while not work.is_completed() or work.exception() is not None:
            time.sleep(0.02)
        watchdog.cancel()

    LIMIT = 4

    def main():
        dist.init_process_group("gloo")
        with msctx.context(hccl_timeout=LIMIT):
            train()

    def train():
        rank = dist.get_rank()
        weight = torch.nn.Parameter(torch.ones(3))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        for step in range(9):
            weight.grad = torch.ones(3)
            if step == 3:
                time.sleep(rank)  # they do not begin together
            if step == 3 and rank == 2:
                time.sleep(600)
            all_reduce(weight.grad)
            optimizer.step()
            time.sleep(0.4)
"""


@pytest.mark.full
def test_real_ranks(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(textwrap.dedent(PROGRAM))
    (tmp_path / "run.yaml").write_text("experiment: {name: one, entry: train.py:main}\nrecord: {dir: runs}\n")
    command = [sys.executable, "-m", "msctx", "run", "run.yaml", "--nproc", "3", "--out", "out"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=240)
    found = re.findall(
        r"^hccl_timeout=4 s: all_reduce in step 3 of rank ([01]), whose program is at train.py:\d+, waits .*", done.stderr, re.M
    )
    assert "0" in found, done.stderr[-4000:]
    assert re.search(r"waits without the others: rank 2 did not come: it had ended step [0-2] at ", done.stderr)
    assert "rank 1 did not come" not in done.stderr, "it began to wait a second later"
    ranks = json.loads((tmp_path / "out/ranks.json").read_text())
    assert "rank 2 did not come" in json.dumps(ranks), ranks
