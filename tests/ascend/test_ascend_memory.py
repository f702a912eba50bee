"""Device memory on Ascend: the cap is torch_npu's, the pool shows in what CANN gets; a call that fails leaves all as it was found."""

import pytest

pytestmark = pytest.mark.full


SEGMENT = """
def segment(size=5 << 20):
    '''What a request takes from CANN; it is given back.'''
    calls()
    taken = torch.empty(size, dtype=torch.uint8, device="npu")
    found = calls("aclrtMalloc", "aclrtReserve")
    del taken
    torch.npu.empty_cache()
    calls()
    return found

PLAIN = ["aclrtMallocAlign32(20971520)"]
"""
MODEL = """
def model_and_loss(width=8, rows=4):
    torch.manual_seed(0)
    block = lambda: torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.Tanh())
    model = torch.nn.Sequential(block(), block()).npu()
    inputs = torch.randn(rows, width).npu()
    return model, lambda: model(inputs).square().sum()
"""


def test_at_the_cap_torch_raises_that_memory_is_out(ascend):
    ascend(
        """
        def cap():
            return msctx.state()["torch.npu.memory_cap"]

        def takes(megabytes):
            try:
                torch.empty(megabytes << 20, dtype=torch.uint8, device="npu")
            except torch.OutOfMemoryError:
                return False
            return True

        before = msctx.state()
        with msctx.context(device_target="Ascend", max_device_memory="0.5GB"):
            assert cap() == 512 << 20
            assert takes(500) and not takes(520)
            with msctx.context(max_device_memory="0.25GB"):
                assert cap() == 256 << 20
                torch.npu.empty_cache()
                assert not takes(300)
            with msctx.context(max_device_memory="0.75GB"):  # the tightest of those in force
                assert cap() == 512 << 20
            assert takes(500)
        assert takes(900) and cap() is None
        changed = msctx.diff(before, msctx.state())
        assert changed == {"torch.npu.current_device": (None, 0)}, changed  # the device is initialised now
        """,
        memory_mb=1024,
    )


def test_the_cap_is_that_of_the_device_in_use_and_no_other_becomes_current(ascend):
    ascend(
        """
        with msctx.context(device_target="Ascend", device_id=1, max_device_memory="0.25GB"):
            assert torch.npu.current_device() == 1
            torch.empty(512 << 20, dtype=torch.uint8, device="npu:0")
            try:
                torch.empty(512 << 20, dtype=torch.uint8, device="npu:1")
            except torch.OutOfMemoryError as error:
                assert "256.00 MiB allowed" in str(error)
            else:
                raise AssertionError
            assert torch.npu.current_device() == 1
        torch.empty(512 << 20, dtype=torch.uint8, device="npu:1")
        """,
        memory_mb=1024,
    )


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"mempool_block_size": "1GB"}, "aclrtMallocAlign32(1073741824)"),
        ({"memory_optimize_level": "O1"}, "aclrtMallocPhysical(20971520)"),
        ({"mempool_block_size": "1GB", "static_memory_policy": 3}, "aclrtMallocPhysical(1073741824)"),
        ({"mempool_block_size": "1GB", "max_device_memory": "2GB"}, "aclrtMallocAlign32(268435456)"),
    ],
)
def test_the_pool_takes_its_memory_as_the_options_have_it(ascend, options, expected):
    ascend(f"""
        {SEGMENT.replace(chr(10), chr(10) + "        ")}
        assert segment() == PLAIN
        with msctx.context(device_target="Ascend", **{options}):
            found = segment()
            assert found[-1] == {expected!r}, found
        assert segment() == PLAIN
    """)


def test_memory_that_is_not_reused_goes_back_at_once(ascend):
    code = """
        with msctx.context(device_target="Ascend", env_config_path={"sys": {"mem_reuse": REUSE}}):
            for _ in range(2):
                torch.empty(5 << 20, dtype=torch.uint8, device="npu")
            print(*calls("aclrtMalloc", "aclrtFree"))
    """
    taken, freed = "aclrtMallocAlign32(5242912)", "aclrtFree(5242912)"  # 32 bytes are torch_npu's own
    assert ascend(code.replace("REUSE", "False")).split() == [taken, freed, taken, freed]
    assert ascend(code.replace("REUSE", "True")).split() == ["aclrtMallocAlign32(20971520)"]


@pytest.mark.parametrize(
    ("options", "evidence"),
    [
        ({"memory_offload": "ON"}, ["to host", "to device"]),
        ({"variable_placement": "Host", "mix_compile_mode": True}, ["to device", "Addmm", "to host"]),
        ({"external_weight": True}, ["to device", "Addmm", "to host"]),
        ({"memory_optimize_level": "O1"}, ["Addmm", "Addmm", "Addmm", "Addmm"]),  # the second pair computes them again
    ],
)
def test_where_tensors_are_shows_in_copies(ascend, options, evidence):
    ascend(f"""
        {MODEL.replace(chr(10), chr(10) + "        ")}
        model, loss = model_and_loss(64, 2048)
        calls()
        loss()
        plain = len(calls("aclnnAddmm")), calls("aclrtMemcpy")
        assert plain == (2, [])
        with msctx.context(device_target="Ascend", **{options}) as ctx:
            ctx.watch(model)
            calls()
            loss().backward()
            found = calls()
            for wanted in {evidence}:
                at = next((i for i, call in enumerate(found) if wanted in call), None)
                assert at is not None, (wanted, found)
                del found[: at + 1]
        assert {{parameter.device.type for parameter in model.parameters()}} == {{"npu"}}
    """)


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
