"""memory_offload: what waits for the backward pass is in host memory meanwhile; on the device far, whose memory is counted."""

from __future__ import annotations

import gc
from collections.abc import Callable

import torch

from msctx.memory import saved

Far = Callable[..., str]

SETUP = """
    import torch
    from contextlib import contextmanager
    from torch import nn
    from msctx.memory import saved

    KB = 1024

    @contextmanager
    def offload():
        saved.turn("activations", True)
        try:
            yield
        finally:
            saved.turn("activations", False)

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


def test_gradients_have_the_same_bits_and_activations_are_gone_from_the_device(far: Far) -> None:
    far(
        SETUP
        + """
    def run():
        model, data = network(), x()
        begin = torch.far.memory_allocated()
        torch.manual_seed(2)
        loss = model(data).square().mean()
        return torch.far.memory_allocated() - begin, gradients(model, loss)

    held, expected = run()
    with offload():
        left, found = run()
    assert same(expected, found)
    assert left < held / 20, (left, held)
    assert saved.moved()["bytes"] > held / 2
    """
    )


def test_small_tensors_parameters_and_host_tensors_stay(far: Far) -> None:
    far(
        SETUP
        + """
    weight = torch.ones(512, 512, device="far", requires_grad=True)
    with offload():
        (torch.ones(1, 512, device="far") @ weight.t()).sin().sum().backward()
        (torch.ones(512, 512, requires_grad=True) * torch.ones(512, 512)).sum().backward()
    assert saved.moved() == {"storages": 0, "bytes": 0}
    """
    )


def test_what_several_operators_save_is_moved_once_and_views_share_it(far: Far) -> None:
    far(
        SETUP
        + """
    data = torch.randn(256, 3, 256).to("far")
    leaf = torch.ones((), device="far", requires_grad=True)

    def loss(scale):
        h = data * scale
        q, k, v = h.transpose(0, 1).unbind(0)
        return (q * k).sum() + (k * v).sum() + (h * h).sum()

    (expected,) = torch.autograd.grad(loss(leaf), leaf)
    with offload():
        made = loss(leaf)
        assert saved.moved() == {"storages": 2, "bytes": 2 * 256 * 3 * 256 * 4}, saved.moved()  # the data, and h with its views
        (found,) = torch.autograd.grad(made, leaf)
    assert torch.equal(expected.cpu(), found.cpu())
    """
    )


def test_what_is_written_to_after_it_was_saved_is_moved_anew(far: Far) -> None:
    far(
        SETUP
        + """
    h = torch.ones(512, 512, device="far")
    one, two = (torch.ones((), device="far", requires_grad=True) for _ in range(2))
    with offload():
        first = (one * h).sum()
        h.mul_(2)
        second = (two * h).sum()
        (first + second).backward()
    assert (one.grad.item(), two.grad.item()) == (512 * 512, 2 * 512 * 512)
    assert saved.moved()["storages"] == 2
    """
    )


def test_backward_twice_later_elsewhere_and_through_itself(far: Far) -> None:
    far(
        SETUP
        + """
    import threading
    w = torch.full((512, 512), 2.0, device="far", requires_grad=True)
    with offload():
        loss = (w * 1).pow(3).sum()
    for expected in (12.0, 24.0):
        thread = threading.Thread(target=lambda: loss.backward(retain_graph=True))
        thread.start(); thread.join()
        assert w.grad[0, 0].item() == expected
    with offload():
        (slope,) = torch.autograd.grad((w * 1).pow(3).sum(), w, create_graph=True)
        (curvature,) = torch.autograd.grad(slope.sum(), w)
    assert curvature[0, 0].item() == 12.0
    """
    )


def test_expanded_conjugated_and_empty_tensors(far: Far) -> None:
    far(
        SETUP
        + """
    scale = torch.ones((), device="far", requires_grad=True)
    with offload():
        row = torch.arange(70000.0, device="far").expand(4, 70000)
        (row * scale).sum().backward()
        assert saved.moved()["bytes"] == 70000 * 4, "the storage, not what it is expanded to"
        z = torch.randn(300, 300, dtype=torch.complex64).to("far")
        found = torch.autograd.grad((z.conj() * scale).abs().sum(), scale)[0]
        (torch.empty(0, 5, device="far") * scale).sum().backward()
    assert torch.isfinite(found).item()
    """
    )


def test_beside_checkpoints(far: Far) -> None:
    far(
        SETUP
        + """
    from torch.utils.checkpoint import checkpoint
    model, data = network(), x()
    def run():
        torch.manual_seed(2)
        model.zero_grad()
        return gradients(model, checkpoint(model, data, use_reentrant=False).square().mean())
    expected = run()
    with offload():
        found = run()
    assert same(expected, found)
    """
    )


def test_memory_comes_back_without_a_backward_pass(far: Far) -> None:
    far(
        SETUP
        + """
    import gc
    model, data = network(), x()
    begin = torch.far.memory_allocated()
    with offload():
        for _ in range(3):
            model(data)
    gc.collect()
    assert torch.far.memory_allocated() == begin
    """
    )


def test_records_of_storages_do_not_grow() -> None:
    known = saved._ByStorage()
    for _ in range(1000):
        known.remember(torch.empty(1), "x")
    gc.collect()
    assert len(known._known) <= 128
    kept = [torch.empty(1) for _ in range(300)]
    for number, tensor in enumerate(kept):
        known.remember(tensor, number)
    assert [known.find(tensor) for tensor in kept] == [*range(300)]
    kept[7].add_(1)
    assert known.find(kept[7]) is None, "it has been written to"
