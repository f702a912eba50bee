"""The pool of host memory: caps that hold, memory that is used again, tensors that come and go across the borders of a scope."""

from __future__ import annotations

import copy
import gc
import os
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

import msctx
from msctx.effects.memory import in_words
from msctx.native import memory

pytestmark = [pytest.mark.usefixtures("exact_state")]
MB = 2**20


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    if memory.statistics()["current_bytes"]:
        gc.collect()
    assert (memory.read_pool(), memory.read_caps()) == (None, [])
    assert memory.statistics()["reserved_bytes"] == memory.statistics()["current_bytes"] == 0


def megabytes(count: float) -> torch.Tensor:
    return torch.empty(int(count * MB), dtype=torch.uint8)


def cap() -> dict[str, int]:
    """The innermost cap that is open."""
    return memory.statistics()["caps"][-1]


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# --- caps -------------------------------------------------------------------------------------------------------------


def test_a_cap_holds_and_all_goes_on_after_it() -> None:
    with msctx.context(max_device_memory="64MB"):
        held = megabytes(40)
        with pytest.raises(torch.OutOfMemoryError) as caught:
            megabytes(25)
        for part in (
            "tried to allocate 25 MiB",
            "40 MiB of 64 MiB are in use",
            "the peak was 40 MiB",
            __file__[-14:],
        ):
            assert part in str(caught.value)
        assert megabytes(24).numel() == 24 * MB
        held[:] = 1
        del held
        assert megabytes(64).numel() == 64 * MB
        assert cap()["current_bytes"] == 0
        assert cap()["out_of_memory"] == 1
    assert megabytes(65).numel() == 65 * MB


