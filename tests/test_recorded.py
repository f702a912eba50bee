"""Secrets of the environment and of the command line stand in no record."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import msctx
from msctx.recorded import FAMILIES, UNRECORDED, command_line, variables
from msctx.switches import SWITCHES

SECRET = "hunter2"


@pytest.mark.parametrize("family", [*FAMILIES, "MSCTX"])
def test_what_may_be_a_secret_is_not_recorded(family: str) -> None:
    name = f"{family}_API_TOKEN"
    assert variables({name: SECRET, "PATH": SECRET, "AWS_SECRET": SECRET}) == {name: UNRECORDED}
    assert variables({f"{family}_URL": f"https://me:{SECRET}@host"}) == {f"{family}_URL": UNRECORDED}


def test_what_changes_the_numerics_is_recorded() -> None:
    known = {
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "MSCTX_GPU_CONFIG__CONV_ALLOW_TF32": "false",
        "MSCTX_ISA": "avx2",
        "MSCTX_PRESET": "fast",
        "NVIDIA_TF32_OVERRIDE": "0",
        "PYTHONHASHSEED": "1",
        "TORCHINDUCTOR_DETERMINISTIC": "1",
    }
    assert variables(known) == known


def test_the_variables_that_switches_set_are_listed() -> None:
    switches = {name.removeprefix("env."): "1" for name in msctx.state() if name.startswith("env.") and name in SWITCHES}
    assert variables(switches) == switches


def test_a_secret_in_the_environment_is_shown_by_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_API_TOKEN", SECRET)
    assert SECRET not in json.dumps(msctx.state())
    assert msctx.state()["env.TORCH_API_TOKEN"] == UNRECORDED


@pytest.mark.parametrize("program", ["/usr/bin/msctx", "msctx", str(Path(msctx.__file__).parent / "__main__.py")])
def test_our_own_command_line_is_recorded_without_the_arguments_of_the_entry(program: str) -> None:
    words = ["run", "x.yaml", "deterministic=ON", f"args.token={SECRET}\n{SECRET}", "--sweep", f"args.key={SECRET},b", "--json"]
    assert command_line([program, *words]) == [
        program, "run", "x.yaml", "deterministic=ON", "args.token=…", "--sweep", "args.key=…", "--json",
    ]  # fmt: skip
    assert command_line([program, f"--sweep=args.key={SECRET}"]) == [program, "--sweep=args.key=…"]
    for key in ("args", "experiment.args", "experiment.args.token", "experiment"):
        assert command_line([program, f"{key}={{token: {SECRET}}}"]) == [program, f"{key}=…"]


def test_of_another_program_its_name_and_the_names_of_its_flags_are_recorded() -> None:
    assert command_line(["train.py", "--lr", "0.1", f"--token={SECRET}", SECRET]) == ["train.py", "--lr", "…", "--token=…", "…"]
    assert command_line([]) == [""]


def test_a_run_records_no_secret_and_for_its_user_alone(tmp_path: Path, passes: Callable[..., str]) -> None:
    (tmp_path / "job.py").write_text("def main(token):\n    return {'length': len(token)}\n")
    words = ["run", "job.yaml", f"args.token={SECRET}", "--out", "out", "--json"]
    (tmp_path / "job.yaml").write_text("experiment:\n  entry: job.py:main\n")
    program = f"""
        import os, sys
        from msctx import __main__
        os.umask(0o022)
        os.chdir({str(tmp_path)!r})
        sys.argv = {["msctx", *words]!r}
        __main__.main()
    """
    out = passes(program, env={"TORCH_API_TOKEN": SECRET, "CUDA_PASSWORD": SECRET})
    assert json.loads(out)["length"] == len(SECRET)
    files = sorted((tmp_path / "out").iterdir())
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    # the configuration repeats the run, and needs what the entry was given
    assert [path.name for path in files if SECRET in path.read_text()] == ["config.yaml"]
    assert json.loads((tmp_path / "out" / "environment.json").read_text())["argv"][1:] == [
        "run", "job.yaml", "args.token=…", "--out", "out", "--json",
    ]  # fmt: skip
