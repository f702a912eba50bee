"""enable_compile_cache, op_compiler_cache_mode: a second process loads what the first has compiled, from a folder that is ours."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import stat
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from interpreter import Interpreter

import msctx
from msctx.errors import StrictError
from msctx.graph import cache
from msctx.graph.cache_stamp import stamp

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
    return path / "rank_0" / stamp().name


# --- on and off -------------------------------------------------------------------------------------------------------


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
@pytest.mark.parametrize(
    "options", ["enable_compile_cache=False", "op_compiler_cache_mode='disable', op_compiler_cache_dir='kept'"]
)
def test_off_leaves_no_file(options: str, run: Run, tmp_path: Path) -> None:
    found = run(f"compiles({options})")
    assert not {"fxgraph_cache_miss", "fxgraph_cache_hit", "autograd_cache_saved"} & {*found}
    assert files(tmp_path) == []


@pytest.mark.full
def test_code_compiled_while_nothing_is_kept_runs_after_the_block(run: Run) -> None:
    run(
        """
        import msctx
        f = torch.compile(lambda x: x.sin() + 1)
        with msctx.context(enable_compile_cache=False):
            f(torch.ones(3))
        assert torch.equal(f(torch.zeros(3)), torch.ones(3))
        print("{}")
        """.replace("\n        ", "\n")
    )


@pytest.mark.full
def test_policies_share_no_code(run: Run, tmp_path: Path) -> None:
    def code(mode: str) -> str:
        weights = "w = torch.ones(64, 8)"
        return f"{weights}\ncompiles(lambda x: x @ w, enable_compile_cache=True, compile_cache_path='kept', precision_mode={mode!r})"

    for times in ("miss", "hit"):
        for mode in ("force_fp16", "allow_mix_precision_bf16"):
            assert run(code(mode))[f"fxgraph_cache_{times}"] == 1, (mode, times)
    found = cache.marked(folder_in(tmp_path / "kept"))
    assert found is not None
    assert len(found["policies"]) == 2


@pytest.mark.full
def test_graph_mode_finds_both_passes_of_a_model_again(run: Run) -> None:
    code = """
        import msctx
        net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
        with msctx.context(mode="GRAPH_MODE", enable_compile_cache=True, compile_cache_path="kept", deterministic="ON") as ctx:
            net(torch.ones(2, 8)).sum().backward()
        print(json.dumps({row.cache: counters["inductor"]["fxgraph_cache_hit"] for row in ctx.graphs()}))
        """.replace("\n        ", "\n")
    assert run(code) == {"miss": 0}
    assert run(code) == {"hit": 2}


@pytest.mark.full
def test_code_of_another_versions_passes_is_compiled_anew(run: Run) -> None:
    code = """
        import msctx
        from msctx.graph import fusion
        {then}
        net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU())
        with msctx.context(mode="GRAPH_MODE", conv_fprop_algo="gemm") as ctx, torch.no_grad():
            net(torch.ones(2, 3, 8, 8))
        print(json.dumps({{row.cache: 1 for row in ctx.graphs()}}))
        """.replace("\n        ", "\n")
    for cached, then in (("miss", ""), ("hit", ""), ("miss", "fusion.own_code = lambda: 'another'")):
        assert run(code.format(then=then)) == {cached: 1}, then


@pytest.mark.full
def test_a_damaged_entry_is_compiled_anew(run: Run, tmp_path: Path) -> None:
    code = "compiles(enable_compile_cache=True, compile_cache_path='kept')"
    run(code)
    for path in [*folder_in(tmp_path / "kept").glob("fxgraph/*/*/*"), *folder_in(tmp_path / "kept").glob("aotautograd/*/*")]:
        path.write_bytes(path.read_bytes()[:100])
    assert run(code)["fxgraph_cache_miss"] == 1


@pytest.mark.full
def test_code_that_the_process_has_loaded_already_is_kept_in_the_next_folder_too(run: Run, tmp_path: Path) -> None:
    run(
        "compiles(enable_compile_cache=True, compile_cache_path='a')\ntorch.compiler.reset()\n"
        "compiles(enable_compile_cache=True, compile_cache_path='b')"
    )
    libraries = [[n for n in files(folder_in(tmp_path / name)) if n.endswith(".main.so")] for name in "ab"]
    assert libraries[0] == libraries[1] != []


# --- the cache of kernels ---------------------------------------------------------------------------------------------


def test_force_throws_away_what_is_ours_once(tmp_path: Path) -> None:
    root = tmp_path / "ops" / "kernel_cache"
    with msctx.context(op_compiler_cache_dir=str(tmp_path / "ops")):
        folder = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
    assert folder.parent == root
    sentinels = [folder / "sentinel", folder / "fxgraph" / "ab" / "sentinel", root / "sentinel"]
    for path in sentinels:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (root / "op_cache.ini").write_text("[op_compiler_cache]\nmax_op_cache_size=9\nremain_cache_size_ratio=9\n")
    force = msctx.context(op_compiler_cache_mode="force", op_compiler_cache_dir=str(tmp_path / "ops"))
    with force:
        assert not any(path.exists() for path in sentinels)
        (folder / "stored").touch()
    with force:
        assert (folder / "stored").exists(), "what this process has stored itself stays"
    assert "=9" in (root / "op_cache.ini").read_text()


def test_force_spares_what_somebody_else_has_there(tmp_path: Path) -> None:
    theirs = tmp_path / "ops" / "kernel_cache" / "Ascend910B" / "kernel.o"
    theirs.parent.mkdir(parents=True)
    theirs.touch()
    with msctx.context(op_compiler_cache_mode="force", op_compiler_cache_dir=str(tmp_path / "ops")):
        assert theirs.exists()


def test_the_folder_of_the_environment_counts_where_none_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASCEND_CACHE_PATH", str(tmp_path / "ascend"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))

    def check(expected: Path) -> None:
        with msctx.context(op_compiler_cache_mode="enable"):
            assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(expected / "kernel_cache" / stamp().name)
            assert (expected / "kernel_cache" / "op_cache.ini").exists()

    check(tmp_path / "ascend")
    monkeypatch.delenv("ASCEND_CACHE_PATH")
    check(tmp_path / "home" / "atc_data")


# --- the folder -------------------------------------------------------------------------------------------------------


def test_it_is_for_the_user_alone_and_a_rank_has_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.chdir(tmp_path)
    with msctx.context(enable_compile_cache=True, compile_cache_path="kept"):
        inside = tmp_path / "elsewhere"
        inside.mkdir()
        monkeypatch.chdir(inside)
        folder = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
        with msctx.context(compile_cache_path="kept"):
            assert Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]) == inside / "kept" / "rank_3" / stamp().name
        assert Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]) == folder
    assert folder == tmp_path / "kept" / "rank_3" / stamp().name
    assert stat.S_IMODE(folder.stat().st_mode) == stat.S_IMODE(folder.parent.stat().st_mode) == 0o700
    text = (folder / cache.MARKER).read_text()
    assert not any(value in text for name, value in os.environ.items() if name in ("HOME", "PATH", "TORCHINDUCTOR_CACHE_DIR"))


def open_to_all(folder: Path) -> None:
    folder.chmod(0o777)


def planted(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()
    (folder / "planted.so").touch()


def foreign(folder: Path) -> None:
    found = json.loads((folder / cache.MARKER).read_text())
    found["stamp"]["processor"] = "another one"
    (folder / cache.MARKER).write_text(json.dumps(found))


def newer(folder: Path) -> None:
    found = json.loads((folder / cache.MARKER).read_text())
    (folder / cache.MARKER).write_text(json.dumps(found | {"format": "msctx compile cache 2"}))


def damaged(folder: Path) -> None:
    (folder / cache.MARKER).write_text('{"format"')


def damaged_list(folder: Path) -> None:
    found = json.loads((folder / cache.MARKER).read_text())
    (folder / cache.MARKER).write_text(json.dumps(found | {"policies": ["a", 1]}))


def no_list(folder: Path) -> None:
    found = json.loads((folder / cache.MARKER).read_text())
    (folder / cache.MARKER).write_text(json.dumps(found | {"policies": 5}))


def a_file(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.touch()


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (open_to_all, "can be written by its group and everybody"),
        (planted, "somebody else has put them there"),
        (foreign, "processor is .* here, and was another one"),
        (newer, "its format is msctx compile cache 2"),
        (damaged, "no msctx_cache.json of ours"),
        (damaged_list, "its msctx_cache.json is damaged"),
        (no_list, "its msctx_cache.json is damaged"),
        (a_file, "is not a folder"),
    ],
)
def test_a_folder_that_cannot_be_trusted_is_refused_with_the_reason(
    spoil: Callable[[Path], None], why: str, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    options: dict[str, Any] = {"enable_compile_cache": True, "compile_cache_path": str(tmp_path)}
    with msctx.context(**options):
        pass
    spoil(folder_in(tmp_path))
    before = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    for _ in range(2):
        with msctx.context(**options):
            assert os.environ.get("TORCHINDUCTOR_CACHE_DIR") == before
    (warning,) = recwarn.list
    with pytest.raises(StrictError, match=why), msctx.context(strict=True, **options):
        pass
    for part in (str(folder_in(tmp_path)), "torch's caches stay where they are"):
        assert part in str(warning.message)


def open_above(folder: Path) -> None:
    folder.parent.chmod(0o777)


def sticky_above(folder: Path) -> None:
    folder.parent.chmod(0o1777)


@pytest.mark.parametrize("spoil", [open_above, sticky_above])
def test_the_folder_of_a_rank_is_the_users_alone_too(spoil: Callable[[Path], None], tmp_path: Path) -> None:
    folder = cache.ready(tmp_path / "rank_0")
    spoil(folder)
    with (
        pytest.raises(StrictError, match=r"rank_0: can be written by its group and everybody"),
        msctx.context(strict=True, enable_compile_cache=True, compile_cache_path=str(tmp_path)),
    ):
        pass


@pytest.mark.parametrize(("mode", "taken"), [(0o1777, True), (0o777, False)])
def test_a_shared_folder_may_hold_it_where_nobody_can_replace_it(mode: int, taken: bool, tmp_path: Path) -> None:
    """compile_cache_path="/tmp": in a sticky folder only its owner can rename or remove rank_0."""
    tmp_path.chmod(mode)
    (tmp_path / "theirs.so").touch()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with msctx.context(enable_compile_cache=True, compile_cache_path=str(tmp_path)):
            used = os.environ.get("TORCHINDUCTOR_CACHE_DIR") == str(folder_in(tmp_path))
    assert (used, not told) == (taken, taken)


def test_what_lies_beside_the_folder_of_the_stamp_is_not_looked_at(tmp_path: Path) -> None:
    folder = cache.ready(tmp_path / "rank_0")
    for theirs in (folder.parent / "planted.so", folder.parent / "0123456789ab" / "planted.so"):
        theirs.parent.mkdir(exist_ok=True)
        theirs.touch()
    with msctx.context(strict=True, enable_compile_cache=True, compile_cache_path=str(tmp_path)):
        assert Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]) == folder
    assert [path.name for path in folder.iterdir()] == [cache.MARKER]


def test_a_folder_that_cannot_be_made_leaves_the_run_alive(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.warns(msctx.MsctxWarning, match="is not a folder.*name another folder"),
        msctx.context(enable_compile_cache=True, compile_cache_path=str(tmp_path / "file" / "kept")) as ctx,
    ):
        inside = ctx.plan
    for plan in (inside, ctx.plan):  # also once it has been left
        assert {(row.status, "is not a folder" in row.reason) for row in plan.rows} == {("approximated", True)}
    with msctx.context(enable_compile_cache=True, compile_cache_path=str(tmp_path / "good")) as good:
        pass
    assert {row.status for row in good.plan.rows} == {"honoured"}


def test_a_forked_process_that_exits_leaves_its_parents_folder(passes: Callable[..., str], tmp_path: Path) -> None:
    code = """
    import os, sys, tempfile
    from msctx.graph import cache
    folder = cache.scratch()
    if (child := os.fork()) == 0:
        cache.scratch()
        sys.exit()
    os.waitpid(child, 0)
    assert os.listdir(tempfile.gettempdir()) == [os.path.basename(folder)]
    """
    passes(f"import tempfile; tempfile.tempdir = {str(tmp_path)!r}\n{textwrap.dedent(code)}")
    assert [*tmp_path.iterdir()] == []


def test_leaving_loads_no_module_that_the_program_loads_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "loaded_later.py").write_text("raise ImportError('no such library')")
    spec = importlib.util.spec_from_file_location("loaded_later", tmp_path / "loaded_later.py")
    assert spec is not None
    assert spec.loader is not None
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "loaded_later", module)
    spec.loader.exec_module(module)
    with msctx.context(enable_compile_cache=True, compile_cache_path=str(tmp_path / "kept")):
        pass
    with pytest.raises(ImportError, match="no such library"):
        hasattr(module, "anything")
