"""op_timeout: an operator that runs too long ends the process with the stacks; nothing else does."""

import os
from pathlib import Path
from typing import Any

import pytest

from msctx.observers import errors_overflow_recorder_watchdog

SLEEPS = """
    import time, torch, msctx
    @torch.library.custom_op("test_watchdog::sleep", mutates_args=())
    def sleep(x: torch.Tensor, seconds: float) -> torch.Tensor:
        time.sleep(seconds)
        return x.clone()
    sleep(torch.ones(1), 0.0)
    from torch.utils._python_dispatch import TorchDispatchMode
    class Slow(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            time.sleep(SECONDS)
            return function(*args, **(kwargs or {}))
    def pack(x):
        time.sleep(SECONDS)
        return x
    hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x)
"""


@pytest.fixture
def sleeping(run_forked: Any) -> Any:
    """Run code after SLEEPS."""
    return lambda code: run_forked(SLEEPS + code)


def test_it_ends_the_process_with_the_stacks(sleeping: Any) -> None:
    done = sleeping("""
    with msctx.context(op_timeout=1):
        sleep(torch.ones(1), 60.0)
    """)
    assert done.returncode == errors_overflow_recorder_watchdog.EXIT_CODE
    assert "op_timeout: test_watchdog::sleep has run for more than 1 s in thread" in done.stderr
    assert "most recent call first" in done.stderr


@pytest.mark.parametrize("inside", ["Slow()", "hooks"])
def test_an_operator_that_python_calls_inside_another_is_watched(inside: str, sleeping: Any, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")  # that nobody writes to
    done = sleeping(f"""
    SECONDS = 0
    with msctx.context(op_timeout=1), {inside}:
        torch.from_file({str(tmp_path / "fifo")!r}, shared=False, size=1)
    """)
    assert done.returncode == errors_overflow_recorder_watchdog.EXIT_CODE, done.stderr
    assert "op_timeout: aten::from_file has run for more than 1 s in thread" in done.stderr


@pytest.mark.full
def test_many_operators_what_is_none_and_what_a_parent_runs_take_their_time(sleeping: Any) -> None:
    done = sleeping("""
    SECONDS = 2.5
    with msctx.context(op_timeout=1):
        for _ in range(4):
            sleep(torch.ones(1), 0.5)
        time.sleep(2)
        with hooks:  # what Python does inside an operator is not the operator's
            torch.ones(3, requires_grad=True).exp()
        with Slow():
            torch.ones(3)
        with msctx.context(op_timeout=0):
            sleep(torch.ones(1), 2.5)
    sleep(torch.ones(1), 2.5)
    import os, threading
    with msctx.context(op_timeout=100):
        thread = threading.Thread(target=lambda: sleep(torch.ones(1), 4.0))
        thread.start()
        time.sleep(0.5)
        if (child := os.fork()) == 0:  # it is not ended for what its parent runs
            with msctx.context(op_timeout=1):
                for _ in range(20):
                    torch.ones(2) + 1
                    time.sleep(0.1)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        thread.join()
    print("done")
    """)
    assert (done.returncode, done.stdout.strip()) == (0, "done"), done.stderr
