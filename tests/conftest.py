"""Watches every test for what it leaves behind, and runs code in a fresh interpreter where a test could not be undone."""

import gc
import importlib
import itertools
import os
import random
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fake_device
import hypothesis
import numpy
import pytest
import sklearn.datasets  # noqa: F401 (sets OpenMP's variables when it is first loaded: here, not inside a test)
import torch
from interpreter import Interpreter
from old_precision import old_flags, precision_nodes, put_precision_back
from torch import _C
from torch.nn.modules import module as nn_module

import msctx
from msctx.cli import main
from msctx.context import ledger
from msctx.context.ledger import HELD
from msctx.context.process_wide import BASE
from msctx.native import build, tuning_file, tuning_in_core
from msctx.options.layer_sources import PREFIX, RESERVED
from msctx.switches import EXACT, SWITCHES
from msctx.torch_config_overrides import override, put_override

pytest_plugins = ["tiers"]  # which test belongs to which tier, and what a tier may start

# In a fresh process cuDNN's nodes are in a state that torch cannot set again (told in the plan, tested in processes of their own)
_C._set_cudnn_allow_tf32(True)

# A shell makes what it starts in the background ignore Ctrl-C, which tests send; pytest's workers and their children inherit it
signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes is the machine's affair
_slow = hypothesis.settings(deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.register_profile("msctx", _slow)
hypothesis.settings.load_profile("msctx")


def pytest_collection_finish() -> None:
    """From now on gc.collect() searches what tests make, and not each time, for a second, all that was imported for them."""
    gc.collect()
    gc.freeze()


ROOT = Path(__file__).resolve().parents[1]
context_module = importlib.import_module("msctx.context")  # the attribute msctx.context is the function

for _name in [n for n in os.environ if n.startswith(PREFIX) and n not in RESERVED]:
    del os.environ[_name]  # a developer's own settings are not what the tests are about

_CACHES = tempfile.TemporaryDirectory()
os.environ["ASCEND_CACHE_PATH"] = _CACHES.name  # op_compiler_cache_mode keeps nothing in the home folder

NOT_COMPARED = {
    *(name for name, switch in SWITCHES.items() if switch.restore not in EXACT or name.startswith("rng.")),
    *("torch.cuda.current_device", "torch.npu.current_device"),  # None until a test initialises the device
    "env.NCCL_ALGO",  # `msctx run` sets it for the process, as other variables
    "env.TORCHINDUCTOR_CACHE_DIR",  # Dynamo sets it when it is loaded
    "env.PYTORCH_NVML_BASED_CUDA_CHECK",  # Lightning does
}


def inductor_flag() -> tuple[Any, str]:
    """What other threads see of inductor's flag, and what this thread has set for itself."""
    config = sys.modules.get("torch._inductor.config")
    if config is None:
        return os.environ.get("TORCHINDUCTOR_DETERMINISTIC") == "1", "unset"
    own = override(config, "deterministic")
    return config._config["deterministic"].default, repr(own) if isinstance(own, bool) else "unset"


def snapshot() -> dict[str, Any]:
    """msctx.state() without what cannot be restored, and what a switch may leave behind unseen."""
    return {key: value for key, value in msctx.state().items() if key not in NOT_COMPARED} | {
        "the hooks of all modules": (len(nn_module._global_forward_pre_hooks), len(nn_module._global_forward_hooks)),
        "the calls of all modules": (
            nn_module.Module.__call__,
            nn_module.Module._wrapped_call_impl,
            nn_module.Module._wrapped_call_impl.__code__,
        ),
        "modes of the thread": (_C._len_torch_function_stack(), _C._len_torch_dispatch_stack()),
        "settings of the allocators": getattr(_C, "_accelerator_getAllocatorSettings", str)(),
        "handler of SIGINT": signal.getsignal(signal.SIGINT),
        "the old precision flags": old_flags(),
        "precision nodes": precision_nodes(),
    }


INDUCTORS_LIMIT = 2000
"""To which inductor raises Python's recursion limit when it first compiles, in whichever test that is."""


def left_open() -> list[str]:
    """Scopes and settings of msctx that are still in force."""
    return [
        *(f"{scope.context.origin} is still open" for scope in context_module.stack.scopes),
        *(f"{key} is still held by {[h.name for h in holds]}" for key, holds in HELD.items() if holds),
        *(f"the {level} layer is still in force" for level in BASE.levels),
    ]


def clean_up(before: dict[str, Any]) -> None:
    """Take a leaking test's state away, so that it does not fail the tests after it."""
    with suppress(Exception):
        msctx.reset_context()
    BASE.__init__()
    holds = {id(hold): hold for holds in HELD.values() for hold in holds}.values()
    for record in [record for hold in reversed([*holds]) for record in reversed(hold.records.values())]:
        with suppress(Exception):  # what a test broke is put right below
            record.switch.put_back(record.found)
    HELD.clear()
    context_module.stack.scopes.clear()
    for name, (value, _) in msctx.diff(before, snapshot()).items():
        if name in SWITCHES and SWITCHES[name].write is not None:
            SWITCHES[name].write(value)
    put_precision_back(before["the old precision flags"], before["precision nodes"])


@pytest.fixture(scope="module")
def only_new_objects_are_searched() -> Iterator[None]:
    """gc.collect() searches what the tests of the file make: for files that call it in each test."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()  # what was in use then may be garbage now


@pytest.fixture(autouse=True)
def nothing_leaks() -> Iterator[None]:
    """Fails the test that does not leave the process as it found it."""
    generators = random.getstate(), numpy.random.get_state(), torch.get_rng_state()
    before, limit = snapshot(), sys.getrecursionlimit()
    yield
    if sys.getrecursionlimit() == INDUCTORS_LIMIT and "torch._inductor.compile_fx" in sys.modules:
        sys.setrecursionlimit(limit)
    random.setstate(generators[0])
    numpy.random.set_state(generators[1])
    torch.set_rng_state(generators[2])
    leaks = [f"{key}: {was!r} became {now!r}" for key, (was, now) in msctx.diff(before, snapshot()).items()] + left_open()
    if leaks:
        clean_up(before)
        pytest.fail("this test leaked:\n" + "\n".join(f"  {leak}" for leak in leaks), pytrace=False)
    msctx.reset_context()
    BASE.read_environment = False  # the next test reads MSCTX_*


@pytest.fixture(autouse=True)
def own_tuning_file(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What one test measures is known to no other, and not to the user either. The file is not there yet."""
    path = tmp_path_factory.getbasetemp() / f"tuning-{next(_numbers)}.json"
    monkeypatch.setattr(tuning_file, "IN_CACHE", path)
    monkeypatch.setattr(tuning_in_core, "is_busy", lambda: False)  # whatever else this machine does
    return path


_numbers = itertools.count()


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """What torch says of GPUs that are made up, as name, major and minor of each; for stamps alone."""

    def have(*found: tuple[str, int, int]) -> None:
        properties = [SimpleNamespace(name=name, major=major, minor=minor) for name, major, minor in found]
        monkeypatch.setattr(torch.cuda, "device_count", lambda: len(properties))
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: properties[number])
        monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91900)
        monkeypatch.setattr(torch.version, "cuda", "13.0")
        monkeypatch.setattr(tuning_file, "driver_version", lambda: "580.1")
        tuning_file.stamp.cache_clear()

    yield have
    tuning_file.stamp.cache_clear()


