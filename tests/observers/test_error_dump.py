"""enable_exception_dump: what went into an operator that raised is on disk, with a script that calls it again."""

from __future__ import annotations

import json
import math
import re
import runpy
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from interpreter import Interpreter
from torch import nn

import msctx


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("NPU_COLLECT_PATH", "ASCEND_WORK_PATH"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


Ran = subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def torch_interpreter(native_core: None) -> Iterator[Interpreter]:
    """Scripts call torch.use_deterministic_algorithms, which loads inductor for two seconds: here that is loaded once."""
    with closing(Interpreter("import torch._inductor")) as interpreter:
        yield interpreter


@pytest.fixture
def replayed(here: Path, script: Callable[[Path], Ran]) -> Callable[..., Ran]:
    """Runs the one script that was written, as if the tensors had been on *device*."""

    def run(device: str = "") -> Ran:
        (path,) = here.glob("extra-info/*.replay.py")
        if device:
            described = path.with_name(path.name.replace(".replay.py", ".json"))
            described.write_text(described.read_text().replace('"device": "cpu"', f'"device": "{device}"'))
        return script(path)

    return run


def fails(level: int = 1) -> None:
    net = nn.Sequential(nn.Linear(4, 3), nn.Linear(5, 2))
    ctx = msctx.context(session={"enable_exception_dump": level}).watch(net)
    with pytest.raises(RuntimeError, match="cannot be multiplied"), ctx:
        net(torch.ones(1, 4))


@pytest.mark.filterwarnings("ignore:aten..addmm raised")
def test_the_script_fails_in_the_same_way(here: Path, replayed: Callable[..., Ran]) -> None:
    fails()
    (script,) = here.glob("extra-info/addmm.1.*.replay.py")
    found = json.loads(script.with_name(script.name.replace(".replay.py", ".json")).read_text())
    assert (found["operator"], found["module"], found["direction"]) == ("aten::addmm", "1", "forward")
    assert [t["argument"] for t in found["inputs"]] == ["self", "mat1", "mat2"]
    assert np.load(script.parent / found["inputs"][1]["file"]).shape == (1, 3)
    assert "mat1 and mat2 shapes cannot be multiplied (1x3 and 5x2)" in replayed().stderr


def test_the_report_names_the_script() -> None:
    with pytest.warns(
        msctx.errors.MsctxWarning, match=r"aten::addmm raised; its inputs are in .*extra-info; .* python .*replay\.py"
    ):
        fails()


@pytest.mark.filterwarnings("ignore:aten..")
@pytest.mark.parametrize(
    ("level", "variables", "place"),
    [
        (1, {}, "extra-info"),
        (2, {}, "extra-info/data-dump/0"),
        (2, {"ASCEND_WORK_PATH": "work"}, "work/extra-info/data-dump/0"),
        (1, {"ASCEND_WORK_PATH": "work"}, "work/extra-info"),
        (2, {"ASCEND_WORK_PATH": "work", "NPU_COLLECT_PATH": "collected"}, "collected/extra-info"),
    ],
)
def test_places(level: int, variables: dict[str, str], place: str, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, str(here / value))
    fails(level)
    assert [*here.glob(f"{place}/addmm.*.replay.py")]


@pytest.mark.filterwarnings("ignore:aten..")
@pytest.mark.parametrize(("level", "variable", "expected"), [(1, "", ["out"]), (2, "", []), (2, "collected", ["out"])])
def test_what_the_operator_writes_to_is_an_output_of_the_full_dump(
    level: int, variable: str, expected: list[str], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if variable:
        monkeypatch.setenv("NPU_COLLECT_PATH", str(here / variable))
    with pytest.raises(RuntimeError), msctx.context(session={"enable_exception_dump": level}):
        torch.mm(torch.ones(2, 3), torch.ones(2, 3), out=torch.full((2, 2), 7.0))
    (path,) = here.rglob("mm.*.json")
    found = json.loads(path.read_text())
    assert [t["argument"] for t in found["inputs"]] == ["self", "mat2", "out"]
    assert [t["argument"] for t in found["outputs"]] == expected
    for t in found["outputs"]:
        assert np.array_equal(np.load(path.parent / t["file"]), np.full((2, 2), 7.0))


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda: torch.ones(2, 3, device="meta"), "meta"),
        (lambda: torch.ones(2, 3).to_sparse(), "sparse"),
        (lambda: torch.ones(2, 3).to_sparse_csr(), "sparse"),
    ],
)
def test_a_tensor_without_saved_values_is_named_in_a_sentence(
    make: Callable[[], torch.Tensor], kind: str, here: Path, replayed: Callable[..., Ran]
) -> None:
    with pytest.raises(RuntimeError), msctx.context(session={"enable_exception_dump": 1}):
        torch.mm(make(), torch.ones(2, 3, device=make().device))
    error = replayed().stderr.strip()
    expected = rf"input 0 \(\w+, float32\[2x3\]\) cannot be made again: a {kind} tensor's values are not saved"
    assert re.fullmatch(expected, error), error


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:aten..")
@pytest.mark.parametrize("number", [2, 1.5, True, 1j])
def test_a_number_of_python_is_one_again(number: complex, here: Path, replayed: Callable[..., Ran]) -> None:
    """Of an int8 tensor and a number the dtype depends on whether that is a tensor, and on its type."""
    with pytest.raises(RuntimeError) as raised, msctx.context(session={"enable_exception_dump": 1}):
        torch.div(torch.ones(3, dtype=torch.int8), number, out=torch.ones(3, dtype=torch.int8))
    error = replayed().stderr
    assert str(raised.value) in error, error
    assert "result type ComplexFloat" in error if isinstance(number, complex) else "result type Float" in error


