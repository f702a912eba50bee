"""Cases run on a machine with the real torch_npu over the recorder, each in a process of its own."""

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import machine
import pytest
from interpreter import Interpreter

Run = Callable[..., str]
END = "\nimport os, sys\nsys.stdout.flush()\nos._exit(0)"
"""Python takes two seconds to take torch_npu apart; the fresh processes do."""
PREPARE = "import torch, torch_npu, msctx\nfrom boundary import calls, fail"
COMPILE = """
x = torch.ones(4, 4).npu()
def compiled(config=None):
    torch._dynamo.reset()
    calls()
    backend = torchair.get_npu_backend(compiler_config=config or torchair.CompilerConfig())
    try:
        torch.compile(lambda a: a @ a, backend=backend)(x)
    except Exception as error:
        found = calls()
        if found[-1:] != ["CompileGraph()"]:  # there the recorder fails; all that fails before is a fault
            raise
        return found
    raise AssertionError("the recorder compiles nothing")
def sent(kind, found):
    pairs = [call.removeprefix(kind)[1:-1].partition("=") for call in found if call.startswith(kind + "(")]
    return {key: value for key, _, value in pairs}
def recorded():
    calls()
    with msctx.context(jit_compile="true"):  # the only operators that torch_npu records
        x @ x
    return calls("aclGenGraph")
"""


@pytest.fixture(scope="session")
def ascend_machine(native_core):
    """The variables of a process on such a machine, by what it is to have; compiled and fetched once."""
    try:
        machine.recorder()
    except machine.NotHere as why:
        pytest.skip(f"there is no Ascend machine: {why}")

    def variables(*, env: dict[str, str] | None = None, **it: Any) -> dict[str, str]:
        found = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
        return found | machine.variables(**it) | (env or {})

    return variables


@pytest.fixture(scope="session")
def _interpreters(ascend_machine):
    """One for each chip and version of CANN, since torch_npu requests some versions when it is imported; *more*: prepared too."""
    found: dict[tuple[str, str, str], Interpreter] = {}

    def interpreter(soc: str, cann: str, more: str) -> Interpreter:
        if (soc, cann, more) not in found:
            found[soc, cann, more] = Interpreter(f"{PREPARE}\n{more}", ascend_machine(soc=soc, cann=cann))
        return found[soc, cann, more]

    yield interpreter
    for one in found.values():
        one.close()


@pytest.fixture
def ascend(ascend_machine, _interpreters, passed):
    """Run a case, which has torch, torch_npu, msctx, calls() and fail(); returns what it printed. No device is initialised yet.

    *prepare* is code that many cases begin with, and that initialises no device either: imports.
    """

    def run(
        code: str, *, soc: str = "Ascend910B1", cann: str = "8.5.0", timeout: float = 120, prepare: str = "", **more: Any
    ) -> str:
        variables = ascend_machine(soc=soc, cann=cann, **more)
        return passed(_interpreters(soc, cann, prepare).run(textwrap.dedent(code) + END, variables, timeout))

    return run


@pytest.fixture
def graphs(ascend):
    return lambda code: ascend(code, prepare="import torch._dynamo, torch._inductor.compile_fx, torchair")


@pytest.fixture
def compiling(graphs):
    return lambda code: graphs(COMPILE + code)


@pytest.fixture
def ascend_fresh(ascend_machine, passed):
    """The same for a command of Python's, such as ``-m msctx doctor`` or ``-c CODE``, where nothing has been imported."""

    def run(*command: str, timeout: float = 300, cwd: Path = machine.ROOT, **more: Any) -> str:
        words = [sys.executable, *command[:-1], textwrap.dedent(command[-1])]
        how: dict[str, Any] = {"env": ascend_machine(**more), "cwd": cwd, "timeout": timeout}
        return passed(subprocess.run(words, capture_output=True, text=True, check=False, **how))

    return run
