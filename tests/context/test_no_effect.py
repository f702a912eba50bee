"""Options without effect: warnings, strict, invalid values, what came too late."""

import copy
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from context_helpers import State, context_module, threads

import msctx
from msctx import devices
from msctx.errors import MsctxWarning, StrictError

without_cuda = pytest.mark.skipif("cuda" in devices.here(), reason="there is a CUDA device")
REFUSED: dict[str, Any] = {"parallel_speed_up_json_path.enable_begin_end_inline_opt": True}
FAILING: list[Any] = [
    pytest.param(REFUSED, r"enable_begin_end_inline_opt=.*refused", id="refused-everywhere"),
    pytest.param({"enable_dump": True}, r"enable_dump=True.*inert", id="inert"),
    pytest.param({"memory_offload": "ON"}, r"memory_offload.*refused", id="refused", marks=without_cuda),
    pytest.param({"op_wait_timeout": 60}, r"op_wait_timeout.*refused", id="flat", marks=without_cuda),
]  # fmt: skip


@pytest.mark.parametrize(("options", "text"), FAILING)
def test_one_warning_for_each_option_without_effect(options: dict[str, Any], text: str) -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("default")
        for _ in range(2):
            with msctx.context(runtime_num_threads=1, **options):
                assert threads() == 1
                with msctx.context(max_call_depth=50):
                    pass
                is_inert = "inert" in text
                (name,) = options
                assert (msctx.get_context(name) == options[name]) is (name in msctx.get_context()) is is_inert, (
                    "refused: not in force"
                )
    assert [w.category for w in told] == [MsctxWarning]
    assert [w.filename for w in told] == [__file__], "the warning does not point at the user's line"
    assert re.search(text, str(told[0].message))


@pytest.mark.parametrize(("options", "text"), FAILING)
def test_strict_refuses_before_anything_changes(base: None, exact_state: State, options: dict[str, Any], text: str) -> None:
    before = exact_state()
    generators = torch.get_rng_state().tolist()
    ctx = msctx.context(strict=True, runtime_num_threads=1, seed=5, **options)
    with pytest.raises(StrictError, match=text):
        ctx.__enter__()
    with pytest.raises(StrictError, match=text):
        msctx.set_context(strict=True, runtime_num_threads=1, seed=5, **options)
    assert exact_state() == before
    assert torch.get_rng_state().tolist() == generators
    assert context_module.stack.scopes == []
    assert msctx.get_context() == {}
    with pytest.raises(StrictError, match=text), msctx.context(strict=True), msctx.context(**options):
        pytest.fail("strict of the outer scope was forgotten")


def test_strict_names_everything_at_once() -> None:
    with pytest.raises(StrictError) as caught:
        msctx.context(strict=True, enable_dump=True, runtime_num_threads=1, **REFUSED).__enter__()
    assert "enable_begin_end_inline_opt=True" in str(caught.value)
    assert "enable_dump=True" in str(caught.value)
    assert "runtime_num_threads" not in str(caught.value)


def test_a_warning_turned_into_an_error_leaves_nothing_behind(exact_state: State) -> None:
    before = exact_state()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(MsctxWarning):
            msctx.context(runtime_num_threads=1, **REFUSED).__enter__()
    assert exact_state() == before
    assert context_module.stack.scopes == []


@pytest.mark.parametrize(
    "options",
    [{"max_call_depth": 10**9}, {"max_call_depth": 10**30}, {"runtime_num_threads": 2**31}, {"runtime_num_threads": 10**30}],
    ids=str,
)
def test_numbers_that_no_machine_takes(base: None, exact_state: State, options: dict[str, int]) -> None:
    before = exact_state()
    try:
        with msctx.context(deterministic="ON", **options):
            pass
    except msctx.MsctxError:
        pass
    assert exact_state() == before


def test_one_warning_per_option_and_reason_whatever_the_value() -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with msctx.context(conv_allow_tf32=False), msctx.context(conv_allow_tf32=True):
            pass
    assert len(told) == 1


def entered(ctx: Any) -> None:
    with ctx:
        pass


@pytest.mark.parametrize(
    ("use", "count"),
    [
        (lambda ctx: None, 1),
        (lambda ctx: ctx(print), 0),
        (lambda ctx: ctx.plan, 0),
        (lambda ctx: ctx.bind(print), 0),
        (entered, 0),
    ],
)
def test_a_context_that_nobody_enters_or_looks_at_is_reported(use: Any, count: int) -> None:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        use(msctx.context(runtime_num_threads=1))
        use(msctx.context())
        copy.deepcopy(kept := msctx.context(runtime_num_threads=1))
    assert ["was never entered, so its options did nothing" in str(w.message) for w in found] == [True] * count
    assert kept.layers


def test_a_global_that_a_program_never_enters_is_reported_at_its_end(tmp_path: Path) -> None:
    (program := tmp_path / "program.py").write_text("""
import multiprocessing, msctx
ctx, used = msctx.context(seed=1), msctx.context(seed=2)
if __name__ == "__main__":
    with used:
        (worker := multiprocessing.get_context("spawn").Process(target=print)).start()
        worker.join()
""")
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, check=True)
    assert (done.stderr.count("was never entered"), "Error" in done.stderr) == (1, False), done.stderr