@pytest.mark.filterwarnings("ignore:aten..")
@pytest.mark.parametrize(
    ("device", "reports"),
    [
        ("meta", ["must have same reduction dim"]),  # its own error
        (
            "vulkan:7",
            ["there is no device vulkan:7 here (", "): the CPU stands for it", "shapes cannot be multiplied (2x3 and 2x3)"],
        ),
    ],
)
def test_tensors_are_made_again_where_they_were_or_on_the_cpu(
    device: str, reports: list[str], here: Path, replayed: Callable[..., Ran]
) -> None:
    with pytest.raises(RuntimeError), msctx.context(session={"enable_exception_dump": 1}):
        torch.mm(torch.ones(2, 3), torch.ones(2, 3))
    error = replayed(device).stderr
    assert all(error.count(report) == 1 for report in reports), error


@pytest.mark.filterwarnings("ignore:aten..")
def test_arguments_of_every_kind_come_back(here: Path, replayed: Callable[..., Ran]) -> None:
    with pytest.raises(RuntimeError), msctx.context(session={"enable_exception_dump": 1}):
        torch.ops.aten.convolution(
            torch.ones(1, 3, 4, 4), torch.ones(2, 2, 3, 3), None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1
        )
    (found,) = [json.loads(path.read_text()) for path in here.glob("extra-info/convolution.*.json")]
    assert found["attributes"]["stride"] == [1, 1]
    assert found["attributes"]["bias"] is None
    assert found["attributes"]["transposed"] is False
    again = replayed()
    assert "to have 2 channels, but got 3 channels instead" in again.stderr


def test_a_full_disk_leaves_no_part_of_a_dump(here: Path, passes: Callable[..., str]) -> None:
    """There is room for the first tensor alone, for both, or for all but the script."""
    passes(f"""
        import os, pathlib, resource, warnings, torch, msctx
        from msctx import notices
        os.chdir({str(here)!r})
        torch.ones(1).sum().item()
        operands = torch.ones(2, 3), torch.ones(4, 100)
        for limit in (100, 2000, 5000):
            notices.forget()
            with warnings.catch_warnings(record=True) as caught, msctx.context(session={{"enable_exception_dump": 1}}):
                warnings.simplefilter("always")
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
                try:
                    torch.mm(*operands)
                except RuntimeError as error:
                    assert "cannot be multiplied" in str(error), error
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            (told,) = (str(one.message) for one in caught)
            assert "(File too large); those files are missing" in told, (limit, told)
            assert [*map(str, pathlib.Path().rglob("*"))] == ["extra-info"], limit
    """)


