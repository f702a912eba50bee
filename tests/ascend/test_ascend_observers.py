"""Options that show or steer what runs, on tensors of the device: what they see of it, and what they add at the boundary."""

import pytest

pytestmark = pytest.mark.full


def test_dumps_hold_what_is_on_the_device(ascend, tmp_path):
    ascend(f"""
        import numpy, pathlib
        a, b = torch.randn(4, 4), torch.randn(4, 4)
        on_device, folder = (a.npu(), b.npu()), pathlib.Path({str(tmp_path)!r})
        dumps = {{"enable_dump": True, "dump_mode": "all", "dump_step": "0"}}
        with msctx.context(device_target="Ascend", session=dumps, dump_path=str(folder)):
            torch.mm(*on_device)
        assert len([*folder.rglob("mm.*.output.0.*npy")]) == 1
        for place, expected in (("input.0", a), ("input.1", b)):
            (file,) = folder.rglob(f"mm.*.{{place}}.*npy")
            assert numpy.array_equal(numpy.load(file), expected)
    """)


def test_what_is_not_finite_on_the_device_is_named(ascend, tmp_path):
    ascend(f"""
        import warnings
        x, y = torch.ones(4, 4).npu(), torch.full((4, 4), float("nan")).npu()
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            settings = {{"enable_dump_debug": True, "dump_debug_mode": "all"}}
            with msctx.context(device_target="Ascend", session=settings, dump_path={str(tmp_path)!r}):
                x.add_(1)
                y.mul_(2)
        (text,) = [str(one.message) for one in told if "overflow" in str(one.message)]
        assert "aten::mul_" in text and "16 NaN" in text, text
    """)


def test_an_operator_that_fails_leaves_its_inputs_and_those_before_it(ascend, tmp_path):
    ascend(f"""
        import os, pathlib
        os.chdir({str(tmp_path)!r})
        x, y = torch.randn(4, 4).npu(), torch.randn(3, 4).npu()
        try:
            with msctx.context(
                device_target="Ascend", enable_exception_dump=1, env_config_path={{"rdr": {{"enable": True, "mode": 1, "path": "."}}}}
            ):
                x @ x
                torch.mm(x, y)
        except RuntimeError as error:
            assert "cannot be multiplied" in str(error)
        (file,) = pathlib.Path("extra-info").glob("mm.*.pt")
        assert torch.load(file)["arguments"]["self"].shape == (4, 4)
        (text,) = pathlib.Path("rank_0/rdr").glob("*.json")
        assert "aten::mm" in text.read_text()
    """)


def test_what_is_left_out_of_determinism_runs_without_it(ascend):
    ascend("""
        layer, x = torch.nn.Linear(4, 4).npu(), torch.randn(4, 4).npu()
        with msctx.context(deterministic="ON", deterministic_except="aten::addmm"):
            x @ x
            calls()
            layer(x)
            assert "aclrtSetSysParamOpt(ACL_OPT_DETERMINISTIC, 0)" in calls()
            x @ x
            assert "aclrtSetSysParamOpt(ACL_OPT_DETERMINISTIC, 1)" in calls()
    """)


def test_the_host_waits_once_for_the_calls_of_a_loop(ascend):
    ascend("""
        import boundary
        x = torch.randn(4, 4).npu()
        boundary.take()
        with msctx.session(device_target="Ascend", iterations_per_loop=3) as session:
            for _ in range(2):
                session.run(lambda: x @ x)
        marks = {"aclrtSynchronizeDevice": "wait", "aclnnMatmul": "product"}
        found = [mark for line in boundary.take(wait=False) for name, mark in marks.items() if line.startswith(name)]
        assert found == ["product", "product", "product", "wait"] * 2, found
    """)


def test_low_precision_comes_first_in_a_session(ascend):
    ascend("""
        import os
        x = torch.randn(4, 4).npu()
        os.environ["TOTAL_STEP"] = "10"
        found = []
        with msctx.session(device_target="Ascend", experimental_accelerate_train_mode="fast|step|0.5") as session:
            for step in (0, 4, 5, 9):
                os.environ["STEP_NOW"] = str(step)
                calls()
                session.run(lambda: x @ x)
                found += calls("aclnnMatmul")
        assert [call.split("(")[1].split(",")[0] for call in found] == ["float16", "float16", "float32", "float32"], found
    """)


def test_backward_passes_of_functions_are_checked(ascend):
    ascend("""
        class Wrong(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x * 2

            @staticmethod
            def backward(ctx, gradient):
                return gradient[:1]

        x = torch.ones(3).npu().requires_grad_()
        try:
            with msctx.context(device_target="Ascend", check_bprop=True):
                Wrong.apply(x).sum().backward()
        except Exception as error:
            assert "Wrong" in str(error), error
        else:
            raise AssertionError
    """)


def test_prints_show_tensors_of_the_device(ascend, tmp_path):
    ascend(f"""
        file = {str(tmp_path / "prints")!r}
        with msctx.context(device_target="Ascend", print_file_path=file):
            msctx.Print()("here", torch.tensor([0.0, 1.0]).npu())
        text, tensor = msctx.parse_print(file)
        assert text == "here" and tensor.tolist() == [0, 1]
    """)


def test_profiles_hold_what_the_host_calls_and_add_no_call(ascend, tmp_path):
    ascend(f"""
        import json, os, pathlib
        folder = pathlib.Path({str(tmp_path)!r})
        os.chdir(folder)
        a = torch.randn(4, 4).npu()
        a @ a  # the thread that makes the calls sets its device first
        calls()
        a @ a
        plain = calls()
        with msctx.context(device_target="Ascend", profiling_mode=True) as ctx:
            (row,) = [row for row in ctx.plan.rows if row.device == "ascend" and row.option == "profiling_mode"]
            assert row.status == "approximated" and "only the host" in row.reason, row
            for _ in range(2):
                a @ a
                msctx.step()
            assert calls() == plain * 2
        (trace,) = folder.glob("*.pt.trace.json")
        found = [event["name"] for event in json.loads(trace.read_text())["traceEvents"] if event.get("cat") == "cpu_op"]
        assert found.count("aten::matmul") == 2, found
        a @ a
        assert calls() == plain and [*folder.glob("*.pt.trace.json")] == [trace]
    """)
