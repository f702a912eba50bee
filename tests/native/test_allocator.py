"""Host memory that is counted: caps that hold, large blocks that are used again, tensors that cross the borders of a scope."""

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


# --- what the process may have ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "group"), [(0, "0::/a/b"), (1, "8:memory:/a/b")], ids=["control groups, version 2", "version 1"]
)
def test_the_tightest_of_the_groups_around_a_process_counts(
    version: int, group: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel's files, laid out elsewhere."""
    root = tmp_path / ("", "memory")[version]
    _, _, cap, used, pages = memory.FILES[version]
    for folder, allowed, taken in (
        ("a/b", "max" if version == 0 else str(2**63 - 4096), 50),
        ("a", "100", 90),
        ("", "1000", 90),
    ):
        (root / folder).mkdir(parents=True, exist_ok=True)
        for name, text in ((cap, f"{allowed}\n"), (used, f"{taken}\n"), ("memory.stat", f"anon 1\n{pages} 30\n")):
            (root / folder / name).write_text(text)
    (tmp_path / "cgroup").write_text(f"9:cpu:/a\n{group}\n")
    real, places = Path, (tmp_path, tmp_path / "memory")
    monkeypatch.setattr(memory, "Path", lambda text: real(tmp_path / "cgroup") if text == "/proc/self/cgroup" else real(text))
    files = [(sign, where, *names) for (sign, _, *names), where in zip(memory.FILES, places, strict=True)]
    monkeypatch.setattr(memory, "FILES", files)
    assert memory.share_left() == pytest.approx(0.4)
    assert memory.free_bytes() == 40


# --- memory whose holder does not know where it came from, as oneDNN's --------------------------------------------------


COMMON = """
import atexit, gc, itertools, threading, warnings
import torch, torch.utils.mkldnn, msctx
from torch import nn

warnings.simplefilter("ignore")

def mkldnn_tensor():
    tensor = torch.randn(64, 64, 32, 32).to_mkldnn()
    return tensor, tensor.relu(), tensor + tensor, torch.randn(3).to_mkldnn()

def lstm():
    model = nn.LSTM(32, 64, 2).eval()
    with torch.no_grad():
        return model, model(torch.randn(5, 4, 32))

def trained():
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.ConvTranspose2d(16, 3, 3)).bfloat16()
    model(torch.randn(2, 3, 32, 32).bfloat16()).square().sum().backward()
    return model

USERS = mkldnn_tensor, lstm, trained
"""


def test_it_is_released_on_the_other_side_of_a_border(passes: Callable[..., str]) -> None:
    passes(f"""{COMMON}
def in_thread(work):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()

held = []
for make in USERS:
    for made, released in itertools.product((lambda work: work(), in_thread), repeat=2):
        made(lambda: held.append(make()))
        with msctx.context(max_device_memory="1GB"):
            released(held.clear)
            made(lambda: held.append(make()))
            with msctx.context(max_device_memory="1GB"):
                make()
            kept = make()
        released(held.clear)
        del kept
    gc.collect()
    stats = msctx.memory_stats()
    assert stats["current_bytes"] == stats["idle_bytes"] == 0, (make, stats)

before = [make() for make in USERS]  # left when the interpreter ends
entered = msctx.context(max_device_memory="1GB")
entered.__enter__()
inside = [make() for make in USERS]
atexit.register(lambda: (before.pop(), inside.pop()))
""")