def test_nothing_is_written_where_nothing_raises_or_level_is_0(here: Path) -> None:
    with msctx.context(session={"enable_exception_dump": 1}):
        torch.ones(1) + 1
    fails(0)
    assert not [*here.iterdir()]


@pytest.mark.filterwarnings("ignore:aten..")
def test_an_operator_that_only_calls_others_is_written_where_none_of_these_raised(here: Path) -> None:
    with msctx.context(session={"enable_exception_dump": 1}):
        with pytest.raises(RuntimeError, match="subscript"):
            torch.einsum("ij,jkl->ik", torch.ones(2, 3), torch.ones(3, 2))
        with pytest.raises(RuntimeError, match="cannot be multiplied"):
            nn.functional.linear(torch.ones(2, 3), torch.ones(2, 2))
    assert {path.name.partition(".")[0] for path in here.glob("extra-info/*.replay.py")} == {"einsum", "mm"}


@pytest.mark.filterwarnings("ignore:aten..")
def test_code_that_catches_errors_without_end_fills_no_disk(here: Path) -> None:
    with msctx.context(session={"enable_exception_dump": 1}):
        for _ in range(50):
            with pytest.raises(RuntimeError):
                torch.mm(torch.ones(2, 3), torch.ones(2, 3))
    assert len([*here.glob("extra-info/*.replay.py")]) == 20


def unpool() -> torch.Tensor:
    return nn.functional.max_unpool2d(torch.ones(1, 1, 2, 2), torch.zeros(1, 1, 2, 2, dtype=torch.int64), 2)


def deterministically(run: Callable[[], object]) -> None:
    torch.use_deterministic_algorithms(True)
    try:
        run()
    finally:
        torch.use_deterministic_algorithms(False)


def without_gradients(mode: Callable[[], Any]) -> None:
    leaf = torch.ones(3, requires_grad=True)
    with mode():
        leaf.add_(torch.ones(2))


def of_inference() -> torch.Tensor:
    with torch.inference_mode():
        return torch.ones(3)


def under_autocast() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        torch.mm(torch.ones(2, 3), torch.ones(3, 2, dtype=torch.float64))


def into_its_own_input() -> None:
    x = torch.arange(4.0)
    torch.add(x[1:], 1, out=x[:-1])


def view_of(
    base: torch.Tensor, view: Callable[[torch.Tensor], torch.Tensor], mode: Callable[[], Any] = nullcontext
) -> torch.Tensor:
    with mode():
        return view(base)


class Passed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view(-1)


def leaf() -> torch.Tensor:
    return torch.ones(2, 2, requires_grad=True)


VIEWS = {
    "of a leaf, without gradients": lambda: view_of(leaf(), lambda x: x.split(1)[1], torch.no_grad).add_(1),
    "of a computed tensor, without gradients": lambda: view_of(leaf() * 2, lambda x: x[1], torch.no_grad).add_(1),
    "of a plain tensor, without gradients": lambda: view_of(torch.ones(2, 2), torch.t, torch.no_grad).add_(leaf()),
    "of a leaf, in inference mode": lambda: view_of(leaf(), torch.t, torch.inference_mode).add_(1),
    "one of several, of a leaf": lambda: view_of(leaf(), lambda x: x.unbind()[1]).add_(1),
    "one of several, of a computed tensor": lambda: view_of(leaf() * 2, lambda x: x.unbind()[1]).add_(1),
    "one of several, of a plain tensor": lambda: view_of(torch.ones(2, 2), lambda x: x.split(1)[1]).mul_(leaf()),
    "of a view of a leaf": lambda: leaf().t()[1].add_(1),
    "of a function": lambda: Passed.apply(leaf() * 1).add_(1),
    "conjugated": lambda: torch.view_as_real(torch.ones(2, dtype=torch.complex64).conj()),
    "negated": lambda: torch.ones(3, dtype=torch.complex64).conj().imag.view(torch.int32),
}


