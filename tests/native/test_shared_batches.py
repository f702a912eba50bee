"""One process loads the data for the others: they get equal batches."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ranks import two_ranks
from torch.utils.data import DataLoader, Dataset

import msctx
from msctx.errors import OptionError

BODY = """
from itertools import islice
from torch.utils.data import DataLoader, Dataset

class Data(Dataset):
    requested = 0
    def __len__(self):
        return 40
    def __getitem__(self, index):
        Data.requested += 1
        return torch.rand(3), index

class Failing(Data):
    def __getitem__(self, index):
        if index == 2:
            raise ValueError("no third")
        return index

def test(rank):
    torch.manual_seed(rank)

    def same(mine):
        found = [None, None]
        dist.all_gather_object(found, mine)
        return found[0] == found[1]

    def batches(first=100, **how):
        loader = DataLoader(Data(), batch_size=4, **how)
        return [x.tolist() + i.tolist() for x, i in islice(loader, first)]

    def raised(loader):
        try:
            list(loader)
        except Exception as error:
            return f"{type(error).__name__}: {error}"

    options = {"local_rank_id": rank, "local_device_list": "0,1"}
    with msctx.context(**options):
        one, two, three = batches(shuffle=True), batches(shuffle=True, num_workers=1), batches(3)
        assert [len(found) for found in (one, two, three)] == [10, 10, 3]
        assert one != two and all(map(same, (one, two, three)))
        assert Data.requested == (0 if rank else 52), Data.requested
        came = "RuntimeError: local_rank_id=0, which loads the data, could not: " if rank else ""
        assert raised(DataLoader(Failing())) == came + "ValueError: no third"
    with msctx.context(**{**options, "local_device_list": "0"}):
        assert not same(batches()), "each loads its own"
    with msctx.context(**options):
        if rank == 0:
            batches(2)
        error = raised(DataLoader(Data(), batch_size=4))
        if rank:
            assert error.startswith("ScopeError: local_rank_id=0 is in iteration 6, local_rank_id=1 in iteration 5"), error
        os._exit(0)  # the other waits for its receiver
"""


def test_the_others_get_what_one_loads_and_do_not_ask_their_datasets(tmp_path: Path) -> None:
    two_ranks(tmp_path, BODY)


class Numbers(Dataset[int]):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> int:
        return index


def test_a_process_alone_is_told_what_is_missing_and_loaders_are_restored() -> None:
    plain: Callable[..., Any] = DataLoader.__iter__
    with msctx.context(local_rank_id=0, local_device_list="0,1"), msctx.context(runtime_num_threads=1):
        assert DataLoader.__iter__ is not plain
        with pytest.raises(OptionError, match="local_rank_id: no process group"):
            iter(DataLoader(Numbers()))
    assert DataLoader.__iter__ is plain
    for alone in ({"local_rank_id": 0, "local_device_list": "0"}, {"local_rank_id": 2, "local_device_list": "0,1"}):
        with msctx.context(**alone):
            assert [int(x) for x in DataLoader(Numbers())] == [*range(12)]