@pytest.fixture
def held() -> Callable[..., AbstractContextManager[ledger.Hold]]:
    """A with-block over assignments themselves, for switches that no option on this machine sets."""

    @contextmanager
    def hold(assignments: dict[str, Any], *, strict: bool = False) -> Iterator[ledger.Hold]:
        taken = ledger.apply(assignments, ledger.Hold("with-block of a test"), strict=strict)
        try:
            yield taken
        finally:
            ledger.undo(taken, strict=strict)

    return hold


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For programs under options drawn at random: some write into the working directory unless told otherwise."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def one_example() -> Callable[[], AbstractContextManager[None]]:
    """A with-block around each example of a property: one that fails must not spoil the next."""

    @contextmanager
    def example() -> Iterator[None]:
        before = snapshot()
        try:
            yield
        except BaseException:
            clean_up(before)
            raise
        finally:
            put_precision_back(before["the old precision flags"], before["precision nodes"])

    return example


@pytest.fixture
def exact_state() -> Callable[[], dict[str, Any]]:
    """The whole state to the last bit: for comparisons before and after a scope."""
    return lambda: snapshot() | {"inductor": inductor_flag()}


@pytest.fixture
def plain_state() -> Callable[[], dict[str, Any]]:
    """The same without inductor's flag of this thread alone, which Dynamo sets whenever it compiles (trap 8)."""
    return snapshot


@pytest.fixture
def afresh() -> Iterator[None]:
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


@pytest.fixture
def torch_as_found() -> Iterator[None]:
    """For a test that sets torch's globals by hand: puts them back."""
    precision = old_flags(), precision_nodes()
    deterministic = _C._get_deterministic_algorithms(), _C._get_deterministic_algorithms_warn_only()
    flags = [(write, read()) for read, write in _FLAGS]
    variable = os.environ.get("TORCHINDUCTOR_DETERMINISTIC")
    config = sys.modules.get("torch._inductor.config")
    inductor = (config._config["deterministic"].default, override(config, "deterministic")) if config else None
    yield
    if (config := sys.modules.get("torch._inductor.config")) is not None:
        from torch.utils._config_module import _UNSET_SENTINEL

        config._config["deterministic"].default, own = inductor or (variable == "1", _UNSET_SENTINEL)
        put_override(config, "deterministic", own)
    os.environ.pop("TORCHINDUCTOR_DETERMINISTIC", None)
    if variable is not None:
        os.environ["TORCHINDUCTOR_DETERMINISTIC"] = variable
    for write, value in flags:
        write(value)
    _C._set_deterministic_algorithms(deterministic[0], warn_only=deterministic[1])
    put_precision_back(*precision)


