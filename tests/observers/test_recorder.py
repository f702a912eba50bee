"""env_config_path.rdr: the last operators are on disk when a program fails."""

import json
import re
import signal
import sys
from contextlib import nullcontext, suppress
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


@pytest.mark.parametrize("mode", [1, 2])
def test_a_normal_end(mode: int, tmp_path: Path) -> None:
    with msctx.context(env_config_path=settings(tmp_path, mode), conv_fprop_algo="gemm"):
        nn.functional.conv2d(torch.ones(1, 1, 5, 5), torch.ones(1, 1, 3, 3))
    found = written(tmp_path)
    assert len(found) == mode - 1
    assert (tmp_path / "out").exists() is bool(found), "no folder without files"
    for one in found:
        assert one["reason"] == "ended"
        assert (one["operators"][-1]["operator"], one["operators"][-1]["algorithm"]) == ("aten::convolution", "gemm")


@pytest.mark.parametrize("path", ["out", "./"])
def test_a_relative_path_other_than_the_working_directory_is_not_taken(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "env.json").write_text(json.dumps({"rdr": {"enable": True, "mode": 2, "path": path}}))
    told = pytest.warns(MsctxWarning, match=r"rdr\.path.*absolute paths only; the files go to \./")
    with nullcontext() if path == "./" else told, msctx.context(env_config_path="env.json"):
        torch.ones(3) + 1
    assert [*tmp_path.glob("rank_0/rdr/KERNEL.graph_exec_order.*.json")]
    assert not (tmp_path / "out").exists()


def test_the_last_1024_operators_are_kept(tmp_path: Path) -> None:
    with msctx.context(env_config_path=settings(tmp_path, 2)):
        x = torch.ones(1)
        for _ in range(1500):
            x = x + 1
        torch.cat([torch.ones(2), torch.ones(4, 0).view(0)] + [torch.ones(3)] * 14)
        torch.cat([torch.ones(3)] * 17)
    (found,) = written(tmp_path)
    assert len(found["operators"]) == 1024
    first, second = (row["shapes"] for row in found["operators"] if row["operator"] == "aten::cat")
    assert first.startswith("Float[2] Float[0] Float[3]")
    assert second == " ".join(["Float[3]"] * 16) + " ..."


@pytest.mark.parametrize(("end", "code"), [("1 / 0", 1), ("os.abort()", -signal.SIGABRT)])
def test_the_end_of_a_program(end: str, code: int, tmp_path: Path, run_forked: Any) -> None:
    """An exception that nobody catches writes the files; on a fatal signal there are the stacks."""
    done = run_forked(f"""
        import os, torch, msctx
        msctx.set_context(env_config_path={settings(tmp_path)!r})
        torch.ones(3).exp()
        if os.fork() == 0:
            raise ValueError  # it has its parent's operators only
        os.wait()
        {end}
    """)
    assert done.returncode == code
    assert [found["reason"] for found in written(tmp_path)] == ["ZeroDivisionError: division by zero"] * (code == 1)
    assert re.search("Fatal Python error: Aborted|ZeroDivisionError", done.stderr)


def test_an_error_that_is_handled_around_the_block_and_a_normal_exit_are_no_failures(tmp_path: Path) -> None:
    with suppress(SystemExit):
        try:
            raise ValueError("handled")
        except ValueError:
            with msctx.context(env_config_path=settings(tmp_path)):
                torch.ones(3) + 1
        with msctx.context(env_config_path=settings(tmp_path)):
            sys.exit(0)
    assert not written(tmp_path)
