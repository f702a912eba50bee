"""deterministic: what each operator is given, by the version of CANN; and what torch_npu does not do."""

import pytest

pytestmark = pytest.mark.full


@pytest.mark.parametrize(("soc", "cann"), [("Ascend910B1", "8.5.0"), ("Ascend910_9391", "9.1.0")])
def test_it_reaches_each_operator_and_hccl(ascend, soc, cann):
    ascend(
        """
        a = torch.randn(4, 4).npu()

        def told():
            calls()
            a @ a
            return {call for call in calls() if "DETERMINISTIC" in call}

        def by(on):
            return {
                f"aclrtCtxSetSysParamOpt(ACL_OPT_DETERMINISTIC, {on})",
                f"aclrtSetSysParamOpt(ACL_OPT_DETERMINISTIC, {on})",
                f"HcclSetConfig(HCCL_DETERMINISTIC, {on})",
            }

        with msctx.context(deterministic="ON"):
            assert told() == by(1)
            with msctx.context(deterministic="OFF"):
                assert told() == by(0)
            with msctx.context(deterministic_warn_only=True):
                assert torch.is_deterministic_algorithms_warn_only_enabled() and told() == by(1)
            assert told() == by(1)
        assert told() == by(0)
        assert not torch.are_deterministic_algorithms_enabled()
        """,
        soc=soc,
        cann=cann,
    )


@pytest.mark.parametrize(("soc", "cann"), [("Ascend910A", "8.0.0"), ("Ascend910B1", "8.3.0")])
def test_before_cann_8_5_it_is_refused_since_torch_npu_switches_it_off_again(ascend, soc, cann):
    ascend(
        """
        with msctx.context(deterministic="ON") as ctx:
            (row,) = [row for row in ctx.plan.rows if row.device == "ascend"]
        assert row.status == "refused" and "Install CANN 8.5" in row.reason, row
        a = torch.randn(4, 4).npu()
        calls()
        torch.use_deterministic_algorithms(True)  # torch's own flag: this is why
        a @ a
        assert not any(call.endswith("DETERMINISTIC, 1)") for call in calls())
        """,
        soc=soc,
        cann=cann,
    )


def test_what_only_the_start_of_the_device_reads_is_not_set_late(ascend):
    ascend("""
        import os, warnings
        with msctx.context(deterministic="ON"):
            assert os.environ["HCCL_DETERMINISTIC"] == "true" and os.environ["TE_PARALLEL_COMPILER"] == "1"
            assert not torch.npu.is_initialized()
        del os.environ["TE_PARALLEL_COMPILER"]
        torch.npu.set_device(0)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            with msctx.context(deterministic="ON"):
                assert "TE_PARALLEL_COMPILER" not in os.environ
        assert any("TE_PARALLEL_COMPILER comes too late" in str(one.message) for one in told)
    """)


def test_a_group_that_is_there_gets_it_from_torch_npu_and_the_variable_stays_unset(ascend):
    """HCCL would ignore torch_npu's call where the variable is set, and has not read it any more by then."""
    ascend("""
        import os, warnings
        import torch.distributed as dist
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        dist.new_group([0], backend="hccl")
        a = torch.ones(2, 2).npu()

        def late():
            calls()
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                with msctx.context(deterministic="ON", op_wait_timeout=60):
                    inside = {name: os.environ.get(name) for name in ("HCCL_DETERMINISTIC", "HCCL_EVENT_TIMEOUT")}
                    a @ a
                    assert "HcclSetConfig(HCCL_DETERMINISTIC, 1)" in calls()
            return inside, "; ".join(str(one.message) for one in told)

        inside, told = late()
        assert set(inside.values()) == {None}, inside
        assert "HCCL_DETERMINISTIC" not in told and "HCCL_EVENT_TIMEOUT comes too late" in told, told
        os.environ["HCCL_DETERMINISTIC"] = "false"
        inside, told = late()
        assert inside["HCCL_DETERMINISTIC"] == "false" and "HCCL_DETERMINISTIC comes too late" in told, (inside, told)
    """)


def test_torch_npu_fills_no_new_memory_which_the_plan_reports(ascend):
    ascend("""
        torch.npu.set_device(0)
        rows = msctx.explain(deterministic="ON", fill_uninitialized_memory=True, device="ascend").rows
        assert [row.status for row in rows] == ["approximated", "refused"], rows
        with msctx.context(deterministic="ON"):
            calls()
            torch.empty(4, device="npu"), torch.empty(2, device="npu").resize_(4)
            assert calls("aclnn", "aclop", "aclrtMemset") == []
            assert torch.empty(4).isnan().all()  # memory of the host is
    """)
