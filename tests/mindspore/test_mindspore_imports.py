"""All the ways in which MindSpore's names are imported; what is missing says so; what loading costs."""

import copy
import inspect
import pydoc
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest

import msctx.mindspore as ms
from msctx.mindspore.errors import NotCarriedOut

MODULES = [
    "context",
    "runtime",
    "device_context",
    *(f"device_context.{name}" for name in ("cpu", "gpu", "ascend", "cpu.op_tuning", "gpu.op_tuning", "gpu.op_precision")),
    *(f"device_context.ascend.{name}" for name in ("op_tuning", "op_precision", "op_debug")),
]


@pytest.mark.parametrize("name", MODULES)
def test_modules_are_attributes_and_can_be_imported(name: str) -> None:
    found: Any = ms
    for part in name.split("."):
        found = getattr(found, part)
    assert import_module(f"msctx.mindspore.{name}") is found
    assert found.__doc__


def test_mindspores_ways_to_import() -> None:
    import msctx.mindspore.device_context.gpu.op_tuning
    from msctx.mindspore.device_context.ascend import op_precision
    from msctx.mindspore.device_context.gpu.op_tuning import conv_wgrad_algo

    from msctx.mindspore import context
    from msctx.mindspore.context import get_context, set_context
    from msctx.mindspore.runtime import set_memory

    assert (context.set_context, context.get_context) == (set_context, get_context) == (ms.set_context, ms.get_context)
    assert op_precision is ms.device_context.ascend.op_precision
    assert conv_wgrad_algo is msctx.mindspore.device_context.gpu.op_tuning.conv_wgrad_algo
    assert set_memory is ms.runtime.set_memory


def test_constants() -> None:
    assert (ms.GRAPH_MODE, ms.PYNATIVE_MODE) == (ms.context.GRAPH_MODE, ms.context.PYNATIVE_MODE) == (0, 1)
    assert (ms.STRICT, ms.COMPATIBLE, ms.LAX) == (ms.context.STRICT, ms.context.COMPATIBLE, ms.context.LAX) == (0, 1, 2)
    assert (ms.context.RELEASE, ms.context.DEBUG) == (0, 1)


def test_the_decorator_can_be_passed_by() -> None:
    assert callable(ms.set_context.__wrapped__)
    assert ms.set_context.__name__ == ms.set_context.__qualname__ == "set_context"


def test_set_context_shows_its_own_docstring() -> None:
    assert ms.set_context.__doc__.startswith("Set options for the process, with MindSpore's names")
    assert ms.set_context.__doc__ in inspect.getsource(sys.modules["msctx.mindspore.context"])
    assert inspect.getdoc(ms.set_context) in pydoc.plaintext.document(ms.set_context).replace("\n    ", "\n")


ABSENT = [
    "ParallelMode",
    *(f"{verb}_{what}_context" for verb in ("set", "get", "reset") for what in ("auto_parallel", "ps")),
    "set_offload_context",
    "get_offload_context",
]


def test_absent_names_can_be_imported() -> None:
    from msctx.mindspore import JitConfig, ParallelMode
    from msctx.mindspore.context import get_auto_parallel_context, set_ps_context

    for found in (JitConfig, ParallelMode, get_auto_parallel_context, set_ps_context):
        assert repr(found).endswith(", not carried out by msctx>")
    for name in ABSENT:
        assert getattr(ms, name) is getattr(ms.context, name)
        assert {name} <= {*ms.__all__} & {*ms.context.__all__}


@pytest.mark.parametrize("name", [*ABSENT, "JitConfig"])
def test_absent_names_raise_when_they_are_used(name: str) -> None:
    found = getattr(ms, name)
    why = r"ms\.jit takes" if "Jit" in name else "memory_offload" if "offload" in name else r"torch\.distributed with"
    for use, what in ((lambda: found(parallel_mode="x"), r"\(\)"), (lambda: found.DATA_PARALLEL, r"\.DATA_PARALLEL")):
        with pytest.raises(NotCarriedOut, match=f"ms.{name}{what} is not carried out by msctx: .*{why}"):
            use()
    assert repr(found) == f"<ms.{name}, not carried out by msctx>"
    assert not hasattr(found, "__wrapped__")
    assert found.__doc__ in pydoc.plaintext.document(found)
    assert repr(copy.copy(found)) == repr(found)


@pytest.mark.parametrize("module", [ms, *(import_module(f"msctx.mindspore.{name}") for name in MODULES)])
def test_public_names_are_there_and_documented(module: Any) -> None:
    for name in getattr(module, "__all__", ()):
        value = getattr(module, name)
        assert isinstance(value, int) or inspect.getdoc(value)


@pytest.mark.parametrize(
    ("look_up", "text"),
    [
        (lambda: ms.reset_context, r"msctx\.reset_context\(\)"),
        (lambda: ms.set_contxt, "did you mean set_context"),
        (lambda: ms.__version__, r"msctx\.__version__"),
        (lambda: ms.context.get_contex, "did you mean get_context"),
        (lambda: ms.runtime.set_memry, "did you mean set_memory"),
        (lambda: ms.device_context.gpu.op_tuning.conv_fprop, "did you mean conv_fprop_algo"),
        (lambda: ms.device_context.npu, "npu"),
    ],
)
def test_missing_names_raise_with_the_reason(look_up: Callable[[], Any], text: str) -> None:
    with pytest.raises(AttributeError, match=text):
        look_up()


@pytest.mark.parametrize(
    ("use", "text"),
    [
        (lambda: ms.Tensor([1]), r"torch\.Tensor"),
        (lambda: ms.nn.Cell, r"ms\.nn\.Cell .*MindSpore's context alone.* torch\.nn"),
        (lambda: ms.ops.matmul, "MindSpore's context alone"),
        (lambda: ms.communication.init(), r"torch\.distributed"),
        (lambda: ms.hal.Stream(), "runtime has streams"),
        (lambda: ms.get_jit_config(), "no option jit_config"),
        (lambda: ms.grad(abs), r"use msctx\.grad, on which grad_for_scalar acts"),
        (lambda: ms.value_and_grad(abs), r"use msctx\.value_and_grad"),
        (lambda: ms.Profiler(), "profiling_mode"),
        (lambda: ms.amp.auto_mixed_precision, "precision_mode"),
        (lambda: ms.dataset.GeneratorDataset, r"torch\.utils\.data"),
        (lambda: ms.mint.matmul, "use torch"),
        (lambda: ms.Model(None), "training loop"),
    ],
)
def test_models_stay_in_torch(use: Callable[[], Any], text: str) -> None:
    from msctx.mindspore import Tensor, communication, grad, hal, nn, ops  # noqa: F401

    assert [repr(found).split(",")[0] for found in (Tensor, nn, ops)] == ["<ms.Tensor", "<ms.nn", "<ms.ops"]
    with pytest.raises(NotImplementedError, match=text):
        use()


def test_it_is_not_loaded_with_msctx_and_cheap_to_load(passes_fresh: Callable[..., str]) -> None:
    code = """
        import sys, msctx
        assert not [m for m in sys.modules if m.startswith("msctx.mindspore")]
        before = set(sys.modules)
        import msctx.mindspore as ms
        new = {m.partition(".")[0] for m in set(sys.modules) - before if not m.startswith("msctx.")}
        assert "torch" not in new and "torch" not in sys.modules, new
        assert ms.context.K_CONTEXT is None
        print(msctx.mindspore is ms)
    """
    assert passes_fresh(code).strip() == "True"
