"""How much memory the process may have: what is near the cap is not measured, and a cap is no more than that."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import msctx
from msctx.native import memory


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


def test_ulimit_counts(passes: Callable[..., str]) -> None:
    passes("""
        import resource
        from pathlib import Path
        from msctx.native import memory
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + used // 9, resource.RLIM_INFINITY))
        assert memory.share_left() < 0.2 and memory.free_bytes() <= used // 9
    """)


def test_a_cap_reads_few_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caps of the control groups are known once the first scope has looked them up."""
    read: list[Path] = []
    text_of = Path.read_text
    monkeypatch.setattr(Path, "read_text", lambda path, *args, **kwargs: read.append(path) or text_of(path, *args, **kwargs))
    with msctx.context(max_device_memory="4GB"):
        read.clear()
        with msctx.context(max_device_memory="2GB"):
            names = [path.name for path in read]
    assert not {cap for _, _, cap, *_ in memory.FILES} & {*names}
    assert names.count("meminfo") == 2
