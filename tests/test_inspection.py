"""What is in effect, what of it may be written down, and how two states differ."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path

import numpy
import pytest
import torch

import msctx
from msctx.errors import FileError
from msctx.state_and_environment import FAMILIES, UNRECORDED, command_line, environment, library_version, read_record, variables
from msctx.switches import SWITCHES


def is_plain(value: object) -> bool:
    if isinstance(value, dict):
        return all(type(k) is str and is_plain(v) for k, v in value.items())
    if isinstance(value, list):
        return all(map(is_plain, value))
    return value is None or type(value) in (bool, int, float, str)


def test_state_is_plain_data() -> None:
    """A state read from a file must equal the state that was written, so there are no tuples either."""
    found = msctx.state()
    assert {name: value for name, value in found.items() if not is_plain(value)} == {}
    assert json.loads(json.dumps(found)) == found


def test_reading_changes_nothing(exact_state: Callable[[], dict[str, object]]) -> None:
    generators = random.getstate(), numpy.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    before, variables = exact_state(), dict(os.environ)
    first, second = msctx.state(), msctx.state()
    assert first == second
    assert list(first) == list(second)
    assert exact_state() == before
    assert dict(os.environ) == variables
    assert (random.getstate(), numpy.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == generators


@pytest.mark.parametrize("name", ["OMP_SCHEDULE", "MKL_CBWR", "NVIDIA_TF32_OVERRIDE", "PYTORCH_JIT", "HCCL_ALGO"])
def test_variables_that_matter_are_shown(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    before = msctx.state()
    monkeypatch.setenv(name, "something")
    assert msctx.diff(before, msctx.state()) == {f"env.{name}": (before.get(f"env.{name}"), "something")}


def test_reading_loads_no_compiler_and_initialises_no_device(passes: Callable[[str], str]) -> None:
    code = """
    import sys
    import msctx
    msctx.state()
    import torch
    print(torch.cuda.is_initialized(), sorted(m for m in ("torch._dynamo", "torch._inductor.config") if m in sys.modules))
    """
    assert passes(code).strip() == "False []"


def test_environment() -> None:
    found = environment()
    assert is_plain(found)
    assert found["libraries"]["torch"] == library_version("torch")
    assert found["devices"]["cpu"] == 1
    assert 1 <= found["cpu_count"] <= (os.cpu_count() or 1)
    assert found["cpu"]
    assert library_version("no-such-library") is None


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ({"x": 1}, {}, {"x": (1, None)}),
        ({}, {"x": 1}, {"x": (None, 1)}),
        ({"b": 1, "a": [1]}, {"a": [2], "b": 0}, {"a": ([1], [2]), "b": (1, 0)}),
    ],
)
def test_diff(a: dict[str, object], b: dict[str, object], expected: dict[str, tuple[object, object]]) -> None:
    assert msctx.diff(a, b) == expected
    assert list(msctx.diff(a, b)) == sorted(expected)


def test_the_folder_of_a_run(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text(json.dumps({"torch.num_threads": 2}))
    assert read_record(tmp_path) == {"torch.num_threads": 2}
    more = {"python": "3.12", "libraries": {"torch": "2.13.0"}, "devices": {"cpu": 1}}
    (tmp_path / "environment.json").write_text(json.dumps(more))
    assert read_record(tmp_path) == {
        "torch.num_threads": 2,
        "environment.python": "3.12",
        "environment.libraries.torch": "2.13.0",
        "environment.devices.cpu": 1,
    }


def test_records_that_cannot_be_read(tmp_path: Path) -> None:
    def write(name: str, data: bytes) -> Path:
        (tmp_path / name).write_bytes(data)
        return tmp_path / name

    broken = tmp_path / "run"
    broken.mkdir()
    (broken / "state.json").write_text("[1]")
    empty = tmp_path / "empty"
    empty.mkdir()
    for path, word in (
        (tmp_path / "missing.json", "No such file"),
        (empty, "without state.json"),
        (broken, "JSON object"),
        (write("list.json", b"[1, 2]"), "JSON object"),
        (write("text.json", b"{'a': 1}"), "is not JSON"),
        (write("binary.json", b"\xff\xfe\x00"), "is not JSON"),
    ):
        with pytest.raises(FileError, match=word) as error:
            read_record(path)
        (problem,) = error.value.problems
        assert problem.where in (str(path), str(path / "state.json"))


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


def test_a_command_line_is_recorded_without_the_arguments_of_the_entry() -> None:
    words = ["run", "deterministic=ON", f"args.token={SECRET}\n{SECRET}", "--sweep", f"args.key={SECRET},b", "--json"]
    assert command_line(words) == ["run", "deterministic=ON", "args.token=…", "--sweep", "args.key=…", "--json"]
    assert command_line([f"--sweep=args.key={SECRET}", "--", "--token", SECRET]) == ["--sweep=args.key=…", "--", "…"]
    for key in ("args", "experiment.args", "experiment.args.token", "experiment"):
        assert command_line([f"{key}={{token: {SECRET}}}"]) == [f"{key}=…"]


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
