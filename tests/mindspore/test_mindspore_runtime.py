"""ms.runtime: the pool of memory, its statistics, and streams."""

from typing import Any

import pytest
import torch

import msctx
import msctx.mindspore as ms
from msctx.errors import DeviceError, MsctxWarning, StrictError
from msctx.mindspore.errors import NotCarriedOut

GB = 2**30
on_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")


# --- set_memory -------------------------------------------------------------------------------------------------------


def test_set_memory_sets_what_is_given() -> None:
    ms.runtime.set_memory(max_size="4GB", optimize_level="O1")
    assert msctx.get_context() == {"max_device_memory": 4 * GB, "memory_optimize_level": "O1"}
    assert ms.get_context("max_device_memory") == 4.0
    assert ms.get_context("memory_optimize_level") == 1


def test_set_memory_by_position() -> None:
    ms.runtime.set_memory("2GB", "3.5GB", "60GB", "O0", "0GB")
    expected = {"mempool_block_size": int(3.5 * GB), "max_device_memory": 60 * GB, "memory_optimize_level": "O0"}
    assert msctx.get_context() == expected


@pytest.mark.parametrize("options", [{}, {"max_size": "4GB"}])
def test_set_memory_can_be_called_once(options: dict[str, str]) -> None:
    ms.runtime.set_memory(**options)
    for again in (options, {"max_size": "nonsense"}):
        with pytest.raises(RuntimeError, match="only once"):
            ms.runtime.set_memory(**again)
    wrong: Any = 4
    with pytest.raises(TypeError):  # types come first
        ms.runtime.set_memory(max_size=wrong)
    msctx.reset_context()
    ms.runtime.set_memory(max_size="5GB")


SIZES = ["0GB", "0.0GB", "2gb", "2G", "4GiB", "512MB", "", "2 GB"]


@pytest.mark.parametrize(
    ("name", "values"),
    [
        *((name, SIZES) for name in ("init_size", "increase_size", "max_size")),
        ("optimize_level", ["o1", "O2", "", "1"]),
        ("huge_page_reserve_size", ["GB", "1gb", "", "-1GB"]),
    ],
)
def test_set_memory_rejects(name: str, values: list[str]) -> None:
    wrong_types: list[Any] = [1, True, 2.5, b"2GB", ["2GB"]]
    for kind, wrong in ((TypeError, wrong_types), (ValueError, values)):
        for value in wrong:
            with pytest.raises(kind, match=name):
                ms.runtime.set_memory(**{name: value})
    assert not msctx.get_context()
    ms.runtime.set_memory()  # the call that failed does not count


@pytest.mark.parametrize(
    ("name", "value"),
    [("max_size", "0.00GB"), ("increase_size", "0.00GB"), ("max_size", "0.00000000001GB"), ("increase_size", "0.5GB")],
)
def test_set_memory_is_stricter_than_mindspore_here(name: str, value: str) -> None:
    with pytest.raises(ValueError, match='allowed: a size in GB such as "4GB"') as caught:
        ms.runtime.set_memory(**{name: value})
    assert "MB" not in str(caught.value).replace(value, "")
    assert "GiB" not in str(caught.value)


def test_set_memory_accepts_all_of_mindspores_forms() -> None:
    ms.runtime.set_memory(max_size="3.GB", init_size="0.00GB", huge_page_reserve_size="0GB")
    assert ms.get_context("max_device_memory") == 3.0


def test_set_cpu_affinity() -> None:
    for wrong in ((1,), ("on",), (False, "0-3"), (True, None, ["main"])):
        with pytest.raises(TypeError):
            ms.runtime.set_cpu_affinity(*wrong)
    with pytest.raises(NotCarriedOut):
        ms.runtime.set_cpu_affinity(True, ["0-3"])
    ms.runtime.set_cpu_affinity(False)
    for again in (False, True):
        with pytest.raises(RuntimeError, match="only once"):
            ms.runtime.set_cpu_affinity(again)
    assert not msctx.get_context()


def test_set_memory_wins_over_set_context() -> None:
    ms.set_context(device_target="GPU")
    ms.runtime.set_memory(max_size="4GB")
    ms.set_context(max_device_memory="8GB")
    assert ms.get_context("max_device_memory") == 4.0


@pytest.mark.parametrize("option", [{"init_size": "4GB"}, {"huge_page_reserve_size": "1GB"}])
def test_what_torch_has_no_counterpart_for_is_reported(option: dict[str, str]) -> None:
    msctx.set_context(strict=True)
    with pytest.raises(StrictError, match="nothing like it"):
        ms.runtime.set_memory(**option)
    msctx.reset_context()
    with pytest.warns(MsctxWarning, match=f"{next(iter(option))}.*nothing like it"):
        ms.runtime.set_memory(**option)
    assert not msctx.get_context()


def test_launch_blocking() -> None:
    ms.runtime.launch_blocking()
    ms.runtime.launch_blocking()
    assert ms.get_context("pynative_synchronize") is True
    arguments: list[Any] = [True]
    with pytest.raises(TypeError):
        ms.runtime.launch_blocking(*arguments)


