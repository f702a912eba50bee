"""The timeout of collectives: of the groups that are there, and of those that are made inside a block."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import HashStore, distributed_c10d

import msctx


@pytest.fixture
def group() -> Iterator[Any]:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1, timeout=timedelta(seconds=900))
    yield distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
    dist.destroy_process_group()


def test_the_group_and_those_that_are_made_inside_have_it(group: Any) -> None:
    own = distributed_c10d.default_pg_timeout
    other = dist.new_group(backend="gloo", timeout=timedelta(seconds=800))._get_backend(torch.device("cpu"))
    with msctx.context(hccl_timeout=60):
        assert group.options._timeout == other.options._timeout == timedelta(seconds=60)
        assert distributed_c10d.default_pg_timeout == timedelta(seconds=60)
        inside = dist.new_group(backend="gloo")
        assert inside._get_backend(torch.device("cpu")).options._timeout == timedelta(seconds=60)
        with msctx.context(hccl_timeout=0):
            assert group.options._timeout > timedelta(days=20), "for ever"
        assert group.options._timeout == timedelta(seconds=60)
    assert (group.options._timeout, other.options._timeout) == (timedelta(seconds=900), timedelta(seconds=800))
    assert distributed_c10d.default_pg_timeout == own


@pytest.mark.filterwarnings("error")
def test_a_group_that_is_made_inside_the_block() -> None:
    with msctx.context(hccl_timeout=60):
        dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
        backend = distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
        assert backend.options._timeout == timedelta(seconds=60)
    dist.destroy_process_group()


@pytest.mark.full
def test_a_group_whose_collectives_torch_checks(run_forked: Any) -> None:
    program = """
        import torch, torch.distributed as dist, msctx
        dist.set_debug_level(dist.DebugLevel.DETAIL)  # torch has read TORCH_DISTRIBUTED_DEBUG already
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        backend = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
        assert not hasattr(backend, "_set_default_timeout")
        found = backend.wrapped_pg.options._timeout
        with msctx.context(hccl_timeout=60):
            assert backend.wrapped_pg.options._timeout.total_seconds() == 60
        assert backend.wrapped_pg.options._timeout == found
    """
    found = run_forked(program)
    assert found.returncode == 0, found.stderr[-3000:]
