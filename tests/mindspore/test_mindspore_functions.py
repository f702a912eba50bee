"""The functions of MindSpore 2.5 to 2.7: what they set, what can be set once, targets, devices, seeds, and what is absent."""

import random
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
import torch
from samples import example

import msctx
import msctx.mindspore as ms
from msctx import devices
from msctx.errors import DeviceError, MsctxError, MsctxWarning, OptionError, StrictError
from msctx.mindspore.errors import NotSupportedError, OptionRuntimeError, OptionTypeError
from msctx.setter_functions import names

HERE = {n: o for n, o in names("runtime").items() if n == "runtime.dispatch_threads_num"}
OPTIONS = {n: o for n, o in (names("device_context") | HERE).items() if not n.endswith(".op_precision_mode")}
TARGETS = {name: {"gpu": "GPU", "ascend": "Ascend"}.get(name.split(".")[1], "") for name in OPTIONS}


def function(name: str) -> Callable[..., Any]:
    found: Any = ms
    for part in name.split("."):
        found = getattr(found, part)
    return found


def two_values(name: str) -> list[Any]:
    option = OPTIONS[name]
    first = example(option)
    if isinstance(first, bool):
        return [True, False]
    return [*option.choices][:2] if option.choices else [first, first + 1]


@pytest.mark.parametrize("name", OPTIONS)
def test_a_function_sets_its_option_once(name):
    if TARGETS[name]:
        ms.set_context(device_target=TARGETS[name])
    before = msctx.get_context()
    with pytest.raises((OptionTypeError, OptionError)):
        function(name)("nonsense")
    with pytest.raises(TypeError):
        function(name)()
    assert msctx.get_context() == before
    one, other = two_values(name)
    function(name)(one)
    found = msctx.get_context(name, origin=True)
    assert found.origin.startswith(f"ms.{name} at test_mindspore_functions.py:")
    function(name)(one)
    if TARGETS[name] == "GPU":
        function(name)(other)
        return
    with pytest.raises(OptionRuntimeError, match="only once"):
        function(name)(other)
    assert msctx.get_context(name) == found.value
    msctx.reset_context()
    if TARGETS[name]:
        ms.set_context(device_target=TARGETS[name])
    function(name)(other)


@pytest.mark.parametrize("name", [name for name in OPTIONS if TARGETS[name]])
def test_on_another_target_the_value_is_dropped_with_a_warning_at_each_call(name):
    ms.set_context(device_target="CPU")
    for value in (two_values(name)[0], two_values(name)[0], "nonsense"):
        with pytest.warns(MsctxWarning, match=f"{name}.*only with {TARGETS[name]}"):
            function(name)(value)
    assert set(msctx.get_context()) == {"device_target"}
    msctx.set_context(strict=True)
    with pytest.raises(StrictError, match="takes this only with"):
        function(name)(two_values(name)[0])


def test_the_newer_words_win_over_set_context():
    ms.set_context(device_target="GPU", gpu_config={"conv_fprop_algo": "fft"})
    ms.device_context.gpu.op_tuning.conv_fprop_algo(mode="winograd")
    ms.set_context(gpu_config={"conv_fprop_algo": "gemm"})
    assert ms.get_context("conv_fprop_algo") == "winograd"


def test_op_precision_mode(tmp_path):
    ms.set_context(device_target="Ascend")
    name = ms.device_context.ascend.op_precision.op_precision_mode
    with pytest.raises(TypeError):
        name(1)
    with pytest.raises(ValueError, match="cannot be read"):
        name(str(tmp_path / "nothing.ini"))
    (path := tmp_path / "one.ini").write_text("MatMul=high_precision\n")
    name(str(path))


def test_determinism_and_depth():
    for wrong in (1, "ON", None):
        with pytest.raises(TypeError):
            ms.set_deterministic(wrong)  # type: ignore[arg-type]
    ms.set_deterministic(True)
    assert ms.get_context("deterministic") == "ON"
    with pytest.raises(RuntimeError, match="only once"):
        ms.set_deterministic(False)
    ms.set_recursion_limit(5000)
    ms.set_recursion_limit()
    assert ms.get_context("max_call_depth") == 1000
    with pytest.raises(ValueError, match="set_recursion_limit"):
        ms.set_recursion_limit(0)


def test_set_device_and_the_current_one():
    ms.set_device("CPU")
    ms.set_device("CPU", 0)
    found = ms.get_current_device()
    assert (found.device_target, found.device_id, tuple(found)) == ("CPU", 0, ("CPU", 0))
    for other in (("CPU", 1), ("GPU",), ("Ascend", 0)):
        with pytest.raises(RuntimeError, match="only once"):
            ms.set_device(*other)
    ms.set_context(device_target="GPU", gpu_config={"conv_fprop_algo": "fft"})
    assert ms.get_context("device_target") == "CPU", "set_device wins"


def test_set_device_rejects_and_plans(absent):
    for wrong in ((1,), (None,), ("CPU", "0"), ("CPU", 1.0)):
        with pytest.raises(OptionTypeError):
            ms.set_device(*wrong)
    for wrong in (("TPU",), ("CPU", -1), ("CPU", 4096)):
        with pytest.raises(OptionError):
            ms.set_device(*wrong)
    assert not msctx.get_context()
    ms.set_device(absent, 2)
    assert ms.get_current_device() == (absent, 2)
    assert msctx.current().plan.missing


def test_device_counts():
    kinds = {"cpu": ms.device_context.cpu, "cuda": ms.device_context.gpu, "ascend": ms.device_context.ascend}
    for device, kind in kinds.items():
        assert kind.is_available() is (device in devices.here())
        if kind.is_available():
            assert kind.device_count() >= 1
        else:
            with pytest.raises(RuntimeError, match="no such device"):
                kind.device_count()


