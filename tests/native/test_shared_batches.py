"""One process loads the data for the others: they get equal batches, and nobody hangs where one stops."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.distributed import HashStore
from torch.utils.data import DataLoader, Dataset

import msctx
from msctx.errors import OptionError
from msctx.native import distributed, shared_batches

START = """
import json, os, sys
import torch, msctx
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset
from msctx.native import shared_batches

rank, folder = int(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
torch.manual_seed(rank)
dist.init_process_group("gloo", init_method=f"file://{folder}/before", rank=rank, world_size=3)
if rank == 0:  # of an earlier group one rank alone has asked for something
    with msctx.context(seed=0):
        pass
dist.barrier()
dist.destroy_process_group()
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=3)

class Data(Dataset):
    asked = 0
    def __len__(self):
        return 40
    def __getitem__(self, index):
        Data.asked += 1
        return torch.rand(3), index

class Failing(Data):
    def __getitem__(self, index):
        if index == 2:
            raise ValueError("no third")
        return index

def begin(name):
    with open(f"{folder}/{name}.{rank}", "w") as file:
        file.write("begun")

found = {}
"""

TOGETHER = (
    START
    + """
with msctx.context(local_rank_id=rank, local_device_list="0,1"):  # the third loads its own
    for epoch in ("one", "two"):
        batches = [x.tolist() + i.tolist() for x, i in DataLoader(Data(), batch_size=4, shuffle=True, num_workers=0)]
        found[epoch] = batches
    found["asked"] = Data.asked
    found["workers"] = [x.tolist() for x, i in DataLoader(Data(), batch_size=8, num_workers=1)]
    for index, _ in enumerate(DataLoader(Data(), batch_size=1)):
        if rank == 1 and index == 2:
            break
    found["one stops"] = index
    for index, _ in enumerate(DataLoader(Data(), batch_size=1)):
        if rank == 0 and index == 2:
            break
    found["the one that loads stops"] = index
    try:
        list(DataLoader(Failing(), batch_size=1))
    except (ValueError, RuntimeError) as error:
        found["fails"] = f"{type(error).__name__}: {error}"
    if rank < 2:
        try:
            list(DataLoader(Data(), batch_size=rank + 1))
        except msctx.ScopeError as error:
            found["differ"] = str(error)
shared = [*shared_batches._shares.values()]
found["folder"] = str(shared[0].folder) if shared else ""
dist.barrier()
print(json.dumps(found))
dist.destroy_process_group()
"""
)


def ranks(program: str, folder: Path) -> list[subprocess.Popen[str]]:
    return [
        subprocess.Popen(
            [sys.executable, "-c", program, str(rank), str(folder)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for rank in range(3)
    ]


def results(processes: list[subprocess.Popen[str]]) -> list[dict[str, Any]]:
    told = [process.communicate(timeout=200) for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], "".join(error for _, error in told)
    return [json.loads(out.splitlines()[-1]) for out, _ in told]


@pytest.mark.full
def test_the_others_get_what_one_loads_and_do_not_ask_their_datasets(tmp_path: Path) -> None:
    first, second, third = results(ranks(TOGETHER, tmp_path))
    for what in ("one", "two", "workers"):
        assert first[what] == second[what] != third[what]
    assert first["one"] != first["two"]
    assert [found["asked"] for found in (first, second, third)] == [80, 0, 80]
    assert [found["one stops"] for found in (first, second)] == [39, 2]
    assert [found["the one that loads stops"] for found in (first, second)] == [2, 2]
    assert first["fails"] == "ValueError: no third"
    assert second["fails"] == "RuntimeError: local_rank_id=0, which loads the data, could not: ValueError: no third"
    assert "in batches of 1, local_rank_id=1 iterates over Data of size 40 in batches of 2" in second["differ"]
    assert first["folder"] == second["folder"] != third["folder"] == ""
    assert not Path(first["folder"]).exists(), "the last one out removes it"


KILLED = (
    START
    + """
with msctx.context(local_rank_id=rank, local_device_list="0,1,2"):
    try:
        for index, _ in enumerate(DataLoader(Data(), batch_size=1)):
            if rank == 1 and index == 2:
                os.kill(os.getpid(), 9)
        found["second is gone"] = index
        for index, _ in enumerate(DataLoader(Data(), batch_size=1)):
            if rank == 0 and index == 2:
                os.kill(os.getpid(), 9)
    except msctx.ScopeError as error:
        found["first is gone"] = str(error)
