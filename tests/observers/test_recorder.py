"""env_config_path.rdr: the last operators are on disk when a program fails, by whatever."""

from __future__ import annotations

import json
import re
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import msctx
from msctx.errors import MsctxWarning


def settings(folder: Path, mode: int = 1) -> str:
    path = folder / f"env{mode}.json"
    path.write_text(json.dumps({"rdr": {"enable": True, "mode": mode, "path": str(folder / "out")}}))
    return str(path)


def written(folder: Path) -> list[Any]:
    return [json.loads(path.read_text()) for path in folder.glob("out/rank_0/rdr/KERNEL.graph_exec_order.*.json")]


def test_an_error_that_leaves_the_block(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(4, 3), nn.Linear(5, 2))
    with pytest.raises(RuntimeError), msctx.context(env_config_path=settings(tmp_path)).watch(net):
        net(torch.ones(1, 4))
    (found,) = written(tmp_path)
    assert found["reason"].startswith("RuntimeError: mat1 and mat2 shapes cannot be multiplied")
    last = found["operators"][-1]
    assert (last["operator"], last["module"], last["took"]) == ("aten::addmm", "1", -2)
    assert last["shapes"] == "Float[2] Float[1x3] Float[5x2]"
    assert found["memory"]["peak_resident_bytes"] > 10**7
    (text,) = tmp_path.glob("out/rank_0/rdr/KERNEL.graph_exec_order.*.txt")
    assert text.read_text().startswith("================== execution order ==================\nexecution_order size: ")


def test_an_error_that_has_no_text(tmp_path: Path) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    def fail() -> None:
        torch.ones(1).add(1)
        raise Mute

    with pytest.raises(Mute), msctx.context(env_config_path=settings(tmp_path)):
        fail()
    (found,) = written(tmp_path)
    assert found["reason"].startswith("Mute: ")


@pytest.mark.parametrize("mode", [1, 2])
def test_a_normal_end(mode: int, tmp_path: Path) -> None:
    with msctx.context(env_config_path=settings(tmp_path, mode), conv_fprop_algo="gemm"):
        nn.functional.conv2d(torch.ones(1, 1, 5, 5), torch.ones(1, 1, 3, 3))
    found = written(tmp_path)
    assert len(found) == mode - 1
    assert (tmp_path / "out" / "rank_0").exists() is bool(found), "no folder without files"
    for one in found:
        assert one["reason"] == "ended"
        assert (one["operators"][-1]["operator"], one["operators"][-1]["algorithm"]) == ("aten::convolution", "gemm")


def test_the_graphs_that_were_compiled_are_named(tmp_path: Path) -> None:
    class Compiled(nn.Linear):
        pass

    net = Compiled(4, 3)
    with msctx.context(env_config_path=settings(tmp_path, 2), mode="GRAPH_MODE").watch(net):
        net(torch.ones(1, 4))
    (found,) = written(tmp_path)
    (graph,) = (one for one in found["graphs"] if "Compiled" in one["function"])
    assert (graph["operators"], graph["failed"]) == (1, "")
    assert graph["id"] in {row.id for row in msctx.graphs()}


@pytest.mark.parametrize("path", ["out", "./out/more"])
def test_a_relative_path_is_not_taken(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "env.json").write_text(json.dumps({"rdr": {"enable": True, "mode": 2, "path": path}}))
    ctx = msctx.context(env_config_path="env.json")
    with pytest.warns(MsctxWarning, match=r"rdr\.path.*absolute paths only; the files go to \./"), ctx:
        torch.ones(3) + 1
    assert [*tmp_path.glob("rank_0/rdr/KERNEL.graph_exec_order.*.json")]
    assert not (tmp_path / "out").exists()


def test_the_working_directory_may_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "env.json").write_text(json.dumps({"rdr": {"enable": True, "mode": 2, "path": "./"}}))
    with msctx.context(env_config_path="env.json"):
        torch.ones(3) + 1
    assert [*tmp_path.glob("rank_0/rdr/KERNEL.graph_exec_order.*.json")]


def test_what_was_hooked_is_put_back(tmp_path: Path) -> None:
    before = sys.excepthook, threading.excepthook
    with msctx.context(env_config_path=settings(tmp_path)):
        assert sys.excepthook is not before[0]
    assert (sys.excepthook, threading.excepthook) == before


