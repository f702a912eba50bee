"""What other built options do to torch: pynative_synchronize, deterministic, device_target."""

import warnings

import pytest
import torch
from context_helpers import State, context_module

import msctx
from msctx import devices
from msctx.context import ledger
from msctx.errors import DeviceError


def broken_backward() -> None:
    x = torch.ones(2, requires_grad=True)
    y = x.exp()  # the line of the forward
    y.add_(1)
    y.sum().backward()


def test_pynative_synchronize_names_the_line_of_the_forward() -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            broken_backward()
        assert not any("y = x.exp()" in str(w.message) for w in told), "torch names it anyway"
        with msctx.context(pynative_synchronize=True), pytest.raises(RuntimeError, match="modified by an inplace operation"):
            broken_backward()
    text = "\n".join(str(w.message) for w in told)
    assert "y = x.exp()  # the line of the forward" in text
    assert "test_option_behaviour.py" in text


def test_deterministic() -> None:
    def scatter() -> torch.Tensor:
        return torch.zeros(3).put_(torch.tensor([0, 0]), torch.tensor([1.0, 2.0]), accumulate=False)

    scatter()
    with msctx.context(deterministic="ON"):
        with pytest.raises(RuntimeError, match="put_"):
            scatter()
        with msctx.context(deterministic="OFF"):
            scatter()
        with msctx.context(deterministic_warn_only=True), pytest.warns(UserWarning, match="put_"):
            scatter()
        with pytest.raises(RuntimeError, match="put_"):
            scatter()
    scatter()


@pytest.mark.full
def test_compiled_models_keep_their_memory_format_where_its_change_is_disabled() -> None:
    """Inductor lays a network of convolutions out as channels_last, unless it is set not to."""
    net = torch.nn.Sequential(torch.nn.Conv2d(8, 16, 3), torch.nn.Conv2d(16, 8, 3)).eval()
    layouts = []
    for disabled in (False, True):
        torch.compiler.reset()
        with torch.no_grad(), msctx.context(disable_format_transform=disabled, conv_fprop_algo="implicit_gemm") as ctx:
            torch.compile(net)(torch.randn(1, 8, 10, 10))
        layouts.append({row.problem.layout for row in ctx.choices()})
    assert layouts == [{"channels_last"}, {"channels_first"}]


def test_default_device() -> None:
    with msctx.context(device_target="CPU") as ctx:
        assert ctx.device == torch.device("cpu")
        assert ledger.SWITCHES["torch.default_device"].read() is None, "installed without having been requested"
    with torch.device("meta"):
        assert torch.empty(1).device.type == "meta"
        with msctx.context(device_target="CPU", default_device=True) as ctx:
            assert torch.empty(1).device == ctx.device == torch.device("cpu")
            with torch.device("meta"):
                assert torch.empty(1).device.type == "meta"
            assert torch.empty(1).device.type == "cpu"
        assert torch.empty(1).device.type == "meta"
    assert torch.empty(1).device.type == "cpu"
    torch.set_default_device("meta")
    try:
        with msctx.context(device_target="CPU", default_device=True):
            assert torch.empty(1).device.type == "cpu"
        assert torch.empty(1).device.type == "meta"
    finally:
        torch.set_default_device(None)


def test_a_target_that_is_not_here(base: None, exact_state: State) -> None:
    target = next(word for word, device in (("Ascend", "ascend"), ("GPU", "cuda")) if device not in devices.here())
    before = exact_state()
    ctx = msctx.context(device_target=target, runtime_num_threads=1)  # planning is fine
    assert ctx.plan.missing
    assert ctx.plan.target == target
    for enter in (ctx.__enter__, lambda: msctx.set_context(device_target=target, runtime_num_threads=1)):
        with pytest.raises(DeviceError, match=rf"device_target='{target}'.*found: .*CPU"):
            enter()
        assert exact_state() == before
        assert msctx.get_context() == {}
    assert context_module.stack.scopes == []
