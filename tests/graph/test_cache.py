"""enable_compile_cache, op_compiler_cache_mode: a second process loads what the first has compiled, from a folder that is ours."""

import json
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from interpreter import Interpreter

import msctx
from msctx.errors import StrictError
from msctx.graph import cache
from msctx.graph.cache import stamp

PREPARE = """
import json, os, sys, torch, torch._inductor.compile_fx
from torch._dynamo.utils import counters
from torch._inductor.cpu_vec_isa import pick_vec_isa
pick_vec_isa()
torch.set_num_threads(1)

def compiles(function=None, **options):
    "What torch counted while it compiled and ran a small function under these options"
    import msctx
    with msctx.context(**options):
        found = torch.compile(function or (lambda x: (x.sin() + 1).relu()))(torch.linspace(-3, 3, 64))
    print(json.dumps({name: count for kind in counters.values() for name, count in kind.items() if "cache" in name}))
    return found
"""
Run = Callable[..., dict[str, int]]


@pytest.fixture(scope="session")
def inductor() -> Iterator[Interpreter]:
    """Has loaded inductor, and compiled nothing."""
    interpreter = Interpreter(PREPARE)
    yield interpreter
    interpreter.close()


@pytest.fixture
def run(inductor: Interpreter, tmp_path: Path) -> Run:
    """Run code in a fresh process; returns what torch counted. Whatever lands in torch's own folder lands in ``default``."""

    def run(code: str, **variables: str) -> dict[str, int]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "TORCH", "TRITON"))}
        own = {"TMPDIR": str(tmp_path / "tmp"), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "default")}
        (tmp_path / "tmp").mkdir(exist_ok=True)
        done = inductor.run(f"os.chdir({str(tmp_path)!r})\n{code}", kept | own | variables, 240)
        assert done.returncode == 0, done.stderr
        found: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
        return found

    return run


def files(path: Path) -> list[str]:
    return sorted(str(one.relative_to(path)) for one in path.rglob("*") if one.is_file())


def folder_in(path: Path) -> Path:
    return path / "rank_0" / stamp()


def write_ini(path: Path, size: Any, ratio: Any) -> str:
    path.write_text(f"[op_compiler_cache]\nmax_op_cache_size={size}\nremain_cache_size_ratio={ratio}\n")
    return str(path)


@pytest.mark.full
def test_a_second_process_finds_what_the_first_has_compiled(run: Run, tmp_path: Path) -> None:
    code = "compiles(enable_compile_cache=True, compile_cache_path='kept')"
    first, second = run(code), run(code)
    assert first["fxgraph_cache_miss"] == first["autograd_cache_miss"] == 1
    assert second["fxgraph_cache_hit"] == second["autograd_cache_hit"] == 1
    assert "fxgraph_cache_miss" not in second
    kept = files(folder_in(tmp_path / "kept"))
    for part in ("fxgraph/", "aotautograd/", "dynamo/code_state_msctx", ".main.so"):
        assert any(part in name for name in kept), (part, kept)
    assert files(tmp_path / "default") == []


@pytest.mark.full
def test_policies_share_no_code(run: Run) -> None:
    def code(mode: str) -> str:
        weights = "w = torch.ones(64, 8)"
        return f"{weights}\ncompiles(lambda x: x @ w, enable_compile_cache=True, compile_cache_path='kept', precision_mode={mode!r})"

    for times in ("miss", "hit"):
        for mode in ("force_fp16", "allow_mix_precision_bf16"):
            assert run(code(mode))[f"fxgraph_cache_{times}"] == 1, (mode, times)


def a_folder_instead(path: Path) -> None:
    path.unlink()
    path.mkdir()


def test_a_library_with_other_bytes_than_were_stored_is_removed(tmp_path: Path) -> None:
    import_module("torch._inductor.utils")

    kept = msctx.context(enable_compile_cache=True, compile_cache_path=str(tmp_path))
    with kept:
        libraries = [Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]) / "ab" / f"c{name}.main.so" for name in "abc"]
        libraries[0].parent.mkdir()
        for library in libraries:
            library.write_bytes(b"\x7fELF" + bytes(range(1, 200)))
    libraries[0].write_bytes(b"\x7fELF" + bytes(199))  # as after a loss of power
    libraries[1].with_name("cb.main.so.sha256").unlink()  # its process was killed
    cache._sifted.clear()
    with kept:
        assert [library.exists() for library in libraries] == [False, False, True]