# --- statistics -------------------------------------------------------------------------------------------------------

COUNTS = ("memory_reserved", "max_memory_reserved", "memory_allocated", "max_memory_allocated")


def test_statistics_on_cpu_are_empty() -> None:
    ms.set_context(device_target="CPU")
    statistics = ms.runtime.memory_stats()
    pools = {"common_mem_pool_stats", "persistent_mem_pool_stats"}
    assert {name: value for name, value in statistics.items() if value and name not in pools} == {}
    assert all(statistics[pool] == {"block_unit_size": 0, "block_counts": 0, "blocks_info": {}} for pool in pools)
    assert [getattr(ms.runtime, name)() for name in COUNTS] == [0, 0, 0, 0]
    assert "max allocated memory" in ms.runtime.memory_summary()
    for name in ("reset_peak_memory_stats", "reset_max_memory_reserved", "reset_max_memory_allocated", "empty_cache"):
        assert getattr(ms.runtime, name)() is None


def test_statistics_of_a_device_that_is_not_here(absent: str) -> None:
    ms.set_context(device_target=absent)
    for name in (*COUNTS, "memory_stats", "memory_summary", "empty_cache", "reset_peak_memory_stats"):
        with pytest.raises(DeviceError, match=absent):
            getattr(ms.runtime, name)()


class Recorder:
    """Stands in for torch.cuda."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def memory_stats(self) -> dict[str, int]:
        return {
            "segment.all.current": 2,
            "reserved_bytes.all.current": 8,
            "reserved_bytes.all.peak": 16,
            "allocated_bytes.all.current": 3,
            "allocated_bytes.all.peak": 12,
        }

    def __getattr__(self, name: str) -> Any:
        return lambda *args: self.calls.append(name)


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    made = Recorder()
    monkeypatch.setattr("msctx.mindspore.state.is_here", lambda word: True)
    monkeypatch.setattr("msctx.mindspore.state.torch_module", lambda word: made)
    ms.set_context(device_target="Ascend" if not torch.cuda.is_available() else "CPU")
    monkeypatch.setattr("msctx.mindspore.state.target", lambda: "Ascend")
    return made


def test_statistics_of_a_device_are_torchs(recorder: Recorder) -> None:
    assert [getattr(ms.runtime, name)() for name in COUNTS] == [8, 16, 3, 12]
    statistics = ms.runtime.memory_stats()
    assert statistics["total_idle_memory"] == 5
    assert statistics["common_mem_pool_stats"]["block_counts"] == 2
    assert statistics["common_mem_pool_stats"]["block_unit_size"] == GB
    ms.runtime.empty_cache()
    ms.runtime.reset_peak_memory_stats()
    for name in ("reset_max_memory_reserved", "reset_max_memory_allocated"):
        with pytest.warns(MsctxWarning, match="both peaks"):
            getattr(ms.runtime, name)()
    assert recorder.calls == ["empty_cache", *["reset_peak_memory_stats"] * 3]


# --- streams ----------------------------------------------------------------------------------------------------------


def test_the_cpu_has_no_streams(absent: str) -> None:
    ms.set_context(device_target="CPU")
    names = ("Stream", "Event", "synchronize", "current_stream", "default_stream")
    for name in names:
        with pytest.raises(RuntimeError, match=rf"{name}: device_target is CPU"):
            getattr(ms.runtime, name)()
    for function in (ms.runtime.set_cur_stream, ms.runtime.StreamCtx):
        with pytest.raises(RuntimeError, match="no streams"):
            function(None)
        with pytest.raises(TypeError, match="1 is an int"):  # types come first
            function(1)
    ms.set_context(device_target=absent)
    for name in names:
        with pytest.raises(DeviceError):
            getattr(ms.runtime, name)()


def test_wrong_types_of_streams_and_events(recorder: Recorder) -> None:
    for call in (
        lambda: ms.runtime.Stream("0"),
        lambda: ms.runtime.Stream(stream_id="0"),
        lambda: ms.runtime.Event(enable_timing=1),
        lambda: ms.runtime.Event(blocking="no"),
        lambda: ms.runtime.set_cur_stream(1),
        lambda: ms.runtime.StreamCtx("stream"),
    ):
        with pytest.raises(TypeError):
            call()
    ms.runtime.set_cur_stream(None)
    with ms.runtime.StreamCtx(None):
        pass
    ms.runtime.synchronize()
    assert recorder.calls == ["synchronize"]


@on_cuda
@pytest.mark.cuda
def test_streams_of_cuda() -> None:
    ms.set_context(device_target="GPU")
    stream = ms.runtime.Stream()
    assert isinstance(stream, ms.runtime.Stream)
    assert isinstance(ms.runtime.Event(), ms.runtime.Event)
    with ms.runtime.StreamCtx(stream):
        assert ms.runtime.current_stream() == stream
    assert ms.runtime.current_stream() == ms.runtime.default_stream()
    ms.runtime.synchronize()
    x = torch.ones(2**20, device="cuda")
    assert ms.runtime.memory_allocated() >= x.nbytes
