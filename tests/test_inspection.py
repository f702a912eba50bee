"""state(), diff(), environment() and the records they are kept in."""

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
from msctx.inspection import environment, library_version, read_record


def is_plain(value: object) -> bool:
    if isinstance(value, dict):
        return all(type(k) is str and is_plain(v) for k, v in value.items())
    if isinstance(value, list):
        return all(map(is_plain, value))
    return value is None or type(value) in (bool, int, float, str)


# --- state ------------------------------------------------------------------------------------------------------------


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


def test_a_context_is_visible() -> None:
    before = msctx.state()
    with msctx.context(deterministic="ON", max_call_depth=77):
        inside = msctx.state()
    changed = msctx.diff(before, inside)
    assert changed["torch.deterministic"] == (False, True)
    assert changed["torch.nn.max_call_depth"] == (None, 77)
    assert set(changed) <= {
        "torch.deterministic",
        "torch.deterministic.fill_uninitialized_memory",
        "torch.inductor.deterministic",
        "torch.mkldnn.deterministic",
        "torch.nn.max_call_depth",
        "python.recursion_limit",
        "torch.cudnn.deterministic",
        "env.CUBLAS_WORKSPACE_CONFIG",
        "env.NCCL_ALGO",
    }
    assert msctx.diff(before, msctx.state()).keys() <= {"env.CUBLAS_WORKSPACE_CONFIG"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_flushed_denormals_are_seen(dtype: torch.dtype) -> None:
    if not torch.set_flush_denormal(True):
        pytest.skip("this CPU cannot flush denormals")
    try:
        torch.set_default_dtype(dtype)
        found = msctx.state()
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_flush_denormal(False)
    assert found["torch.flush_denormal"] is True
    assert msctx.state()["torch.flush_denormal"] is False


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


# --- diff -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ({}, {}, {}),
        ({"x": 1}, {"x": 1}, {}),
        ({"x": 1}, {"x": 2}, {"x": (1, 2)}),
        ({"x": 1}, {}, {"x": (1, None)}),
        ({}, {"x": 1}, {"x": (None, 1)}),
        ({"x": None}, {}, {}),
        ({"b": 1, "a": [1]}, {"a": [2], "b": 0}, {"a": ([1], [2]), "b": (1, 0)}),
    ],
)
def test_diff(a: dict[str, object], b: dict[str, object], expected: dict[str, tuple[object, object]]) -> None:
    assert msctx.diff(a, b) == expected
    assert list(msctx.diff(a, b)) == sorted(expected)


# --- records ----------------------------------------------------------------------------------------------------------


def test_the_folder_of_a_run(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text(json.dumps({"torch.num_threads": 2}))
    assert read_record(tmp_path) == {"torch.num_threads": 2}
    more = {"python": "3.12", "libraries": {"torch": "2.13.0"}, "argv": ["a"], "devices": {"cpu": 1}}
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
        (write("number.json", b"5"), "JSON object"),
        (write("text.json", b"{'a': 1}"), "is not JSON"),
        (write("nothing.json", b""), "is not JSON"),
        (write("binary.json", b"\xff\xfe\x00"), "is not JSON"),
        (write("deep.json", b'{"a": ' * 200_000), "is not JSON"),
    ):
        with pytest.raises(FileError, match=word) as error:
            read_record(path)
        (problem,) = error.value.problems
        assert problem.where in (str(path), str(path / "state.json"))
