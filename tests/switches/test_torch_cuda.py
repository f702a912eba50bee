"""CUDA's switches: the flags in every build of torch, the rest on a GPU."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import msctx
from msctx.switches import SWITCHES, accelerator, present, torch_cuda
from msctx.switches.torch_cuda import NOT_AVAILABLE, used

cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
settable = pytest.mark.skipif(
    not accelerator.has_settings(), reason="torch has no settings of its allocators that can be set late"
)
GB = 2**30


def test_what_needs_a_device_is_not_there_without_one():
    here = torch.cuda.is_available()
    for name in ("current_device", "memory_cap", "synchronize_each_op", "caching_allocator"):
        name = f"torch.cuda.{name}"
        assert (SWITCHES[name] in present()) is here
        assert (name in msctx.state()) is here


@cuda
@pytest.mark.cuda
def test_a_cap_holds_and_ends():
    torch.ones(1, device="cuda")
    with msctx.context(max_device_memory="1GB"), pytest.raises(torch.OutOfMemoryError):
        torch.empty(2 * GB, dtype=torch.uint8, device="cuda")
    del_me = torch.empty(2 * GB, dtype=torch.uint8, device="cuda")
    assert del_me.numel() == 2 * GB


def block(size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, device="cuda")


@cuda
@pytest.mark.cuda
def test_the_cap_is_of_the_process_with_its_context():
    torch.cuda.empty_cache()
    block(1)
    with msctx.context(max_device_memory="4GB"):
        beside, step = torch_cuda.overhead(0), GB // 16
        assert msctx.state()["torch.cuda.memory_cap"] == 4 * GB
        kept = [block(step) for _ in range((4 * GB - beside) // step)]
        with pytest.raises(torch.OutOfMemoryError):
            block(step)
    del kept
    assert msctx.state()["torch.cuda.memory_cap"] is None


@cuda
@pytest.mark.cuda
def test_a_cap_smaller_than_the_context_is_an_error():
    block(1)
    with pytest.raises(msctx.errors.SwitchError, match="more are its context's"), msctx.context(max_device_memory="20MB"):
        pass


def segments() -> set[tuple[int, bool]]:
    return {(segment["total_size"], segment["is_expandable"]) for segment in torch.cuda.memory_snapshot()}


@cuda
@settable
@pytest.mark.cuda
def test_a_step_of_the_pool_is_one_segment():
    torch.cuda.empty_cache()
    with msctx.context(mempool_block_size="1GB"):
        kept = block(2 << 20)
    assert (GB, False) in segments()
    del kept
    torch.cuda.empty_cache()
    block(2 << 20)
    assert (20 << 20, False) in segments()
    assert (GB, False) not in segments()


@cuda
@settable
@pytest.mark.cuda
def test_segments_that_grow():
    torch.cuda.empty_cache()
    with msctx.context(static_memory_policy=3):
        kept = block(64 << 20)
    assert any(grows for _, grows in segments())
    del kept
    torch.cuda.empty_cache()
    kept = block(64 << 20)
    assert not any(grows for size, grows in segments() if size >= kept.numel())


@cuda
@pytest.mark.cuda
def test_without_reuse_nothing_is_kept(tmp_path):
    file = tmp_path / "env.json"
    file.write_text('{"sys": {"mem_reuse": false}}')
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    with msctx.context(env_config_path=str(file)):
        kept = block(64 << 20)
        assert torch.cuda.memory_reserved() == before
    block(64 << 20)
    assert torch.cuda.memory_reserved() >= before + (64 << 20)
    assert kept.numel() == 64 << 20


@cuda
@pytest.mark.cuda
def test_reuse_is_switched_off_before_cuda_is_initialised(passes):
    passes("""
        import torch
        from msctx.switches import SWITCHES
        switch = SWITCHES["torch.cuda.caching_allocator"]
        assert switch.read() is True
        switch.set(False)
        assert not torch.cuda.is_initialized()
        kept = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
        assert (switch.read(), torch.cuda.memory_reserved()) == (False, 0)
        switch.set(True)
    """)


@cuda
@pytest.mark.cuda
def test_tf32_changes_the_error_of_a_product_and_is_put_back():
    torch.manual_seed(0)
    a, b = (torch.randn(512, 512, device="cuda") for _ in range(2))
    exact = a.double() @ b.double()

    def error() -> float:
        return ((a @ b).double() - exact).abs().max().item()

    with msctx.context(matmul_allow_tf32=False):
        strict = error()
    with msctx.context(matmul_allow_tf32=True):
        rounded = error()
    assert rounded > 10 * strict


@cuda
@pytest.mark.cuda
def test_determinism_in_a_fresh_process():
    code = (
        "import msctx, torch, os\n"
        "msctx.set_context(deterministic='ON', seed=0, strict=True)\n"
        "assert os.environ['CUBLAS_WORKSPACE_CONFIG'] == ':4096:8' and torch.backends.cudnn.deterministic\n"
        "x = torch.randn(64, 64, device='cuda', requires_grad=True)\n(x @ x).sum().backward()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_torchs_sanitizer_is_entered_and_left_once(monkeypatch):
    calls = []

    class Sanitizer:
        enabled = False

        def enable(self):
            self.enabled = calls.append("enable") is None

        def disable(self):
            self.enabled = calls.append("disable") is not None

    switch = SWITCHES["torch.cuda.sanitizer"]
    assert switch.read() is False
    monkeypatch.setitem(sys.modules, "torch.cuda._sanitizer", SimpleNamespace(cuda_sanitizer=Sanitizer()))
    state = switch.take()
    for on in (True, True):
        switch.set(on)
        assert switch.read() is True
    switch.put_back(state)
    assert switch.read() is False
    assert calls == ["enable", "disable"]


# --- what a process holds beside torch's allocator: NVML's count, here of an object that stands in for NVML ---------------

MB = 2**20
UUID = "1f0c7d3a-0000-1111-2222-333344445555"


class Nvml:
    """One device, with these processes."""

    def __init__(self, processes: Mapping[int, int]) -> None:
        self.processes = processes

    def nvmlDeviceGetHandleByUUID(self, name: bytes, handle: Any) -> int:
        return 6 * (name != f"GPU-{UUID}".encode())

    def nvmlDeviceGetComputeRunningProcesses_v3(self, handle: Any, count: Any, found: Any) -> int:
        count._obj.value = len(self.processes)
        for place, (pid, size) in enumerate(self.processes.items()):
            found[place].pid, found[place].used = pid, size
        return 0


ME = os.getpid()
OTHER = ME + 1


@pytest.mark.parametrize(
    ("processes", "expected"),
    [
        ({}, None),
        ({ME: 500 * MB}, 500 * MB),
        ({ME: 3 << 32}, 3 << 32),
        ({OTHER: 300 * MB}, 300 * MB),  # in a container: NVML counts by the host's numbers
        ({OTHER: 300 * MB, ME: 500 * MB}, 500 * MB),
        ({OTHER: 300 * MB, OTHER + 1: 400 * MB}, None),
        ({ME: NOT_AVAILABLE}, None),
        ({ME: 500 * MB, OTHER: NOT_AVAILABLE}, 500 * MB),
    ],
)
def test_our_own_process_is_counted(processes: dict[int, int], expected: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_cuda, "nvml", lambda: Nvml(processes))
    assert used(UUID) == expected
    assert used("another-device") is None


@pytest.mark.parametrize("library", ["libno-such-library.so.1", "libc.so.6"])
def test_without_nvml_nothing_is_known(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    load = ctypes.CDLL
    monkeypatch.setattr(ctypes, "CDLL", lambda name: load(library))
    torch_cuda.nvml.cache_clear()
    assert used(UUID) is None
    torch_cuda.nvml.cache_clear()


def test_torchs_own_share_is_no_overhead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over a device that only says its number and what torch's allocator holds on it."""
    monkeypatch.setattr(torch_cuda, "nvml", lambda: Nvml({ME: 700 * MB}))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: type("Properties", (), {"uuid": UUID}))
    for reserved, expected in ((0, 700 * MB), (200 * MB, 500 * MB), (800 * MB, 0)):
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda index, reserved=reserved: reserved)
        assert torch_cuda.overhead(0) == expected
    monkeypatch.setattr(torch_cuda, "nvml", lambda: Nvml({}))
    assert torch_cuda.overhead(0) is None


@cuda
@pytest.mark.cuda
def test_a_context_takes_some_hundred_megabytes() -> None:
    torch.ones(1, device="cuda")
    overhead = torch_cuda.overhead(0)
    assert overhead is not None
    assert 50 * MB < overhead < 2048 * MB
    held = torch.empty(512 * MB, dtype=torch.uint8, device="cuda")
    assert abs(torch_cuda.overhead(0) - overhead) < 64 * MB
    del held
