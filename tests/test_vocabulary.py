"""MindSpore's newer vocabulary: each function reaches one option, holds for the process, and is taken back by reset_context."""

from collections.abc import Iterator
from typing import Any

import pytest

import msctx
from msctx.errors import MsctxWarning, OptionError

pytestmark = pytest.mark.filterwarnings("ignore::msctx.MsctxWarning")


@pytest.fixture(autouse=True)
def reset() -> Iterator[None]:
    yield
    msctx.reset_context()


def test_wrong_values_are_option_errors_with_the_function_that_was_called() -> None:
    with pytest.raises(OptionError) as error:
        msctx.device_context.gpu.op_tuning.conv_fprop_algo("winogard")
    (problem,) = error.value.problems
    assert problem.where.startswith("device_context.gpu.op_tuning.conv_fprop_algo at test_vocabulary.py:")
    assert problem.suggestion == "'winograd'"
    assert msctx.get_context() == {}


@pytest.mark.parametrize(
    ("args", "named"), [((), {}), (("fft", "fft"), {}), ((), {"algo": "fft"}), (("fft",), {"mode": "fft"})]
)
def test_a_function_takes_one_value(args: tuple[Any, ...], named: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=r"conv_fprop_algo\(mode\)"):
        msctx.device_context.gpu.op_tuning.conv_fprop_algo(*args, **named)


def test_functions_act_at_once_and_are_taken_back() -> None:
    import torch

    before = torch.get_num_threads()
    with pytest.warns(MsctxWarning, match=r"only on another device; msctx.set_context\(jit_compile=…\)"):
        msctx.device_context.ascend.op_tuning.op_compile(True)
    msctx.device_context.cpu.op_tuning.threads_num(before + 1)
    assert torch.get_num_threads() == before + 1
    msctx.set_deterministic(True)
    assert torch.are_deterministic_algorithms_enabled()
    msctx.set_deterministic(False)
    assert not torch.are_deterministic_algorithms_enabled()
    msctx.device_context.gpu.op_tuning.conv_fprop_algo(mode="fft")
    msctx.set_recursion_limit(2000)
    msctx.runtime.launch_blocking()
    msctx.runtime.set_memory(increase_size="4GB", optimize_level="O1")
    for name in ("CPU", "cpu"):
        msctx.set_device(name)
        assert msctx.get_current_device() == ("CPU", 0)
    found = {"gpu_config.conv_fprop_algo": "fft", "max_call_depth": 2000, "pynative_synchronize": True}
    found |= {"mempool_block_size": 4 * 2**30, "memory_optimize_level": "O1"}
    assert {name: msctx.get_context(name) for name in found} == found
    msctx.reset_context()
    assert torch.get_num_threads() == before
    with pytest.raises(OptionError, match="did you mean 'CPU'"):
        msctx.set_device("cpus")
    with pytest.raises(OptionError, match="init_size") as error:
        msctx.runtime.set_memory(init_size="2GB", huge_page_reserve_size="1GB")
    assert len(error.value.problems) == 2


def test_it_is_loaded_only_when_asked_for_and_cheap_to_load(passes_fresh: Any) -> None:
    passes_fresh("""
        import sys, msctx
        assert not {"msctx.setter_functions", "msctx.runtime", "msctx.mindspore"} & {*sys.modules}
        import msctx.mindspore
        assert "torch" not in sys.modules
    """)
