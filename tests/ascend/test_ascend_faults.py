"""A call that fails half-way through entering or leaving a context leaves everything as it was found."""

import pytest

pytestmark = pytest.mark.full


def test_when_cann_takes_no_option_all_is_as_it_was(ascend):
    ascend("""
        import os
        torch.ones(3, device="npu").sort()  # from now on CANN gets options of compiled operators at once
        calls()
        before = msctx.state()
        fail("aclSetCompileopt", nth=2)
        try:
            msctx.context(
                deterministic="ON", matmul_allow_hf32=True, conv_allow_hf32=False, op_compiler_cache_mode="force"
            ).__enter__()
        except msctx.errors.SwitchError as error:
            assert "error code is 500000" in str(error)
        else:
            raise AssertionError("CANN was to take nothing")
        assert msctx.diff(before, msctx.state()) == {}
        assert "HCCL_DETERMINISTIC" not in os.environ
        last = {}
        for call in calls("aclSetCompileopt("):
            if "fails" not in call:
                name, value = call[:-1].split("(")[1].split(", ")
                last[name] = value
        assert last.get("ACL_ALLOW_HF32", "10") == "10" and last.get("ACL_OP_COMPILER_CACHE_MODE", "enable") == "enable", last
    """)


def test_when_the_device_cannot_be_set_all_is_as_it_was(ascend):
    ascend("""
        import os
        torch.npu.set_device(0)
        before = msctx.state()
        fail("aclrtSetDevice")
        try:
            msctx.context(device_target="Ascend", device_id=1, deterministic="ON", precision_mode="force_fp16").__enter__()
        except msctx.errors.SwitchError as error:
            assert "torch.npu.current_device did not take 1" in str(error)
        else:
            raise AssertionError
        assert msctx.diff(before, msctx.state()) == {} and "HCCL_DETERMINISTIC" not in os.environ
    """)
