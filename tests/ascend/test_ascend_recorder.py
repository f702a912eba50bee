"""The machine of these tests: the real torch_npu runs on the recorder, which does what the other tests rely on."""

from collections.abc import Callable

import pytest

Run = Callable[..., str]


def test_a_product_reaches_cann_and_is_right(ascend: Run) -> None:
    ascend("""
        assert not torch.npu.is_initialized()
        a, b = torch.randn(5, 7), torch.randn(7, 3)
        c = a.npu() @ b.npu()
        assert [call for call in calls() if "aclnn" in call] == ["aclnnMatmul(float32, cubeMathType=0)"]
        assert torch.allclose(c.cpu(), a @ b, atol=1e-6)
    """)


@pytest.mark.full
def test_chips_versions_and_devices_are_those_asked_for(ascend: Run) -> None:
    code = """
        from torch_npu.npu.utils import get_cann_version
        print(torch.npu.get_device_name(), get_cann_version(), get_cann_version("RUNTIME"), torch.npu.device_count())
        print(torch.npu.get_device_properties(0).total_memory >> 20)
    """
    assert ascend(code).split() == ["Ascend910B1", "8.5.0", "8.5.0", "2", "65536"]
    other = ascend(code, soc="Ascend910A", cann="8.0.0", devices=8, memory_mb=1024)
    assert other.split() == ["Ascend910A", "8.0.0", "8.0.0", "8", "1024"]


@pytest.mark.full
def test_faults_come_when_they_are_asked_for(ascend: Run) -> None:
    ascend("""
        torch.npu.set_device(0)
        fail("aclrtSetOpExecuteTimeOutV2", nth=2)
        torch.npu.set_op_timeout_ms(1000)
        try:
            torch.npu.set_op_timeout_ms(2000)
        except RuntimeError:
            pass
        else:
            raise AssertionError("the second call was to fail")
        torch.npu.set_op_timeout_ms(3000)
        found = calls("aclrtSetOpExecuteTimeOutV2")
        assert found == [
            "aclrtSetOpExecuteTimeOutV2(1000000)",
            "aclrtSetOpExecuteTimeOutV2(2000000) fails with 500000",
            "aclrtSetOpExecuteTimeOutV2(3000000)",
        ], found
    """)


@pytest.mark.full
def test_what_a_product_rounds_to_is_seen_in_its_result(ascend: Run) -> None:
    ascend("""
        a, b = torch.randn(64, 64), torch.randn(64, 64)
        exact, errors = a.double() @ b.double(), []
        for hf32 in (False, True):
            torch.npu.matmul.allow_hf32 = hf32
            errors.append(float(((a.npu() @ b.npu()).cpu() - exact).abs().max()))
        assert errors[0] < 1e-5 < 1e-3 < errors[1] < 1e-1, errors
    """)


@pytest.mark.full
def test_a_fresh_process_finds_torch_npu_by_itself(ascend_fresh: Run) -> None:
    assert ascend_fresh("-c", "import torch; print(torch.accelerator.current_accelerator())").split()[-1] == "npu"