print(json.dumps(found), flush=True)
os._exit(0)  # the process group has lost two
"""
)


@pytest.mark.full
def test_nobody_waits_for_a_process_that_was_killed(tmp_path: Path) -> None:
    processes = ranks(KILLED, tmp_path)
    told = [process.communicate(timeout=200) for process in processes]
    assert [process.returncode for process in processes] == [-signal.SIGKILL, -signal.SIGKILL, 0], told
    third = json.loads(told[2][0])
    assert third["second is gone"] == 39
    assert "local_rank_id=2 waits for local_rank_id=0 to load a batch: its process has ended" in third["first is gone"]


class Numbers(Dataset[int]):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> int:
        return index


def test_a_process_alone_is_told_what_is_missing_and_loaders_are_put_back() -> None:
    plain: Callable[..., Any] = DataLoader.__iter__
    with msctx.context(local_rank_id=0, local_device_list="0,1"), msctx.context(runtime_num_threads=1):
        assert DataLoader.__iter__ is not plain
        with pytest.raises(OptionError, match="local_rank_id: there is no process group"):
            iter(DataLoader(Numbers()))
    assert DataLoader.__iter__ is plain
    for alone in ({"local_rank_id": 0, "local_device_list": "0"}, {"local_rank_id": 2, "local_device_list": "0,1"}):
        with msctx.context(**alone):
            assert [int(x) for x in DataLoader(Numbers())] == [*range(12)]


class Silent:
    """A store that gives no answer."""

    def check(self, keys: list[str]) -> bool:
        time.sleep(5)
        return True


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Makes this process one of two that share, of which the other one does not come."""
    monkeypatch.setattr(shared_batches, "TO_COME", 0.3)
    monkeypatch.setattr(distributed, "run", lambda: 10**6)

    def is_rank(rank: int, store: Any) -> None:
        monkeypatch.setattr(distributed, "rank", lambda: rank)
        monkeypatch.setattr(distributed, "store", lambda: store)

    yield is_rank
    for key in [key for key in shared_batches._shares if key[0] == 10**6]:
        share = shared_batches._shares.pop(key)
        share.alive.close()
        shutil.rmtree(share.folder)


class Lost:
    """The store of a process that has ended."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("Broken pipe")


def storing() -> int:
    return sum(thread.name == "msctx-store" for thread in threading.enumerate())


def folders() -> set[Path]:
    return {*Path(tempfile.gettempdir()).glob("msctx-batches-*")}


@pytest.mark.parametrize("rank", [0, 1])
def test_a_store_that_is_lost_is_named(alone: Callable[..., None], rank: int) -> None:
    alone(rank, Lost())
    before = folders()
    said = f"local_rank_id={rank} cannot find those with which it shares batches: the store of the process group is lost"
    with msctx.context(local_rank_id=rank, local_device_list="0,1"), pytest.raises(msctx.ScopeError, match=said):
        iter(DataLoader(Numbers()))
    assert folders() == before


def test_a_store_without_an_answer_has_one_thread(alone: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    answer = threading.Event()
    monkeypatch.setattr(Silent, "check", lambda *_: answer.wait(60))
    alone(1, Silent())
    before, most = storing(), []
    nap = time.sleep
    monkeypatch.setattr(time, "sleep", lambda seconds: (most.append(storing()), nap(seconds)))
    with msctx.context(local_rank_id=1, local_device_list="0,1"), pytest.raises(msctx.ScopeError, match="has not begun"):
        iter(DataLoader(Numbers()))
    answer.set()
    assert {*most} == {before + 1}


NEVER = (
    START
    + """
shared_batches.LINGER = 0.5
with msctx.context(local_rank_id=rank, local_device_list="0,1"):
    if rank == 0:
        iter(DataLoader(Data(), batch_size=8))
        found["folder"] = str(next(iter(shared_batches._shares.values())).folder)
dist.barrier()
print(json.dumps(found))
dist.destroy_process_group()
"""
)


@pytest.mark.full
def test_a_folder_goes_though_a_receiver_has_never_come(tmp_path: Path) -> None:
    folder = Path(results(ranks(NEVER, tmp_path))[0]["folder"])
    assert folder.name.startswith("msctx-batches-")
    assert not folder.exists()


@pytest.mark.parametrize("store", [HashStore, Silent])
def test_one_that_loads_and_does_not_come_is_named(alone: Callable[..., None], store: Any) -> None:
    alone(1, store())
    said = "local_rank_id=1 waits for local_rank_id=0 to begin: it has not begun to share batches for 0.3 s"
    with msctx.context(local_rank_id=1, local_device_list="0,1"), pytest.raises(msctx.ScopeError, match=said):
        iter(DataLoader(Numbers()))


def test_a_receiver_that_does_not_come_is_named(alone: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    alone(0, HashStore())
    monkeypatch.setattr(shared_batches, "SILENT", 0.1)
    said = "local_rank_id=0 waits for local_rank_id=1 to take a batch"
    begun = []
    with msctx.context(local_rank_id=0, local_device_list="0,1"):
        with pytest.raises(msctx.ScopeError, match=f"{said}: it has not begun"), pytest.warns(msctx.MsctxWarning, match=said):
            begun += DataLoader(Numbers())
        (end,) = (found.folder / "1" / "end" for key, found in shared_batches._shares.items() if key[0] == 10**6)
        assert said in end.read_text(), "the others know of it"


def test_hccl_timeout_sets_the_limit(alone: Callable[..., None]) -> None:
    alone(1, HashStore())
    options = {"local_rank_id": 1, "local_device_list": "0,1"}
    with msctx.context(hccl_timeout=1, **options), pytest.raises(msctx.ScopeError, match="for 1 s"):
        iter(DataLoader(Numbers()))