@pytest.mark.full
def test_what_is_damaged_is_compiled_again(run: Run, tmp_path: Path) -> None:
    code = "compiles(enable_compile_cache=True, compile_cache_path='kept')"
    run(code)
    folder = folder_in(tmp_path / "kept")
    libraries, modules, graphs = "*/*.main.so", "[!d]?/*.py", "*/*/*/*"
    kinds: list[tuple[str, Callable[[Path], object]]] = [
        (libraries, lambda path: os.truncate(path, path.stat().st_size // 2)),
        (libraries, lambda path: os.truncate(path, 0)),
        (libraries, lambda path: path.write_bytes(path.read_bytes()[:64].ljust(path.stat().st_size, b"\0"))),
        (libraries, a_folder_instead),
        (modules, lambda path: path.write_text("def (")),
        (modules, lambda path: os.truncate(path, 0)),
        (modules, a_folder_instead),
        (graphs, lambda path: os.truncate(path, path.stat().st_size // 2)),
        (graphs, lambda path: os.truncate(path, 0)),
        (graphs, a_folder_instead),
    ]
    for pattern, damage in kinds:
        damaged = [path for path in folder.glob(pattern) if path.is_file()]
        assert damaged, pattern
        for path in damaged:
            damage(path)
        run(code)
        whole = [path for path in folder.rglob("*") if path.suffix in (".py", ".so")]
        assert [path.suffix for path in whole if not cache._is_whole(path)] == []
        assert {path.suffix for path in whole} == {".py", ".so"}


def test_force_empties_the_folders_of_msctx_once(tmp_path: Path) -> None:
    root = tmp_path / "ops" / "kernel_cache"
    with msctx.context(op_compiler_cache_dir=str(tmp_path / "ops")):
        folder = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
    assert folder.parent == root
    sentinels = [folder / "sentinel", folder / "fxgraph" / "ab" / "sentinel", root / "msctx-of-another-machine" / "sentinel"]
    for path in sentinels:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    theirs = [root / "Ascend910B" / "kernel.o", root / "op_cache.ini"]
    theirs[0].parent.mkdir()
    theirs[0].touch()
    write_ini(theirs[1], 9, 9)
    force = msctx.context(op_compiler_cache_mode="force", op_compiler_cache_dir=str(tmp_path / "ops"))
    with force:
        assert not any(path.exists() for path in sentinels)
        (folder / "stored").touch()
    with force:
        assert (folder / "stored").exists(), "what this process has stored itself stays"
    assert all(path.exists() for path in theirs)


def test_the_folder_of_the_environment_counts_where_none_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASCEND_CACHE_PATH", str(tmp_path / "ascend"))
    with msctx.context(op_compiler_cache_mode="enable"):
        assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "ascend" / "kernel_cache" / stamp())


def fill(folder: Path) -> list[Path]:
    """Files of a megabyte, last used so many minutes ago: those of the last 30 minutes stay."""
    made = [folder / f"{number:02d}.o" for number in range(6)]
    for path, minutes in zip(made, (90, 300, 25, 200, 60, 1), strict=True):
        path.write_bytes(bytes(2**20))
        os.utime(path, (time.time() - 60 * minutes,) * 2)
    return made


@pytest.mark.parametrize("at_exit", [False, True])
@pytest.mark.parametrize("name", ["enable_compile_cache", "op_compiler_cache_mode"])
def test_files_idle_for_longest_are_removed_until_the_ratio_is_left(name: str, at_exit: bool, tmp_path: Path) -> None:
    limits = {"op_compiler_cache_dir.op_cache_ini": write_ini(tmp_path / "op_cache.ini", 4, 25)}
    folder = {"enable_compile_cache": "compile_cache_path", "op_compiler_cache_mode": "op_compiler_cache_dir"}[name]
    options = {name: True if name == "enable_compile_cache" else "enable", folder: str(tmp_path / "kept"), **limits}
    with msctx.context(**options):
        assert cache.SLOT.on is not None
        place = cache.SLOT.on.folder
        made = fill(place) if at_exit else []
    if not at_exit:
        made = fill(place)
        with msctx.context(**options):
            pass
    assert [number for number, path in enumerate(made) if path.exists()] == [2, 5]


@pytest.mark.parametrize(
    ("size", "ratio", "expected"),
    [
        ("7", "20", (7, 20)),
        ("-1", "", (-1, 50)),
        ("", "30", (500, 30)),
        ("", "", (500, 50)),
        ("7", "101", None),
        ("x", "", None),
    ],
)
def test_limits_come_from_the_environment_unless_a_file_sets_them(
    size: str, ratio: str, expected: tuple[int, int] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(cache.SIZE, size)
    monkeypatch.setenv(cache.RATIO, ratio)
    if expected is not None:
        assert cache.limit_of(tmp_path) == expected
    else:
        with pytest.warns(msctx.MsctxWarning, match="both limits are ignored"):
            assert cache.limit_of(tmp_path) == cache.DEFAULT
    write_ini(tmp_path / "op_cache.ini", 9, 10)
    assert cache.limit_of(tmp_path) == (9, 10)


def test_it_is_for_the_user_alone_and_a_rank_has_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.chdir(tmp_path)
    with msctx.context(enable_compile_cache=True, compile_cache_path="kept"):
        folder = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
    assert folder == tmp_path / "kept" / "rank_3" / stamp()
    assert stat.S_IMODE(folder.stat().st_mode) == stat.S_IMODE(folder.parent.stat().st_mode) == 0o700


def open_to_all(folder: Path) -> None:
    folder.chmod(0o777)


def a_file(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.touch()


def planted(folder: Path) -> None:
    (folder / "fxgraph").mkdir()
    os.chown(folder / "fxgraph", 65534, 65534)
    cache._sifted.clear()  # a process looks through a folder once: afterwards nobody else can write there


def linked(folder: Path) -> None:
    (folder / "fxgraph").symlink_to(folder.parent)
    cache._sifted.clear()


HOLDS = "holds fxgraph, a link or another user's, so code from there might be another user's and is not loaded; delete it, or"


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (open_to_all, "can be written by others, so code from there might be another user's and is not loaded; delete it, or"),
        (a_file, "File exists"),
        (linked, HOLDS),
        pytest.param(planted, HOLDS, marks=pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")),
    ],
)
def test_a_folder_that_cannot_be_trusted_or_made_is_not_used(
    spoil: Callable[[Path], None], why: str, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    options: dict[str, Any] = {"enable_compile_cache": True, "compile_cache_path": str(tmp_path)}
    with msctx.context(**options):
        pass
    spoil(folder_in(tmp_path))
    before = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    with msctx.context(**options) as ctx:
        assert os.environ.get("TORCHINDUCTOR_CACHE_DIR") == before
    (warning,) = recwarn.list
    for part in (str(folder_in(tmp_path)), why, "torch's caches stay where they are"):
        assert part in str(warning.message)
    assert {row.status for row in ctx.plan.rows} == {"approximated"}
    with pytest.raises(StrictError, match=why), msctx.context(strict=True, **options):
        pass
