"""memory_offload: what waits for the backward pass is in host memory meanwhile; on the device far, whose memory is counted."""

from collections.abc import Callable

import pytest

Far = Callable[..., str]

SETUP = """
    import torch
    from contextlib import contextmanager
    from torch import nn
    from msctx.memory import offload

    @contextmanager
    def on_host():
        offload.turn("activations", True)
        try:
            yield
        finally:
            offload.turn("activations", False)

    def network():
        torch.manual_seed(0)
        layers = [nn.Linear(64, 256), nn.GELU(), nn.TransformerEncoderLayer(256, 4, 512, batch_first=True)]
        return nn.Sequential(*layers, nn.Unflatten(2, (16, 16)), nn.Conv2d(32, 4, 3), nn.BatchNorm2d(4), nn.Dropout()).to("far")

    def x(batch=32):
        return torch.randn(batch, 32, 64, generator=torch.Generator().manual_seed(1)).to("far")

    def gradients(model, loss):
        loss.backward()
        return [parameter.grad.cpu() for parameter in model.parameters()]

    def same(one, other):
        return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
"""


@pytest.fixture
def far(far: Far) -> Far:
    """Run code after SETUP."""
    return lambda code: far(SETUP + code)


def test_gradients_have_the_same_bits_and_activations_are_gone_from_the_device(far: Far) -> None:
    far("""
    def run():
        model, data = network(), x()
        begin = torch.far.memory_allocated()
        torch.manual_seed(2)
        loss = model(data).square().mean()
        return torch.far.memory_allocated() - begin, gradients(model, loss)

    held, expected = run()
    with on_host():
        left, found = run()
    assert same(expected, found)
    assert left < held / 20, (left, held)
    """)


def test_results_are_freed_and_differentiated_twice(far: Far) -> None:
    far("""
    import gc, weakref
    gc.disable()
    for reason in ("activations", "parameters"):
        for device in ("cpu", "far"):
            x = torch.ones(4, 4, device=device, requires_grad=True)
            offload.turn(reason, True)
            results = [weakref.ref(x.exp()) for _ in range(20)]
            assert not any(result() is not None for result in results), device
            y = x.exp()
            (slope,) = torch.autograd.grad((y * y).sum(), x, create_graph=True)
            (curvature,) = torch.autograd.grad(slope.sum(), x)
            offload.turn(reason, False)
            torch.testing.assert_close(curvature[0, 0], 4 * torch.ones((), device=device).mul(2).exp())
    """)


def test_beside_checkpoints_and_without_a_backward_pass(far: Far) -> None:
    far("""
    import gc
    from torch.utils.checkpoint import checkpoint
    model, data = network(), x()
    def run():
        torch.manual_seed(2)
        model.zero_grad()
        return gradients(model, checkpoint(model, data, use_reentrant=False).square().mean())
    expected = run()
    with on_host():
        assert same(expected, run())
        model.zero_grad()
        begin = torch.far.memory_allocated()
        for _ in range(3):
            model(data)
    gc.collect()
    assert torch.far.memory_allocated() == begin
    """)