@pytest.mark.filterwarnings("ignore:aten..")
@pytest.mark.parametrize("name", VIEWS)
def test_a_view_is_made_again_as_it_was(name: str, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError) as raised, msctx.context(session={"enable_exception_dump": 1}):
        VIEWS[name]()
    (script,) = here.glob("extra-info/*.replay.py")
    monkeypatch.setattr(sys, "argv", [str(script)])
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(RuntimeError) as again:
        runpy.run_path(str(script), run_name="__main__")
    expected = re.sub("of Passed(|Backward) is", r"of _View\1 is", str(raised.value))  # the function itself is the program's
    assert str(again.value) == expected


@pytest.mark.filterwarnings("ignore:aten..")
def test_values_are_saved_as_the_operator_read_them(here: Path) -> None:
    """Where memory holds other signs, the script makes such memory again."""
    given = torch.tensor([1 + 2j, 3 - 4j], dtype=torch.complex64).conj().imag
    with pytest.raises(RuntimeError), msctx.context(session={"enable_exception_dump": 1}):
        given.add_(torch.ones(3))
    (path,) = here.glob("extra-info/add_.*.input.0.npy")
    assert np.array_equal(np.load(path), [-2, 4])
    (script,) = here.glob("extra-info/*.replay.py")
    made = runpy.run_path(str(script))
    found = json.loads(script.with_name(script.name.replace(".replay.py", ".json")).read_text())
    again = made["_Inputs"](found, script.parent)[0]
    assert again.is_neg()
    assert torch.equal(again, given)


@pytest.mark.filterwarnings("ignore:aten..")
@pytest.mark.parametrize(
    ("name", "run"), [("linalg_cholesky", torch.linalg.cholesky), ("linalg_inv", torch.linalg.inv)], ids=["cholesky", "inv"]
)
def test_where_a_check_of_the_result_raises_what_went_into_the_operator_is_saved(
    name: str, run: Any, here: Path, replayed: Callable[..., Ran]
) -> None:
    matrix = torch.tensor([[1.0, 2.0], [2.0, 4.0]]).neg()
    with pytest.raises(RuntimeError) as raised, msctx.context(session={"enable_exception_dump": 1}):
        run(matrix)
    (path,) = here.glob(f"extra-info/{name}.*.input.0.npy")
    assert np.array_equal(np.load(path), matrix)
    assert str(raised.value).splitlines()[0] in replayed().stderr


FAILING = {
    "strides": lambda: torch.randn(3, 4).t().view(12),
    "an expanded tensor": lambda: torch.ones(1).expand(3).add_(1),
    "a leaf": lambda: torch.ones(3, requires_grad=True).add_(1),
    "a view of a leaf": lambda: torch.ones(3, requires_grad=True)[1:].add_(1),
    "a computed tensor": lambda: (torch.ones(3, requires_grad=True) * 2).add_(torch.ones(2)),
    "an inference tensor": lambda: of_inference().add_(1),
    "no_grad": lambda: without_gradients(torch.no_grad),
    "inference_mode": lambda: without_gradients(torch.inference_mode),
    "deterministic algorithms": lambda: deterministically(unpool),
    "autocast": under_autocast,
    "shared memory": into_its_own_input,
    "another dtype": lambda: torch.ones(3).to(torch.uint16) // torch.ones(3).to(torch.uint16),
    "an operator that only calls others": lambda: torch.einsum("ij,jk->ik", torch.ones(2, 3), torch.ones(2, 3)),
    "a complex number": lambda: torch.ones(3).add_(torch.ones(3), alpha=complex(1, -math.inf)),
    "out=": lambda: torch.mm(torch.ones(2, 3), torch.ones(2, 3), out=torch.empty(2, 2)),
}


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:aten..")
@pytest.mark.parametrize("name", FAILING)
def test_each_failure_comes_back(name: str, here: Path, replayed: Callable[..., Ran]) -> None:
    with pytest.raises((RuntimeError, NotImplementedError)) as raised, msctx.context(session={"enable_exception_dump": 1}):
        FAILING[name]()
    again = replayed()
    assert again.returncode != 0
    assert str(raised.value).splitlines()[0] in again.stderr


