"""Host memory that is counted: caps that hold, large blocks that are used again, tensors that cross the borders of a scope."""

from __future__ import annotations

import copy
import gc
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import msctx
from msctx.native import memory
from msctx.tables import in_words

pytestmark = [pytest.mark.usefixtures("exact_state")]
MB = 2**20


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    if memory.statistics()["current_bytes"]:
        gc.collect()
    assert (memory.read_pool(), memory.read_caps()) == (None, ())
    assert memory.statistics()["idle_bytes"] == memory.statistics()["current_bytes"] == 0


def megabytes(count: float) -> torch.Tensor:
    return torch.empty(int(count * MB), dtype=torch.uint8)


def cap() -> dict[str, int]:
    """The innermost cap that is open."""
    return memory.statistics()["caps"][-1]


def test_a_cap_holds_and_all_goes_on_after_it() -> None:
    with msctx.context(max_device_memory="64MB"):
        held = megabytes(40)
        with pytest.raises(torch.OutOfMemoryError) as caught:
            megabytes(25)
        for part in (
            f"tried to allocate {in_words(25 * MB)}. 40 MiB of 64 MiB are in use, the peak was 40 MiB",
            __file__[-14:],
        ):
            assert part in str(caught.value)
        assert megabytes(24).numel() == 24 * MB
        held[:] = 1
        del held
        assert megabytes(64).numel() == 64 * MB
        assert (cap()["current_bytes"], cap()["out_of_memory"]) == (0, 1)
    assert megabytes(65).numel() == 65 * MB
    with msctx.context(max_device_memory="1000000GB"), pytest.raises(torch.OutOfMemoryError, match="lowered to what was free"):
        torch.empty(2**46, dtype=torch.uint8)


@pytest.mark.parametrize(("outer", "inner", "fits"), [(64, 32, 32), (32, 64, 32), (64, 64, 64)])
def test_the_tightest_of_nested_caps_holds(outer: int, inner: int, fits: int) -> None:
    with msctx.context(max_device_memory=f"{outer}MB"):
        with msctx.context(max_device_memory=f"{inner}MB"):
            megabytes(fits)
            with pytest.raises(torch.OutOfMemoryError):
                megabytes(fits + 1)
            held = megabytes(20)
        assert cap()["current_bytes"] == 20 * MB, "an inner scope is counted outside too"
        with msctx.context(max_device_memory="48MB"), pytest.raises(torch.OutOfMemoryError, match=rf"of {outer} MiB"):
            megabytes(outer - 19)
        del held
        megabytes(outer)


@pytest.mark.parametrize(("free", "limit"), [(50, 120), (20, 110)])
def test_a_cap_of_the_base_can_be_changed_and_goes_on_counting(free: int, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        msctx.set_context(max_device_memory="100MB")
        held = megabytes(90)
        monkeypatch.setattr(memory, "free_bytes", lambda: free * MB)
        msctx.set_context(max_device_memory="120MB")
        assert cap()["limit_bytes"] == limit * MB
        megabytes(limit - 90)
        with pytest.raises(torch.OutOfMemoryError, match="lowered to what was free" if limit < 120 else "set_context"):
            megabytes(limit - 89)
        del held
    finally:
        msctx.reset_context()


def test_workspaces_count(one_thread: None) -> None:
    x, weight = torch.randn(1, 64, 64, 64), torch.randn(64, 64, 3, 3)
    with msctx.context(max_device_memory="200MB", conv_fprop_algo="gemm", fallback="error"):
        y = torch.conv2d(x, weight)
        assert cap()["peak_bytes"] > y.numel() * 4 + 8 * MB  # the unfolded image
        del y


@pytest.mark.parametrize(
    "options", [{"memory_optimize_level": "O0"}, {"memory_optimize_level": "O1"}, {"max_device_memory": "1GB"}]
)
def test_a_chain_has_no_page_faults_after_its_first_round(options: dict[str, str]) -> None:
    x = torch.randn(12 * MB)

    def faults() -> int:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        ((((x + 1) * 0.5).relu() - 0.25).abs() * x + x).clamp(-1, 1)
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    with msctx.context(**options):
        first, *others = [faults() for _ in range(5)]
        assert max(others) < 100, (first, others)  # a tensor has 12,288 pages
        assert memory.empty_cache() >= 96 * MB


@pytest.mark.full
@pytest.mark.parametrize("size", [1, 5000, 300_000, 5 * MB])
def test_without_reuse_nothing_is_kept_and_no_address_comes_again(size: int, tmp_path: Path) -> None:
    file = tmp_path / "env.json"
    file.write_text('{"sys": {"mem_reuse": false}}')
    with msctx.context(env_config_path=str(file)):
        taken = {torch.ones(size, dtype=torch.uint8).data_ptr() for _ in range(500)}
        assert memory.statistics()["idle_bytes"] == 0
    assert len(taken) == 500


def test_tensors_cross_both_borders_of_a_scope() -> None:
    with msctx.context(max_device_memory="64MB"):
        made = torch.arange(4 * MB)
    assert memory.statistics()["current_bytes"] == 32 * MB
    made.resize_(16 * MB)  # by the allocator that it began with, without a cap
    assert bool((made[: 4 * MB] == torch.arange(4 * MB)).all())
    with msctx.context(max_device_memory="400MB"):
        assert cap()["current_bytes"] == 0
        made.resize_(32 * MB)  # that memory is allocated inside
        assert cap()["current_bytes"] == 256 * MB
        del made
        assert cap()["current_bytes"] == 0


def test_what_takes_its_memory_past_all_allocators_is_not_counted() -> None:
    """docs/how-to/memory.md lists it."""
    with msctx.context(max_device_memory="64MB"):
        made = torch.arange(MB)
        others = [copy.deepcopy(made), torch.UntypedStorage(8 * MB)]
        assert cap()["current_bytes"] == 8 * MB
        others.append(made.share_memory_())
        assert cap()["current_bytes"] == 0
        del others


def test_looking_at_memory_takes_none_of_it(passes: Callable[[str], str]) -> None:
    passes("""
        import torch, msctx
        with msctx.context(max_device_memory="64MB"):
            full = torch.empty(2**24)
            (cap,) = msctx.memory_stats()["caps"]
            assert (cap["peak_bytes"], cap["allocations"]) == (2**26, 1), cap
    """)