_FLAGS = [
    (_C._get_deterministic_fill_uninitialized_memory, _C._set_deterministic_fill_uninitialized_memory),
    (_C._get_cudnn_enabled, _C._set_cudnn_enabled),
    (_C._get_cudnn_deterministic, _C._set_cudnn_deterministic),
    (_C._get_cudnn_benchmark, _C._set_cudnn_benchmark),
    (_C._get_mkldnn_deterministic, _C._set_mkldnn_deterministic),
    (torch.get_num_threads, torch.set_num_threads),
    (sys.getrecursionlimit, sys.setrecursionlimit),
    (lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()), lambda v: torch.set_anomaly_enabled(*v)),
]

RunPython = Callable[..., "subprocess.CompletedProcess[str]"]


def _variables(more: dict[str, str] | None) -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")} | (more or {})


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    folder = ROOT / "bench"
    monkeypatch.syspath_prepend(str(folder))
    for name in {path.stem for path in folder.glob("*.py")} & set(sys.modules):
        monkeypatch.delitem(sys.modules, name)
    return importlib.import_module


def _run_forked(
    interpreter: Interpreter, code: str, *, env: dict[str, str] | None = None, timeout: float = 120
) -> "subprocess.CompletedProcess[str]":
    return interpreter.run(textwrap.dedent(code), _variables(env), timeout)


def _passed(done: "subprocess.CompletedProcess[str]") -> str:
    if done.returncode != 0:
        pytest.fail(f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}", pytrace=False)
    return done.stdout


@pytest.fixture
def passed() -> Callable[..., str]:
    """What a process printed that has ended; fails with all it said if it failed."""
    return _passed


@pytest.fixture(scope="session")
def native_core() -> None:
    """Where there can be one, it is built now: that takes minutes, which no time limit of a test is to count."""
    if not build.obstacle():
        build.build()


@pytest.fixture(scope="session")
def torch_interpreter(native_core: None) -> Iterator[Interpreter]:
    with closing(Interpreter("import torch")) as interpreter:
        yield interpreter


@pytest.fixture
def run_forked(torch_interpreter: Interpreter) -> RunPython:
    """Run code in a process of its own, which has imported torch and nothing of msctx: seconds less than ``passes_fresh``."""
    return lambda code, **more: _run_forked(torch_interpreter, code, **more)


@pytest.fixture
def passes(run_forked: RunPython) -> Callable[..., str]:
    """Like ``run_forked``; fails with the code's traceback if it fails, and returns what it printed."""
    return lambda code, **more: _passed(run_forked(code, **more))


@pytest.fixture
def script(torch_interpreter: Interpreter) -> Callable[..., "subprocess.CompletedProcess[str]"]:
    """Run a script as ``python PATH`` does in the working directory, in a process of its own that has imported torch already."""

    def run(path: Path, *, timeout: float = 120) -> "subprocess.CompletedProcess[str]":
        start = f"""
        import os, runpy, sys
        os.chdir({os.getcwd()!r})
        sys.argv, sys.path[0] = [{str(path)!r}], {str(path.parent)!r}
        runpy.run_path({str(path)!r}, run_name="__main__")
        """
        return _run_forked(torch_interpreter, start, timeout=timeout)

    return run


@pytest.fixture
def passes_fresh(native_core: None) -> Callable[..., str]:
    """Like ``passes``, in an interpreter that has imported nothing: for what is decided at the first import."""

    def run(code: str, *, env: dict[str, str] | None = None, timeout: float = 120) -> str:
        command = [sys.executable, "-c", textwrap.dedent(code)]
        more = {"env": _variables(env), "cwd": ROOT, "timeout": timeout}
        return _passed(subprocess.run(command, capture_output=True, text=True, check=False, **more))

    return run


@pytest.fixture(scope="session")
def far_library() -> str:
    """The accelerator of the tests, compiled once (some 10 s) and then kept in the cache."""
    if why := fake_device.obstacle():
        pytest.skip(f"there is no device far: {why}")
    return str(fake_device.library())


@pytest.fixture(scope="session")
def far_interpreter(far_library: str, native_core: None) -> Iterator[Interpreter]:
    interpreter = Interpreter("import fake_device\nfake_device.prepare()")
    yield interpreter
    interpreter.close()


@pytest.fixture
def far(far_interpreter: Interpreter) -> RunPython:
    """Like ``passes``, where torch has an accelerator: the device far, whose memory is the host's (see fake_device.py)."""
    return lambda code, **more: _passed(_run_forked(far_interpreter, code, **more))


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str, str]]:
    """Run a command of msctx in this process: its exit code, what it printed, and its errors."""
    monkeypatch.setenv("COLUMNS", "160")

    def run(*words: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            main([*map(str, words)])
        out, err = capsys.readouterr()
        assert "/msctx/cli/" not in err, "no traceback of ours"
        return int(end.value.code or 0), out, err

    return run


# --- threads ----------------------------------------------------------------------------------------------------------


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@pytest.fixture
def threads() -> Callable[[int], AbstractContextManager[None]]:
    """A with-block in which torch uses so many threads."""
    return _threads


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Where threads are not the subject: waiting for others at each small problem takes longer than all the rest."""
    with _threads(1):
        yield
