"""What a process holds on a GPU beside torch's allocator: NVML's count, here of a library that stands in for NVML."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from msctx.switches import SWITCHES, cuda_context
from msctx.switches.cuda_context import NOT_AVAILABLE, used

MB = 2**20
UUID = "1f0c7d3a-0000-1111-2222-333344445555"
cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    if (compiler := shutil.which("cc")) is None:
        pytest.skip("no C compiler")
    path = tmp_path_factory.mktemp("nvml") / "libnvml.so"
    subprocess.run([compiler, "-shared", "-fPIC", Path(__file__).with_name("nvml.c"), "-o", path], check=True)
    return str(path)


def tell(library: str, processes: Mapping[int, int], device: str = f"GPU-{UUID}") -> Any:
    number, nvml = len(processes), ctypes.CDLL(library)
    pids, sizes = (ctypes.c_uint * number)(*processes), (ctypes.c_ulonglong * number)(*processes.values())
    nvml.tell(device.encode(), number, pids, sizes)
    return nvml


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
def test_our_own_process_is_counted(processes: dict[int, int], expected: int | None, library: str) -> None:
    tell(library, processes)
    assert used(UUID, library) == expected


def test_without_nvml_nothing_is_known() -> None:
    assert used(UUID, "libno-such-library.so.1") is None
    assert used(UUID, "libc.so.6") is None


def test_torchs_own_share_is_no_overhead(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over a device that only says its number and what torch's allocator holds on it."""
    tell(library, {ME: 700 * MB})
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: type("Properties", (), {"uuid": UUID}))
    monkeypatch.setattr(cuda_context, "used", lambda uuid: used(uuid, library))
    for reserved, expected in ((0, 700 * MB), (200 * MB, 500 * MB), (800 * MB, 0)):
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda index, reserved=reserved: reserved)
        assert cuda_context.overhead(0) == expected
    tell(library, {})
    assert cuda_context.overhead(0) is None


def test_it_is_observed_without_initialising_cuda() -> None:
    assert SWITCHES["torch.cuda.context_overhead"].write is None
    if not torch.cuda.is_initialized():
        assert cuda_context.observed() is None
        assert not torch.cuda.is_initialized()


@cuda
@pytest.mark.cuda
def test_a_context_takes_some_hundred_megabytes() -> None:
    torch.ones(1, device="cuda")
    overhead = cuda_context.observed()
    assert overhead is not None
    assert 50 * MB < overhead < 2048 * MB
    held = torch.empty(512 * MB, dtype=torch.uint8, device="cuda")
    assert abs(cuda_context.observed() - overhead) < 64 * MB
    del held