@pytest.mark.parametrize("size", ["", "1", "0"])
def test_collectives_are_those_of_torchs_flight_recorder(size: str, tmp_path: Path, run_forked: Any) -> None:
    program = f"""
        import torch, torch.distributed as dist, msctx
        dist.init_process_group("gloo", init_method="file://{tmp_path}/store", rank=0, world_size=1)
        with msctx.context(env_config_path={settings(tmp_path, 2)!r}):
            dist.all_reduce(torch.ones(3))
            dist.broadcast(torch.ones(2, 2), 0)
        dist.destroy_process_group()  # at the end of the process gloo's threads would be stopped at random
    """
    done = run_forked(program, env={"TORCH_FR_BUFFER_SIZE": size} if size else {})
    assert done.returncode == 0, done.stderr
    (found,) = written(tmp_path)
    expected = {"": ["gloo:all_reduce", "gloo:broadcast"], "1": ["gloo:broadcast"], "0": []}[size]
    assert [one["profiling_name"] for one in (found["collectives"] or {}).get("entries", ())] == expected


def test_the_ring_holds_the_last_ones(tmp_path: Path) -> None:
    with msctx.context(env_config_path=settings(tmp_path, 2)):
        x = torch.ones(1)
        for _ in range(1500):
            x = x + 1
        x.exp()
    (found,) = written(tmp_path)
    assert len(found["operators"]) == 1024
    assert found["operators"][-1]["operator"] == "aten::exp"
    assert [row["id"] for row in found["operators"]] == sorted(row["id"] for row in found["operators"])


def test_lists_have_their_shapes_and_what_is_cut_is_marked(tmp_path: Path) -> None:
    with msctx.context(env_config_path=settings(tmp_path, 2)):
        torch.cat([torch.ones(2), torch.ones(3)])
        torch._foreach_add([torch.ones(2), torch.ones(4, 1)], [torch.ones(2), torch.ones(4, 1)])
        torch.cat([torch.ones(12345, 0)] * 13)
        torch.cat([torch.ones(3)] * 13)
    (found,) = written(tmp_path)
    listed = [row["shapes"] for row in found["operators"] if row["operator"] in ("aten::cat", "aten::_foreach_add")]
    shapes = listed[-4:]
    assert shapes[:2] == ["Float[2] Float[3]", "Float[2] Float[4x1] Float[2] Float[4x1]"]
    assert shapes[2] == " ".join(["Float[12345x0]"] * 12) + " ..."
    assert shapes[3] == " ".join(["Float[3]"] * 13)


