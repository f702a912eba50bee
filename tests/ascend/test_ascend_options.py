"""Options at the boundary of CANN: the call that arrives, its value, what is put back, and what comes too late."""

import pytest


@pytest.mark.full
def test_jit_compile_is_set_and_put_back(ascend):
    ascend("""
        read = lambda: torch_npu._C._npu_getOption("jitCompile")
        with msctx.context(jit_compile="true"):
            assert read() == b"enable"
            with msctx.context(ascend_config={"jit_compile": False}):
                assert read() == b"disable"
            assert read() == b"enable"
            with msctx.context(jit_compile="auto"):
                assert read() == b"disable", "what this chip does unasked"
            assert read() == b"enable"
        assert read() == b"disable", "what this chip does unasked, and no empty text"
        assert not torch.npu.is_initialized()
        torch.npu.set_device(0)
        assert [call for call in calls() if "JIT" in call][-1] == "aclSetCompileopt(ACL_OP_JIT_COMPILE, disable)"
        with msctx.context(jit_compile="auto"):
            assert read() == b"disable"
        msctx.set_context(jit_compile="true")
        assert read() == b"enable"
        msctx.set_context(jit_compile="auto")
        assert read() == b"disable"
    """)


@pytest.mark.full
@pytest.mark.parametrize(
    ("soc", "cann", "precision"),
    [("Ascend910B1", "8.5.0", ()), ("Ascend910A", "8.0.0", ("must_keep_origin_dtype", "allow_fp32_to_fp16"))],
)
def test_options_that_were_unset_get_the_value_in_effect_back(ascend, soc, cann, precision):
    """*precision*: what reaches CANN, inside and after; nothing where it is the chip's own."""
    code = """
        requested = dict(precision_mode="must_keep_origin_dtype", op_select_implmode="high_precision", op_debug_level=1,
            debug_dir="kept", op_compiler_cache_mode="disable")
        x = torch.ones(4, device="npu").erfinv_(); calls()
        with msctx.context(**requested):
            inside = calls("aclSetCompileopt")
        after = calls("aclSetCompileopt")
        assert "aclSetCompileopt(ACL_OP_DEBUG_LEVEL, 1)" in inside, inside
        assert "aclSetCompileopt(ACL_OP_COMPILER_CACHE_MODE, disable)" in inside, inside
        assert not [call for call in after if call.endswith(", )")], after
        for found in ("ACL_OP_DEBUG_LEVEL, 0", "ACL_OP_SELECT_IMPL_MODE, high_performance", "ACL_OP_COMPILER_CACHE_MODE, enable"):
            assert f"aclSetCompileopt({found})" in after, (found, after)
        found = [call.removesuffix(")").partition(", ")[2] for call in inside + after if "(ACL_PRECISION_MODE," in call]
        assert found == EXPECTED, found
        assert sum("(ACL_PRECISION_MODE," in call for call in inside) == len(EXPECTED) // 2
    """
    ascend(code.replace("EXPECTED", repr([*precision])), soc=soc, cann=cann)


@pytest.mark.full
def test_what_torch_npu_cannot_switch_off_again_is_reported(ascend):
    ascend("""
        import tempfile, warnings
        from pathlib import Path
        folder = Path(tempfile.mkdtemp())
        (folder / "a.cfg").write_text("op_debug_config = oom")
        for options in ({"op_debug_config": str(folder / "a.cfg")}, {"aoe_tune_mode": "offline", "work_path": str(folder)}):
            try:
                msctx.context(**options, strict=True).__enter__()
            except msctx.StrictError:
                pass
            else:
                raise AssertionError("strict takes nothing that stays")
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                with msctx.context(**options):
                    pass
            assert any("cannot switch it off again" in str(one.message) for one in told), [str(one.message) for one in told]
        torch.ones(4, device="npu").erfinv_()
        found = calls("aclSetCompileopt(ACL_OP_DEBUG_OPTION")
        assert found == ["aclSetCompileopt(ACL_OP_DEBUG_OPTION, oom)"], found
        assert torch_npu._C._npu_getOption("autotune") == b"enable"
    """)


@pytest.mark.full
def test_weights_may_have_a_format_of_the_device(ascend):
    ascend("""
        read = lambda: torch_npu._C._npu_getOption("ALLOW_INTERNAL_FORMAT")
        torch.npu.set_device(0)
        found = read()
        with msctx.context(device_target="Ascend", variable_format_optimize=True):
            assert read() == b"enable"
            with msctx.context(variable_format_optimize=False):
                assert read() == b"disable"
            assert read() == b"enable"
        assert read() == found == b"disable", "torch_npu's own on this chip"
    """)


