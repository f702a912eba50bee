"""Nothing is measured where memory is short."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from msctx.native import limits


def test_near_a_cap_of_the_system_nothing_is_measured(passes: Callable[..., str], tmp_path: Path) -> None:
    passes(f"""
        import resource, time, torch, msctx
        from pathlib import Path
        x, w = torch.randn(1, 8, 16, 16), torch.randn(8, 8, 3, 3)
        def asked():
            with msctx.context(conv_fprop_algo="performance", tuning_file={str(tmp_path / "tuning.json")!r}) as ctx:
                torch.nn.functional.conv2d(x, w)
            return ctx.choices()[0].reasons[0]
        with msctx.context(conv_fprop_algo="gemm"):
            torch.nn.functional.conv2d(x, w)
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (used + used // 9, hard))
        assert asked() == "chosen as by normal: not measured yet", asked()
        resource.setrlimit(resource.RLIMIT_AS, (10 * used, hard))
        time.sleep(1.1)  # an answer holds for a second
        assert asked() == "measured in this process", asked()
    """)


@pytest.mark.parametrize(
    ("version", "group"), [(0, "0::/a/b"), (1, "8:memory:/a/b")], ids=["control groups, version 2", "version 1"]
)
def test_the_tightest_of_the_groups_around_a_process_counts(
    version: int, group: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel's files, laid out elsewhere."""
    root = tmp_path / ("", "memory")[version]
    _, _, cap, used, pages = limits.FILES[version]
    for folder, allowed, taken in (
        ("a/b", "max" if version == 0 else str(2**63 - 4096), 50),
        ("a", "100", 90),
        ("", "1000", 90),
    ):
        (root / folder).mkdir(parents=True, exist_ok=True)
        (root / folder / cap).write_text(f"{allowed}\n")
        (root / folder / used).write_text(f"{taken}\n")
        (root / folder / "memory.stat").write_text(f"anon 1\n{pages} 30\n")
    (tmp_path / "cgroup").write_text(f"9:cpu:/a\n{group}\n")
    real = Path
    monkeypatch.setattr(limits, "Path", lambda text: real(tmp_path / "cgroup") if text == "/proc/self/cgroup" else real(text))
    monkeypatch.setattr(
        limits,
        "FILES",
        [(sign, tmp_path / where, *names) for (sign, _, *names), where in zip(limits.FILES, ("", "memory"), strict=True)],
    )
    assert limits.share_left() == pytest.approx(0.4)
    assert limits.free_bytes() == 40


def test_the_cap_of_a_gpu_is_that_of_torchs_allocator(monkeypatch: pytest.MonkeyPatch) -> None:
    said: dict[str, Any] = {
        "is_initialized": True,
        "get_per_process_memory_fraction": 0.5,
        "memory_allocated": 30,
        "memory_reserved": 50,
    }
    said["get_device_properties"] = SimpleNamespace(total_memory=100)
    for name in said:
        monkeypatch.setattr(torch.cuda, name, lambda name=name: said[name])
    assert limits.share_left_on_gpu() == pytest.approx(0.4), "of what is reserved the rest can be given back"
    said["get_per_process_memory_fraction"] = 1.0
    assert limits.share_left_on_gpu() == 1.0
    said |= {"get_per_process_memory_fraction": 0.5, "is_initialized": False}
    assert limits.share_left_on_gpu() == 1.0