@pytest.mark.filterwarnings("ignore:aten..")
def test_what_deterministic_except_leaves_out_is_left_out_again(here: Path, replayed: Callable[..., Ran]) -> None:
    ctx = msctx.context(session={"enable_exception_dump": 1}, deterministic="ON", deterministic_except="max_unpool2d")
    with pytest.raises(RuntimeError, match="Found an invalid max index: 99"), ctx:
        nn.functional.max_unpool2d(torch.ones(1, 1, 2, 2), torch.full((1, 1, 2, 2), 99), 2)
    assert "Found an invalid max index: 99" in replayed().stderr


# --- operators of others ------------------------------------------------------------------------------------------------

OPERATORS = """
    import torch
    library = torch.library.Library("test_error_dump", "DEF")
    library.define("draws(Tensor x, *, Generator? generator=None) -> Tensor")
    def draws(x, *, generator=None):
        raise ValueError(f"drew {torch.rand(1, generator=generator).item()!r}")
    library.impl("draws", draws, "CPU")
    @torch.library.custom_op("test_error_dump::raises", mutates_args=())
    def raises(x: torch.Tensor) -> torch.Tensor:
        raise ValueError(f"got {x.tolist()}")
"""
PROGRAM = """
    generator = torch.Generator().manual_seed(5)
    torch.rand(3, generator=generator)
    with msctx.context(session={"enable_exception_dump": 1}):
        try:
            OPERATOR
        except ValueError as error:
            print(error)
"""
CALLS = {
    "custom_op": ("got", "torch.ops.test_error_dump.raises(torch.arange(3))"),
    "library": ("drew", "torch.ops.test_error_dump.draws(torch.ones(1), generator=generator)"),
}


def ran(folder: Path, *command: object, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *map(str, command)], capture_output=True, text=True, check=False, cwd=folder, **more)


@pytest.mark.full
@pytest.mark.parametrize("kind", CALLS)
def test_the_script_imports_the_module_of_a_custom_operator(kind: str, here: Path) -> None:
    """Also the generator that it draws from is as it was before the call."""
    package = here / "packages" / "mine"
    package.mkdir(parents=True)
    (package / "operators.py").write_text(textwrap.dedent(OPERATORS))
    program = "import sys; sys.path.append('packages'); import torch, msctx, mine.operators\n"
    error = ran(here, "-c", program + textwrap.dedent(PROGRAM.replace("OPERATOR", CALLS[kind][1]))).stdout.strip()
    (script,) = here.rglob("*.replay.py")
    again = ran(script.parent, script.name)
    assert error.startswith(CALLS[kind][0])
    assert f"ValueError: {error}" in again.stderr, again.stderr


@pytest.mark.full
@pytest.mark.parametrize("kind", CALLS)
def test_the_script_names_the_program_that_registers_an_operator(kind: str, here: Path) -> None:
    program = here / "program.py"
    guarded = textwrap.indent(textwrap.dedent(PROGRAM.replace("OPERATOR", CALLS[kind][1])), "    ")
    program.write_text(textwrap.dedent(OPERATORS) + f"if __name__ == '__main__':\n    import msctx\n{guarded}")
    error = ran(here, program).stdout.strip()
    (script,) = here.rglob("*.replay.py")
    again = ran(here, script)
    operator = CALLS[kind][1].partition("(")[0].removeprefix("torch.ops.").replace(".", "::")
    assert f"{operator} is not known here. It was registered by {program}. To import" in again.stderr
    again = ran(here, script, program.name)
    assert error.startswith(CALLS[kind][0])
    assert f"ValueError: {error}" in again.stderr, again.stderr