def test_the_time_of_an_operator_arrives_after_torch_npus_own(ascend):
    ascend("""
        with msctx.context(op_timeout=9):
            with msctx.context(op_execute_timeout=5):
                pass
        assert calls("aclrtSetOpExecuteTimeOut") == [
            f"aclrtSetOpExecuteTimeOutV2({seconds}000000)" for seconds in (547, 9, 5, 9, 547)]
        with msctx.context(op_timeout=0):
            assert calls("aclrtSetOpExecuteTimeOut") == []
        torch.npu.set_op_timeout_ms(60_500)
        with msctx.context(op_timeout=9):
            pass
        assert calls("aclrtSetOpExecuteTimeOut")[-1] == "aclrtSetOpExecuteTimeOutV2(60500000)", "the program's own"
        torch.npu.set_op_timeout_ms(0)
        with msctx.context(op_timeout=9):
            pass
        assert calls("aclrtSetOpExecuteTimeOut")[-1] == "aclrtSetOpExecuteTimeOutV2(0)", "the program's own, without an end"
        msctx.set_context(op_timeout=9)
        torch.npu.set_op_timeout_ms(60_500)
        assert msctx.state()["torch.npu.op_timeout"] is None
        with msctx.context(op_timeout=9):
            assert calls("aclrtSetOpExecuteTimeOut")[-1] == "aclrtSetOpExecuteTimeOutV2(9000000)", "over the program's own"
    """)


def test_how_long_streams_and_events_are_waited_for(ascend):
    ascend("""
        torch.npu.set_device(0)
        stream = torch.npu.current_stream()
        wait = lambda: (stream.synchronize(), calls("aclrtSynchronizeStream"))[1][-1]
        calls()
        unlimited = wait()
        with msctx.context(stream_sync_timeout=900):
            assert wait() == "aclrtSynchronizeStreamWithTimeout(900)"
        assert wait() == unlimited

        kind, found = torch.npu.Event, torch.npu.Event.synchronize
        with msctx.context(event_sync_timeout=30):
            event = kind()
            event.record()
            event.synchronize()
            never = type("Never", (), {"query": lambda self: False})()
            try:
                kind.synchronize(never)
            except RuntimeError as error:
                assert "event_sync_timeout=30" in str(error)
            else:
                raise AssertionError("it did not end")
        assert kind.synchronize is found
    """)


def test_limits_of_hccl_precede_its_first_group(ascend):
    ascend("""
        import os, warnings
        import torch.distributed as dist
        msctx.set_context(hccl_timeout=600, op_wait_timeout=60)
        assert (os.environ["HCCL_EXEC_TIMEOUT"], os.environ["HCCL_EVENT_TIMEOUT"]) == ("600", "60")
        dist.init_process_group("hccl", store=dist.HashStore(), rank=0, world_size=1)
        backend = dist.group.WORLD._get_backend(torch.device("npu"))
        assert backend.options._timeout.total_seconds() == 630
        assert calls("aclrtSetOpWaitTimeout") == ["aclrtSetOpWaitTimeout(60)"]
        # HCCL is the first to end, and to log why: at one time, torch_npu warns
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            with msctx.context(hccl_timeout=700, op_wait_timeout=70):
                assert backend.options._timeout.total_seconds() == 730
            with msctx.context(hccl_timeout=60):
                assert backend.options._timeout.total_seconds() == 90, "before HCCL's own limit, which is still 600"
        assert backend.options._timeout.total_seconds() == 630
        assert os.environ["HCCL_EXEC_TIMEOUT"] == "600"
        late = [str(one.message) for one in told if "comes too late" in str(one.message)]
        assert len({*late}) == 2, [str(one.message) for one in told]
    """)


def test_what_cann_writes_of_an_operator_that_fails(ascend):
    ascend("""
        import json, os, warnings
        assert msctx.state()["torch.npu.exception_dump"] == "2"
        msctx.set_context(exception_dump="1")
        given = json.load(open(os.environ["TORCH_ACL_INIT_CONFIG_PATH"]))
        assert given["dump"] == {"dump_scene": "aic_err_norm_dump"}
        assert "defaultDevice" in given
        torch.npu.set_device(0)
        assert calls("aclInit"), "torch_npu has taken the file"
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            with msctx.context(exception_dump="0"):
                pass
        assert any("comes too late" in str(one.message) for one in told)
    """)


@pytest.mark.full
def test_a_file_of_the_users_own_stays(ascend):
    ascend("""
        import os, warnings
        os.environ["TORCH_ACL_INIT_CONFIG_PATH"] = own = "acl.json"
        assert msctx.state()["torch.npu.exception_dump"] is None
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            with msctx.context(exception_dump="1"):
                assert os.environ["TORCH_ACL_INIT_CONFIG_PATH"] == own
        assert any("give that file the dump_scene" in str(one.message) for one in told), [str(one.message) for one in told]
    """)