SIZES = (2, 999, 1023, 1024, 1025, 10239, 2**20 - 1, 2**20 + 1, 123456789, 3 * 2**29, 2**40 + 2**37, 5 * 2**50 // 3, 2**62)


def test_sizes_read_as_in_the_plan() -> None:
    for size in SIZES:
        with msctx.context(max_device_memory="1B"), pytest.raises(torch.OutOfMemoryError) as caught:
            torch.empty(size, dtype=torch.uint8)
        assert f"tried to allocate {in_words(size)}. " in str(caught.value)


def test_the_tightest_of_nested_caps_holds() -> None:
    for outer, inner, fits in ((64, 32, 32), (32, 64, 32), (64, 64, 64)):
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


def test_a_state_has_the_caps_in_words() -> None:
    with msctx.context(max_device_memory="64MB"):
        found = msctx.state()
        with msctx.context(max_device_memory="1.5GB"):
            outer, both = msctx.diff(found, msctx.state())["native.memory_caps"]
    assert re.fullmatch(r"64 MiB of with-block at [^,]+", outer)
    assert re.fullmatch(re.escape(outer) + r", 1\.5 GiB of with-block at [^,]+", both)


def test_a_cap_of_the_base_can_be_changed_and_goes_on_counting() -> None:
    try:
        msctx.set_context(max_device_memory="32MB")
        held = megabytes(20)
        msctx.set_context(max_device_memory="48MB")
        megabytes(28)
        with pytest.raises(torch.OutOfMemoryError, match="set_context"):
            megabytes(29)
        msctx.set_context(max_device_memory="16MB")  # less than is in use
        with pytest.raises(torch.OutOfMemoryError, match=r"20 MiB of 16 MiB"):
            megabytes(1)
        del held
        megabytes(16)
    finally:
        msctx.reset_context()
    megabytes(50)


@pytest.mark.parametrize(("free", "limit"), [(50, 120), (20, 110)])
def test_what_a_cap_counts_already_is_not_taken_off_it_again(free: int, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        msctx.set_context(max_device_memory="100MB")
        held = megabytes(90)
        monkeypatch.setattr(memory.limits, "free_bytes", lambda: free * MB)
        msctx.set_context(max_device_memory="120MB")
        assert cap()["limit_bytes"] == limit * MB
        megabytes(limit - 90)
        with pytest.raises(torch.OutOfMemoryError, match="lowered to what was free" if limit < 120 else "set_context"):
            megabytes(limit - 89)
        del held
    finally:
        msctx.reset_context()


def test_a_cap_above_what_is_free_is_lowered_to_that() -> None:
    with msctx.context(max_device_memory="1000000GB"):
        assert cap()["limit_bytes"] < 10**15
        with pytest.raises(torch.OutOfMemoryError, match="lowered to what was free"):
            torch.empty(10**13, dtype=torch.uint8)
    with (
        msctx.context(memory_optimize_level="O0"),
        pytest.raises(torch.OutOfMemoryError, match="The system has no memory left"),
    ):
        torch.empty(2**45, dtype=torch.uint8)


def test_what_is_refused_leaves_nothing_behind() -> None:
    with msctx.context(max_device_memory="8MB"):
        for _ in range(100):
            with pytest.raises(torch.OutOfMemoryError):
                megabytes(9)
        found = resident()
        for _ in range(10_000):
            with pytest.raises(torch.OutOfMemoryError):
                megabytes(9)
        assert resident() - found < 4 * MB
        assert cap()["current_bytes"] == 0
        assert cap()["out_of_memory"] == 10_100
        megabytes(8)


def test_workspaces_count(one_thread: None) -> None:
    x, weight = torch.randn(1, 64, 64, 64), torch.randn(64, 64, 3, 3)
    with msctx.context(max_device_memory="200MB", conv_fprop_algo="gemm", fallback="error"):
        y = torch.conv2d(x, weight)
        assert cap()["peak_bytes"] > y.numel() * 4 + 8 * MB  # the unfolded image
        del y
    torch.conv2d(torch.randn(1, 1, 3, 3), torch.randn(1, 1, 3, 3))


# --- memory that is used again ----------------------------------------------------------------------------------------


def test_blocks_are_used_again() -> None:
    with msctx.context(memory_optimize_level="O0"):
        places = {megabytes(33).data_ptr() for _ in range(20)}
        fresh = memory.statistics()["fresh_blocks"]
        assert {megabytes(33).data_ptr() for _ in range(20)} == places
        assert len(places) == 1
        assert memory.statistics()["fresh_blocks"] == fresh
        reserved = memory.statistics()["reserved_bytes"]
        assert 33 * MB <= reserved < 40 * MB
        assert memory.empty_cache() == reserved
        assert memory.statistics()["reserved_bytes"] == 0


@pytest.mark.parametrize(("level", "share"), [("O0", 1.5), ("O1", 1.0)])
def test_how_much_is_kept(level: str, share: float) -> None:
    """Of tensors that grow, one at a time, the idle ones of those before stay up to a share of the most that was in use."""
    with msctx.context(memory_optimize_level=level):
        msctx.reset_peak_memory_stats()
        for size in range(8, 64, 4):
            megabytes(size)
        assert share * 40 * MB <= memory.statistics()["peak_reserved_bytes"] <= share * 72 * MB


@pytest.mark.parametrize(
    "options", [{}, {"memory_optimize_level": "O1", "max_device_memory": "4GB"}], ids=["O0", "O1 under a cap"]
)
def test_what_comes_and_goes_stays_in_the_end(options: dict[str, str]) -> None:
    """Sizes that take turns, and are more together than the pool keeps at first: it stops asking the system for the same memory."""

    def fresh_blocks() -> int:
        return int(memory.statistics()["fresh_blocks"])

    with msctx.context(**{"memory_optimize_level": "O0", **options}):
        for _ in range(6):
            before = fresh_blocks()
            for size in (40, 24, 12):
                megabytes(size)
        assert fresh_blocks() == before
        assert memory.statistics()["reserved_bytes"] < 2.6 * 40 * MB
        for size in range(41, 400, 7):  # sizes that never come again
            megabytes(size)
        assert memory.statistics()["reserved_bytes"] < 2.6 * 400 * MB


def test_what_goes_back_is_no_longer_resident() -> None:
    with msctx.context(memory_optimize_level="O0"):
        megabytes(1)
        found = resident()
        for size in (17_000, 30_000, 100_000, 1_000_000, 50_000_000):
            held = [torch.ones(size, dtype=torch.uint8) for _ in range(100_000_000 // size)]
            assert resident() - found > 80 * MB
            del held
            memory.empty_cache()
            assert resident() - found < 16 * MB, size
    assert resident() - found < 16 * MB


def test_address_space_goes_back_too() -> None:
    def addresses() -> int:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")

    with msctx.context(memory_optimize_level="O0"):
        found = addresses()
        for size in range(100, 900, 40):
            megabytes(size)
        assert addresses() - found < 2500 * MB
        small = [torch.empty(20_000, dtype=torch.uint8) for _ in range(20_000)]
        del small
    assert addresses() - found < 100 * MB


def test_a_cap_bounds_what_is_kept_beside_small_tensors() -> None:
    with msctx.context(max_device_memory="128MB"):
        megabytes(120)
        small = [torch.empty(16_000, dtype=torch.uint8) for _ in range(7000)]
        assert 7000 * 16_000 <= memory.statistics()["reserved_bytes"] < 130 * MB
        del small


@pytest.fixture
def without_reuse(tmp_path: Any) -> str:
    file = tmp_path / "env.json"
    file.write_text('{"sys": {"mem_reuse": false}}')
    return str(file)


def test_without_reuse_all_goes_back(without_reuse: str) -> None:
    with msctx.context(env_config_path=without_reuse):
        megabytes(8)
        assert memory.statistics()["reserved_bytes"] == 0


@pytest.mark.full
@pytest.mark.parametrize("size", [1, 1000, 5000, 20_000, 300_000, 5 * MB])
def test_without_reuse_no_address_comes_again(size: int, without_reuse: str) -> None:
    with msctx.context(memory_optimize_level="O0"):
        old = [torch.empty(size, dtype=torch.uint8) for _ in range(20)]
        with msctx.context(env_config_path=without_reuse):
            taken = {t.data_ptr() for t in old}
            del old
            for _ in range(500):
                data = torch.ones(size, dtype=torch.uint8).data_ptr()
                assert data not in taken
                taken.add(data)
    assert memory.statistics()["reserved_bytes"] == 0


@pytest.mark.full
def test_without_reuse_compiled_code_reuses_no_buffer(without_reuse: str) -> None:
    from torch._inductor.utils import run_and_get_code

    def chain(x: torch.Tensor) -> torch.Tensor:
        for _ in range(4):
            x = torch.softmax(x @ x, 0)
        return x

    def reused() -> int:
        torch._dynamo.reset()
        _, codes = run_and_get_code(torch.compile(chain), torch.randn(32, 32))
        return sum(code.count("# reuse") for code in codes)

    plain = reused()
    with msctx.context(env_config_path=without_reuse):
        assert reused() == 0
    assert reused() == plain > 0


def test_a_block_above_what_is_free_is_smaller() -> None:
    with msctx.context(mempool_block_size="1000000GB"):
        held = [torch.ones(40_000, dtype=torch.uint8) for _ in range(3)]
        assert all(bool((t == 1).all()) for t in held)
        del held


@pytest.mark.full
@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 16383, 16384, 16385, 100_000, 2 * MB, 2 * MB + 1, 70 * MB])
def test_every_size_is_aligned_and_whole(size: int) -> None:
    with msctx.context(memory_optimize_level="O0"):
        several = [torch.full((size,), value, dtype=torch.uint8) for value in range(3)]
        assert all(t.data_ptr() % 64 == 0 for t in several)
        assert all(bool((t == value).all()) for value, t in enumerate(several))


def test_large_tensors_do_not_begin_at_the_same_place_of_a_page() -> None:
    with msctx.context(memory_optimize_level="O0"):
        held = [megabytes(4) for _ in range(6)]
        assert len({t.data_ptr() % 4096 for t in held}) == 6


# --- mappings of the system ---------------------------------------------------------------------------------------------


def mappings() -> int:
    with open("/proc/self/maps") as file:
        return sum(1 for _ in file)


@pytest.mark.full
@pytest.mark.parametrize("size", [1000, 20_000, 140_000, 3_900_000])
def test_holes_take_no_mappings(size: int) -> None:
    """The kernel allows a process some 65,530; what lies between holes is each one of its own."""
    with msctx.context(memory_optimize_level="O0"):
        before, count = mappings(), min(20_000, 2**33 // size)
        held = [torch.empty(size, dtype=torch.uint8) for _ in range(count)]
        for i in range(0, count, 2):
            held[i] = torch.empty(0)
        memory.empty_cache()
        assert mappings() - before < 200
        again = [torch.empty(size, dtype=torch.uint8) for _ in range(count // 2)]
        assert mappings() - before < 200
        del held, again


@pytest.mark.full
def test_memory_goes_back_where_the_kernel_allows_no_more_mappings(passes: Callable[..., str]) -> None:
    """As somebody else has them all: a piece is given back whole, without splitting one."""
    passes("""
        import ctypes, mmap, torch, msctx
        from pathlib import Path
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
        MB, most = 2**20, int(Path("/proc/sys/vm/max_map_count").read_text())
        if most > 200_000:
            raise SystemExit  # it would take too long

        def resident():
            return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

        with msctx.context(memory_optimize_level="O0"):
            held = [torch.ones(MB, dtype=torch.uint8) for _ in range(640)]
            pages = 2 * most + 1000
            start = libc.mmap(None, pages * 4096, mmap.PROT_READ, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
            for page in range(0, pages, 2):  # each one between two others
                if libc.mprotect(ctypes.c_void_p(start + page * 4096), ctypes.c_size_t(4096), 0):
                    break
            else:
                raise AssertionError("the kernel allows more mappings than it should")
            before = resident()
            del held[128:512]
            msctx.empty_cache()
            assert before - resident() > 350 * MB, before - resident()
            again = [torch.ones(MB, dtype=torch.uint8) for _ in range(384)]
            assert all(bool((t == 1).all()) for t in [*held, *again])
            libc.munmap(ctypes.c_void_p(start), ctypes.c_size_t(pages * 4096))
            del held, again
        stats = msctx.memory_stats()
        assert stats["reserved_bytes"] == stats["current_bytes"] == stats["idle_bytes"] == 0, stats
    """)


# --- across the borders of a scope ------------------------------------------------------------------------------------


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
        assert bool((made[: 4 * MB] == torch.arange(4 * MB)).all())
        del made
        assert cap()["current_bytes"] == 0


def test_what_takes_its_memory_past_all_allocators_is_not_counted() -> None:
    """docs/memory.md lists it."""
    with msctx.context(max_device_memory="64MB"):
        made = torch.arange(MB)
        assert cap()["current_bytes"] == 8 * MB
        others = [copy.deepcopy(made), torch.UntypedStorage(8 * MB)]
        assert cap()["current_bytes"] == 8 * MB
        others.append(made.share_memory_())
        assert cap()["current_bytes"] == 0
        del others


def test_exchange_with_others() -> None:
    with msctx.context(memory_optimize_level="O0"):
        made = torch.arange(MB)
        array, capsule = made.numpy(), torch.utils.dlpack.to_dlpack(made)
        shared = torch.arange(MB).share_memory_()
        borrowed = torch.from_numpy(np.arange(MB))
        del made
    gc.collect()
    again = torch.utils.dlpack.from_dlpack(capsule)
    assert int(array[-1]) == int(again[-1]) == int(shared[-1]) == int(borrowed[-1]) == MB - 1


def test_a_forked_child_goes_on() -> None:
    with msctx.context(max_device_memory="64MB"):
        held = megabytes(40).fill_(7)
        stop = threading.Event()

        def allocate() -> None:
            while not stop.is_set():
                megabytes(1)

        assert _works_in_child(held)  # what torch looks up once, it has looked up before there is a child
        thread = threading.Thread(target=allocate)
        thread.start()
        try:
            for _ in range(20):
                if (child := os.fork()) == 0:
                    os._exit(0 if _works_in_child(held) else 1)
                assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        finally:
            stop.set()
            thread.join()
        del held


def _works_in_child(held: torch.Tensor) -> bool:
    good = bool((held[::4096] == 7).all()) and megabytes(20).numel() == 20 * MB
    try:
        megabytes(25)
    except torch.OutOfMemoryError:
        return good
    return False


def test_threads_allocate_and_release_one_anothers_tensors() -> None:
    with msctx.context(max_device_memory="512MB"):
        made: list[torch.Tensor] = []

        def work(seed: int) -> None:
            random = np.random.default_rng(seed)
            for _ in range(200):
                if made and random.random() < 0.5:
                    tensor = made.pop()
                    assert bool((tensor == tensor[0]).all())
                else:
                    size = int(2 ** random.uniform(1, 20))
                    made.append(torch.full((size,), int(random.integers(100)), dtype=torch.uint8))

        with ThreadPoolExecutor(6) as pool:
            list(pool.map(work, range(6)))
        made.clear()
        assert cap()["current_bytes"] == 0


def test_the_profiler_sees_it() -> None:
    with (
        msctx.context(memory_optimize_level="O0"),
        torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile,
    ):
        megabytes(8)
    assert max(event.self_cpu_memory_usage for event in profile.key_averages()) >= 8 * MB


# --- what is found and put back ---------------------------------------------------------------------------------------


def test_a_cap_for_which_there_is_no_memory_is_not_open(passes: Callable[..., str]) -> None:
    """What sets it is longer than all that is left: the library's own copy of it fails."""
    passes(f"""
        import resource
        import msctx
        from msctx.native import core, memory
        library, origin = memory._library(), "x" * (256 * {MB})
        before = library.msctx_cap_open(1 << 40, "first")
        with open("/proc/self/statm") as file:
            now = int(file.read().split()[0]) * resource.getpagesize()
        # one copy is Python's
        resource.setrlimit(resource.RLIMIT_AS, (now + 384 * {MB}, resource.RLIM_INFINITY))
        for refused in (lambda: library.msctx_cap_open(1, origin), lambda: library.msctx_cap_adjust(before, 1, origin)):
            try:
                refused()
            except MemoryError:
                pass
            else:
                raise AssertionError("there was memory")
        assert memory._of_cap(before)["limit_bytes"] == 1 << 40
        assert library.msctx_cap_open(1 << 40, "second") == before + 1
        core.load().c.msctx_record_fatal(origin)  # no more than fits is taken of it
    """)