# --- workspaces -------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:aten..")
def test_a_workspace_for_which_there_is_no_memory(here: Path, script: Callable[[Path], Ran]) -> None:
    """Its size, the algorithm that asked for it, and what this had of it; all is given back."""
    x, weight, problems = torch.randn(8, 64, 64, 64), torch.randn(64, 64, 3, 3), []
    with msctx.context(max_device_memory="60MB", session={"enable_exception_dump": 1}, conv_fprop_algo="fft"):
        for _ in range(5):
            with pytest.raises(RuntimeError) as raised:
                torch.conv2d(x, weight, padding=1)
            problems.append(str(raised.value).partition(" The cap is")[0])
    assert len({*problems}) == 1, problems  # as much is in use each time
    path, *others = here.glob("extra-info/*.json")
    assert len(others) == 4
    found = json.loads(path.read_text())
    workspace = found["workspace"]
    assert (found["algorithm"], workspace["algorithm"], workspace["provider"]) == ("fft", "fft", "msctx")
    assert workspace["bytes"] > 60e6
    assert workspace["blocks"]
    for block in workspace["blocks"]:
        saved = np.load(here / "extra-info" / block["file"])
        assert (saved.dtype, saved.shape) == (np.uint8, (block["bytes"],))
    files = {block["file"] for block in workspace["blocks"]}
    assert len(files) == len(workspace["blocks"])
    assert not [*here.glob("extra-info/.*")]
    again = script(path.with_suffix(".replay.py"))
    assert (again.returncode, problems[0].partition(". ")[0] in again.stderr) == (1, True), again.stderr
    needs = f"with a workspace of {workspace['bytes']} bytes; when it raised, it had "
    assert again.stderr.startswith(f"fft of msctx computed it, {needs}")
    assert "called under msctx.context(conv_fprop_algo='fft', device_target='CPU', max_device_memory=" in again.stderr


@pytest.mark.filterwarnings("ignore:aten..repeat")
@pytest.mark.parametrize("cap", ["16MB", "11.45MB"])
def test_an_operator_that_a_cap_refused_memory_is_refused_it_again(cap: str, here: Path, replayed: Callable[..., Ran]) -> None:
    """With what it could have beside its inputs: a part of what it needs, or next to nothing."""
    with msctx.context(max_device_memory=cap, session={"enable_exception_dump": 1}):
        x, kept = torch.ones(1000, 1000), torch.ones(2000, 1000)
        with pytest.raises(torch.OutOfMemoryError, match="tried to allocate") as raised:
            x.repeat(2, 1)
        assert kept.numel()
    again = replayed()
    assert (again.returncode, str(raised.value).partition(". ")[0] in again.stderr) == (1, True), again


@pytest.mark.filterwarnings("ignore:aten..")
def test_an_operator_that_raises_after_one_that_lacked_memory_gets_all_it_wants(here: Path) -> None:
    x = torch.ones(1000, 1000)
    with msctx.context(max_device_memory="1MB", session={"enable_exception_dump": 1}):
        with pytest.raises(torch.OutOfMemoryError):
            x.exp()
        with pytest.raises(RuntimeError):
            torch.mm(x, x[1:])
    options = {path.name.split(".")[0]: json.loads(path.read_text())["options"] for path in here.glob("extra-info/*.json")}
    assert options == {"exp": {"device_target": "CPU", "max_device_memory": f"{2**20}B"}, "mm": {}}


@pytest.mark.filterwarnings("ignore:aten..exp")
def test_each_block_with_a_cap_that_refused_is_in_what_is_written(here: Path) -> None:
    x = torch.ones(1000, 1000)
    with msctx.context(session={"enable_exception_dump": 1}):
        for _ in range(3):
            with pytest.raises(torch.OutOfMemoryError), msctx.context(max_device_memory="1MB"):
                x.exp()
    found = [json.loads(path.read_text())["options"] for path in here.glob("extra-info/*.json")]
    assert found == [{"device_target": "CPU", "max_device_memory": f"{2**20}B"}] * 3