def test_seeds():
    assert ms.get_seed() is None
    for kind, wrong in ((TypeError, ["1", 1.0, None]), (ValueError, [-1, 2**32])):
        for seed in wrong:
            with pytest.raises(kind):
                ms.manual_seed(seed)
    drawn = []
    for seed in (ms.set_seed, ms.manual_seed):
        assert seed(7) in (None, torch.default_generator)
        drawn.append((random.random(), torch.rand(2).tolist()))
    assert drawn[0] == drawn[1]
    assert ms.get_seed() == msctx.get_context("seed") == 7


@pytest.mark.filterwarnings("error:max_device_memory")
def test_set_memory():
    for kind, wrong in ((TypeError, 4), (ValueError, "0GB")):
        with pytest.raises(kind, match="max_size"):
            ms.runtime.set_memory(max_size=wrong)
    ms.runtime.set_memory("2GB", "3.5GB", "60GB", "O1", "0GB")
    assert ms.get_context("max_device_memory") == 60.0
    assert ms.get_context("memory_optimize_level") == 1
    assert msctx.get_context("mempool_block_size") == 3.5 * 2**30
    with pytest.raises(RuntimeError, match="only once"):
        ms.runtime.set_memory(max_size="60GB")
    msctx.reset_context()
    with pytest.warns(MsctxWarning, match=r"init_size.*nothing like it"):
        ms.runtime.set_memory(init_size="4GB")
    assert not msctx.get_context()


def test_launch_blocking_and_affinity():
    ms.runtime.launch_blocking()
    assert ms.get_context("pynative_synchronize") is True
    ms.runtime.set_cpu_affinity(False)
    with pytest.raises(NotSupportedError):
        ms.runtime.set_cpu_affinity(True, ["0-3"])


MEMORY = ("memory_reserved", "max_memory_reserved", "memory_allocated", "max_memory_allocated")
STREAMS = ("Stream", "Event", "synchronize", "current_stream", "default_stream")


def test_memory_and_streams_on_the_cpu_and_where_there_is_no_device(absent):
    ms.set_context(device_target="CPU")
    assert [getattr(ms.runtime, name)() for name in MEMORY] == [0, 0, 0, 0]
    assert not any(ms.runtime.memory_stats().values())
    assert ms.runtime.empty_cache() is None
    for name in STREAMS:
        with pytest.raises(RuntimeError, match=rf"{name}: device_target is CPU"):
            getattr(ms.runtime, name)()
    ms.set_context(device_target=absent)
    for name in (*MEMORY, *STREAMS, "memory_stats"):
        with pytest.raises(DeviceError, match=absent):
            getattr(ms.runtime, name)()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.cuda
def test_memory_and_streams_of_cuda():
    ms.set_context(device_target="GPU")
    stream = ms.runtime.Stream()
    with ms.runtime.StreamCtx(stream):
        assert ms.runtime.current_stream() == stream
    assert ms.runtime.current_stream() == ms.runtime.default_stream()
    ms.runtime.synchronize()
    x = torch.ones(2**20, device="cuda")
    assert ms.runtime.memory_allocated() >= x.nbytes
    assert ms.runtime.memory_stats()["total_reserved_memory"] >= x.nbytes


PARTS = ("cpu.op_tuning", "ascend.op_debug")
MODULES = ("context", "common", "common.seed", "runtime", "device_context", *(f"device_context.{part}" for part in PARTS))


@pytest.mark.parametrize("name", MODULES)
def test_modules_are_attributes_and_can_be_imported(name):
    found: Any = ms
    for part in name.split("."):
        found = getattr(found, part)
    assert import_module(f"msctx.mindspore.{name}") is found
    for public in getattr(found, "__all__", ()):
        assert getattr(found, public) is not None


@pytest.mark.parametrize(
    ("use", "text"),
    [
        (lambda: ms.set_auto_parallel_context(parallel_mode="x"), r"ms\.set_auto_parallel_context\(\) is not supported"),
        (lambda: ms.context.ParallelMode.DATA_PARALLEL, "DistributedDataParallel or FSDP runs a model in parallel"),
        (lambda: ms.nn.Cell, r"ms\.nn\.Cell .*MindSpore's context.* torch\.nn"),
        (lambda: ms.grad(abs), r"use msctx\.grad, on which grad_for_scalar acts"),
        (lambda: ms.device_context.ascend.op_tuning.aclnn_cache(True), "no such cache"),
        (lambda: ms.runtime.memory_replay(), r"torch\.cuda\.memory"),
    ],
)
def test_what_is_absent_can_be_imported_and_says_why(use, text):
    from msctx.mindspore import JitConfig, ParallelMode, Tensor

    assert all(repr(found).endswith(", not supported by msctx>") for found in (JitConfig, ParallelMode, Tensor))
    with pytest.raises(NotImplementedError, match=text) as caught:
        use()
    assert isinstance(caught.value, MsctxError)
    with pytest.raises(ImportError, match=r"ms\.communication is not supported by msctx: .*use torch\.distributed"):
        import_module("msctx.mindspore.communication.management")


def test_functions_of_msctx_that_load_torch():
    assert (ms.set_dump, ms.parse_print, ms.ops.Print) == (msctx.set_dump, msctx.parse_print, msctx.Print)
    for module in (ms, ms.context, ms.runtime, ms.device_context):
        with pytest.raises(AttributeError, match=r"ms\.([a-z_]*\.)?MemPool is not supported by msctx: .*use torch"):
            _ = module.MemPool