PROGRAMS = {
    "segfault": ("ctypes.string_at(0)", -signal.SIGSEGV),
    "abort": ("os.abort()", -signal.SIGABRT),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_fatal_signal(name: str, tmp_path: Path, run_forked: Any) -> None:
    end, code = PROGRAMS[name]
    program = f"""
        import ctypes, os, torch, msctx
        torch.ones(1)
        with msctx.context(env_config_path={settings(tmp_path)!r}, conv_fprop_algo="gemm"):
            torch.ones(3).exp()
            torch.nn.functional.conv2d(torch.ones(1, 1, 5, 5), torch.ones(1, 1, 3, 3))
            try:
                torch.ones(2, 3) @ torch.ones(2, 3)
            except RuntimeError:
                pass
            {end}
    """
    done = run_forked(program)
    assert done.returncode == code
    (text,) = tmp_path.glob("out/rank_0/rdr/KERNEL.graph_exec_order.*_fatal.*.txt")
    assert f"fatal signal {-code}, process " in text.read_text()
    found = json.loads(text.with_suffix(".json").read_text())
    assert found["reason"] == f"fatal signal {-code}"
    assert {"id", "step", "began", "took", "thread", "operator", "module", "direction", "shapes", "algorithm"} == found[
        "operators"
    ][-1].keys()
    head, size, _, *_ = text.read_text().splitlines()
    assert (head, size) == (
        "================== execution order ==================",
        f"execution_order size: {len(found['operators'])}",
    )
    rows = re.split(r"^\d+:\n\t", text.read_text(), flags=re.MULTILINE)[1:]
    assert len(rows) == len(found["operators"])
    (exp,) = (row for row in rows if row.startswith("aten::exp\n"))
    assert re.fullmatch(r"aten::exp\n\t-\n\tforward\n\tFloat\[3\]\n\t-\n\t\d+ us\n\tthread \d+\n", exp)
    assert "\n\tgemm\n" in next(row for row in rows if row.startswith("aten::convolution\n"))
    (raised,) = (row for row in rows if "\n\traised\n" in row)
    assert raised.startswith("aten::mm\n")


def test_half_a_file_of_a_fatal_signal_does_not_stay(tmp_path: Path, run_forked: Any) -> None:
    done = run_forked(f"""
        import os, resource, signal, torch, msctx
        with msctx.context(env_config_path={settings(tmp_path)!r}):
            for _ in range(100):
                torch.ones(3).exp()
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (3000, resource.RLIM_INFINITY))
            os.abort()
    """)
    assert done.returncode == -signal.SIGABRT
    assert not [*tmp_path.rglob("*fatal*")]


def test_a_fatal_signal_after_the_block_writes_nothing_where_another_handler_keeps_ours(
    tmp_path: Path, run_forked: Any
) -> None:
    done = run_forked(f"""
        import faulthandler, os, torch, msctx
        os.makedirs({str(tmp_path / "here")!r})
        os.chdir({str(tmp_path / "here")!r})
        with msctx.context(env_config_path={settings(tmp_path)!r}):
            torch.ones(3).exp()
            faulthandler.enable(file=open(os.devnull, "w"))
        os.abort()
    """)
    assert done.returncode == -signal.SIGABRT
    assert not [*(tmp_path / "here").iterdir()]
    assert not [*tmp_path.rglob("*fatal*")]


def test_an_error_under_the_processs_own_context(tmp_path: Path, run_forked: Any) -> None:
    done = run_forked(f"""
        import torch, msctx
        msctx.set_context(env_config_path={settings(tmp_path)!r})
        torch.ones(3).exp()
        1 / 0
    """)
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stderr
    (found,) = written(tmp_path)
    assert found["reason"] == "ZeroDivisionError: division by zero"


@pytest.mark.full
@pytest.mark.parametrize("end", ["sys.exit(0)", "raise ValueError", "os.abort()"])
def test_a_forked_process_writes_nothing_of_its_parents(end: str, tmp_path: Path, run_forked: Any) -> None:
    done = run_forked(f"""
        import os, sys, torch, msctx
        msctx.set_context(env_config_path={settings(tmp_path, 2)!r})
        torch.ones(3).exp()
        if os.fork() == 0:
            {end}
        os.wait()
        print(os.getpid())
    """)
    assert done.returncode == 0, done.stderr
    (file,) = tmp_path.glob("out/rank_0/rdr/*.json")
    assert re.fullmatch(rf"KERNEL\.graph_exec_order\.{done.stdout.strip()}_1\.\d{{14}}\.json", file.name)


def test_a_handled_error_around_the_block_and_a_normal_exit_are_no_failures(tmp_path: Path) -> None:
    try:
        raise ValueError("handled")
    except ValueError:
        with msctx.context(env_config_path=settings(tmp_path)):
            torch.ones(3) + 1
    with pytest.raises(SystemExit), msctx.context(env_config_path=settings(tmp_path)):
        sys.exit(0)
    assert not written(tmp_path)


def test_whoever_keeps_the_hook_writes_nothing_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hook only calls the one before it: here not pytest's, which would warn of an error in a thread."""
    late, passed_on = threading.ExceptHookArgs((ValueError, ValueError("late"), None, None)), []
    monkeypatch.setattr(threading, "excepthook", passed_on.append)
    with msctx.context(env_config_path=settings(tmp_path)):
        kept = threading.excepthook
        threading.excepthook = lambda args: None
    kept(late)
    assert passed_on == [late]
    assert not written(tmp_path)


def test_failures_within_one_second_have_files_of_their_own(tmp_path: Path) -> None:
    for number in range(3):
        with pytest.raises(ValueError, match=str(number)), msctx.context(env_config_path=settings(tmp_path)):
            raise ValueError(str(number))
    assert {found["reason"] for found in written(tmp_path)} == {f"ValueError: {n}" for n in range(3)}


def test_a_stack_overflow(tmp_path: Path, run_forked: Any) -> None:
    done = run_forked(f"""
        import ctypes, torch, msctx
        with msctx.context(env_config_path={settings(tmp_path)!r}):
            torch.ones(3).exp()
            libc = ctypes.CDLL(None)
            compare = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
            import sys; sys.setrecursionlimit(10**8)
            values = (ctypes.c_int * 2)(1, 2)
            deeper = compare(lambda a, b: libc.qsort(values, 2, 4, deeper) or 0)
            libc.qsort(values, 2, 4, deeper)
    """)
    assert done.returncode == -signal.SIGSEGV, done.stderr[-300:]
    assert [*tmp_path.glob("out/rank_0/rdr/KERNEL.graph_exec_order.*_fatal.*.txt")]