@pytest.mark.filterwarnings("ignore:aten..add")
@pytest.mark.parametrize("options", [{"aoe_tune_mode": "offline"}, {"conv_fprop_algo": "performance"}])
def test_nothing_is_recorded_or_measured_when_an_operator_is_called_again(
    options: dict[str, str], here: Path, replayed: Callable[..., Ran]
) -> None:
    with msctx.context(session={"enable_exception_dump": 1}, **options), pytest.raises(RuntimeError):
        torch.add(torch.ones(2), torch.ones(3))
    again = replayed()
    assert ("must match the size of tensor b" in again.stderr, "msctx.context" in again.stderr) == (True, False)


@pytest.mark.filterwarnings("ignore:aten..")
@pytest.mark.parametrize("of", ["torch", "msctx"])
def test_other_operators_show_no_workspace(of: str, here: Path) -> None:
    """PyTorch's; and a convolution that is refused, because an algorithm of ours asks for more than is allowed."""
    x, options = torch.randn(2, 3, 16, 16), {"conv_workspace_limit": 0} if of == "msctx" else {}
    ctx = msctx.context(session={"enable_exception_dump": 1}, conv_fprop_algo="fft", fallback="error", **options)

    def computes() -> None:
        torch.conv2d(x, torch.randn(4, 3, 3, 3))
        torch.mm(torch.ones(2, 3), torch.ones(2, 3))

    with pytest.raises(RuntimeError, match="above conv_workspace_limit" if options else "cannot be multiplied"), ctx:
        computes()
    (path,) = here.glob("extra-info/*.json")
    workspace = json.loads(path.read_text())["workspace"]
    assert workspace.pop("note").startswith("No kernel of msctx ran")
    assert workspace == {"bytes": None, "algorithm": "", "provider": "torch", "blocks": []}


def test_a_kernel_of_ours_that_has_ended_did_not_raise(here: Path) -> None:
    @torch.library.custom_op("workspaces::fails_later", mutates_args=())
    def fails_later(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        torch.nn.functional.conv2d(x, w)
        raise ValueError("of the operator itself")

    ctx = msctx.context(session={"enable_exception_dump": 1}, conv_fprop_algo="gemm", fallback="error")
    with pytest.warns(msctx.errors.MsctxWarning, match="fails_later raised"), pytest.raises(ValueError, match="itself"), ctx:
        fails_later(torch.randn(1, 3, 8, 8), torch.randn(2, 3, 3, 3))
    (path,) = (one for one in here.glob("extra-info/fails_later.*.json"))
    assert json.loads(path.read_text())["workspace"]["bytes"] is None


def test_an_operator_of_ours_in_compiled_code_is_called_again(here: Path, replayed: Callable[..., Ran]) -> None:
    net = nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU()).eval()
    x = torch.randn(8, 64, 64, 64)
    options = {"mode": "GRAPH_MODE", "conv_fprop_algo": "fft", "fallback": "error", "max_device_memory": "60MB"}
    ctx = msctx.context(session={"enable_exception_dump": 1}, **options)
    with (
        torch.no_grad(),
        pytest.warns(msctx.errors.MsctxWarning, match="convolution raised"),
        pytest.raises(RuntimeError, match="tried to allocate") as raised,
        ctx,
    ):
        net(x)
    (script,) = here.glob("extra-info/*.replay.py")
    found = json.loads(script.with_name(script.name.replace(".replay.py", ".json")).read_text())
    assert found["operator"] == "msctx::convolution"
    again = replayed()
    assert (again.returncode, str(raised.value).partition(". ")[0] in again.stderr) == (1, True), again.stderr


def test_a_program_that_catches_the_error_has_as_much_memory_as_without(here: Path) -> None:
    @torch.library.custom_op("workspaces::falls_back", mutates_args=())
    def falls_back(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        try:
            return torch.conv2d(x, w, padding=1)
        except RuntimeError:
            return torch.empty(11 << 20)

    x, w = torch.randn(8, 64, 64, 64), torch.randn(64, 64, 3, 3)
    with msctx.context(max_device_memory="60MB", conv_fprop_algo="fft", session={"enable_exception_dump": 1}):
        assert falls_back(x, w).numel() == 11 << 20
