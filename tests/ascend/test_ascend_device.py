"""The device itself: which one is current, that nothing initialises it by looking, waiting after each operator, seeds."""

import pytest

pytestmark = pytest.mark.full


def test_looking_never_initialises_the_device(ascend):
    ascend("""
        msctx.state()
        msctx.devices.facts()
        msctx.explain(deterministic="ON", precision_mode="force_fp16", max_device_memory="2GB", device="ascend")
        with msctx.context(device_target="Ascend", matmul_allow_hf32=True, precision_mode="must_keep_origin_dtype", seed=3):
            assert msctx.state()["torch.npu.current_device"] is None
        assert not torch.npu.is_initialized()
        assert calls() == []
    """)


@pytest.mark.parametrize(("second", "first"), [("device_id=1", "device_id=0"), ("session_device_id=1", "session_device_id=0")])
def test_the_current_device_is_set_and_put_back(ascend, second, first):
    ascend(f"""
        with msctx.context(device_target="Ascend", {second}, default_device=True) as ctx:
            assert str(ctx.device) == "npu:1" and torch.npu.current_device() == 1
            assert torch.ones(2).device == torch.device("npu:1")
            with msctx.context({first}):
                assert torch.npu.current_device() == 0
            assert torch.npu.current_device() == 1
        assert torch.npu.current_device() == 0 and torch.ones(2).device.type == "cpu"
        found = [int(call[-2]) for call in calls("aclrtSetDevice(")]
        found = [number for number, last in zip(found, [None, *found]) if number != last]  # threads of torch_npu set theirs, too
        assert found == [1, 0, 1, 0], found
    """)


def test_a_device_that_is_not_there_is_an_error_before_anything_is_changed(ascend):
    ascend(
        """
        before = msctx.state()
        try:
            msctx.context(device_target="Ascend", device_id=3, matmul_allow_hf32=True).__enter__()
        except msctx.errors.SwitchError as error:
            assert "there are 2 such devices here (0 to 1)" in str(error)
        else:
            raise AssertionError
        assert msctx.diff(before, msctx.state()) == {} and not torch.npu.is_initialized() and calls() == []
        """,
        devices=2,
    )


def test_the_host_waits_after_each_operator(ascend):
    ascend("""
        import boundary
        a = torch.randn(4, 4).npu().requires_grad_()
        torch.npu.synchronize()

        def most_in_a_row(program):
            '''Operators of CANN between two waits.'''
            boundary.take()
            program()
            marks = {"aclrtS": "w", "aclnn": "o"}  # waits, operators
            text = "".join(mark for line in boundary.take() for name, mark in marks.items() if line.startswith(name))
            assert text.count("o") > 2, text
            return max(map(len, text.split("w")))

        forward, both = lambda: (a @ a + a).sum(), lambda: (a @ a + a).sum().backward()
        with msctx.context(pynative_synchronize=True):
            assert most_in_a_row(forward) == 1
            assert most_in_a_row(both) == 2  # the backward of a product is one operator of torch, and two of CANN's
        assert most_in_a_row(forward) > 2
    """)


def test_seeds_reach_the_generator_of_the_device_and_its_state_is_put_back(ascend):
    ascend("""
        with msctx.context(seed=3):
            assert not torch.npu.is_initialized() and torch.npu.initial_seed() == 3
        torch.npu.set_device(0)
        before = torch.npu.get_rng_state().clone()
        with msctx.context(seed=7, seed_scope=True):
            assert torch.npu.initial_seed() == 7
            torch.npu.manual_seed(9)
        assert torch.equal(before, torch.npu.get_rng_state()) and torch.npu.initial_seed() == 3
        with msctx.context(seed=3, seed_by_rank=True):
            assert torch.npu.initial_seed() == torch.initial_seed() != 3
    """)


def test_a_program_that_is_kept_off_the_accelerator_reaches_nothing_of_it(ascend):
    ascend("""
        for on, kind in ((False, "cpu"), (True, "npu")):
            with msctx.context(device_target="Ascend", default_device=True, use_off_line=on) as ctx:
                assert ctx.device.type == kind
                layer = torch.nn.Linear(2, 2)
                assert layer(torch.ones(1, 2)).device.type == kind
            assert bool([call for call in calls() if "aclnn" in call]) is on
            assert torch.npu.is_initialized() is on
    """)


@pytest.mark.parametrize(("soc", "cann"), [("Ascend910B1", "8.5.0"), ("Ascend910A", "8.0.0"), ("Ascend910_9391", "9.1.0")])
def test_what_is_read_before_the_device_is_initialised_holds_afterwards(ascend, soc, cann):
    """torch_npu sets some options itself when it initialises: what it will set is what is read."""
    ascend(
        """
        before = msctx.state()
        torch.empty(3, device="npu")
        changed = msctx.diff(before, msctx.state())
        assert changed == {"torch.npu.current_device": (None, 0)}, changed
        """,
        soc=soc,
        cann=cann,
    )
