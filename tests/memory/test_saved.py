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


def test_the_host_memory_is_pinned_so_that_nobody_waits_for_copies(far: Far) -> None:
    far(
        SETUP
        + """
    data = torch.ones(512, 512, device="far")
    assert saved._moved_to_host(data).storage.host.is_pinned()
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


def test_what_is_written_to_after_it_was_saved_is_an_error_as_without_the_option(far: Far) -> None:
    far(
        SETUP
        + """
    import re
    def fails(make, write):
        '''What torch says in the backward pass when something is written to before it.'''
        loss, written = make()
        with torch.no_grad():
            write(written)
        del written
        try:
            loss.backward()
        except RuntimeError as error:
            told = str(error).replace("farFloatType", "torch.far.FloatTensor")
            return re.sub(", which is output 0 of [A-Za-z0-9]+,| Hint.*", "", told)
        return ""

    def product(size, device, leaf):
        def make():
            w, h = (torch.ones(size, size, device=device, requires_grad=grad) for grad in (True, leaf))
            return (w * h).sum(), h
        return make

    def result(size, device):
        def make():
            y = torch.ones(size, size, device=device, requires_grad=True).exp()
            return y.sum(), y
        return make

    makes = [product(size, device, leaf) for size in (3, 512) for device in ("cpu", "far") for leaf in (True, False)]
    makes += [result(size, device) for size in (3, 512) for device in ("cpu", "far")]
    for make in makes:
        for write in (lambda t: t.mul_(100), lambda t: t[0].zero_(), lambda t: t.detach().add_(1), lambda t: t):
            expected = fails(make, write)
            with offload():
                found = fails(make, write)
            assert expected == found and ("modified by an inplace operation" in found) == bool(found), (expected, found)
    assert saved.moved()["storages"] >= 4
    assert found == ""
    """
    )


def test_what_was_written_to_is_moved_anew_and_so_is_what_counts_its_versions_itself(far: Far) -> None:
    far(
        SETUP
        + """
    for second in (lambda a: a, lambda a: a.data):
        a = torch.ones(512, 512, device="far")
        one, two = (torch.ones((), device="far", requires_grad=True) for _ in range(2))
        with offload():
            other = second(a)  # its version counter is at 0, and stays there if it is its own
            first = (one * a).sum()
            a.mul_(2)
            (two * other).sum().backward()
        assert two.grad.item() == 2 * 512 * 512
    assert saved.moved()["storages"] == 4
    """
    )


def test_results_are_freed_and_differentiated_twice(far: Far) -> None:
    far(
        SETUP
        + """
    import gc, weakref
    gc.disable()
    for device in ("cpu", "far"):
        for size in (4, 512):
            x = torch.ones(size, size, device=device, requires_grad=True)
            with offload():
                results = [weakref.ref(x.exp()) for _ in range(20)]
                assert not any(result() is not None for result in results), (device, size)
                y = x.exp()
                (slope,) = torch.autograd.grad((y * y).sum(), x, create_graph=True)
                (curvature,) = torch.autograd.grad(slope.sum(), x)
            expected = 4 * torch.ones((), device=device).mul(2).exp()
            torch.testing.assert_close(curvature[0, 0], expected)
    """
    )


def test_a_small_part_of_a_storage_is_moved_alone(far: Far) -> None:
    far(
        SETUP
        + """
    table = torch.randn(64, 65536).to("far")
    scales = [torch.ones((), device="far", requires_grad=True) for _ in range(64)]
    with offload():
        loss = sum((row * scale).sum() for row, scale in zip(table, scales))
        assert saved.moved() == {"storages": 64, "bytes": table.nbytes}, saved.moved()
        (table[0, :50000] * scales[0]).sum()
        assert saved.moved()["storages"] == 64, "too small"
    del table
    loss.backward()
    assert all(scale.grad is not None for scale in scales)
    """
    )


def test_what_views_share_is_fetched_once(far: Far) -> None:
    far(
        SETUP
        + """
    MB = 1024 * KB
    h = torch.randn(1024, 1024).to("far")
    expected = [(h * h).sum().item(), h.sum().item()]
    class Both(torch.autograd.Function):
        @staticmethod
        def forward(ctx, scale, *parts):
            ctx.save_for_backward(*parts)
            return scale * 1
        @staticmethod
        def backward(ctx, gradient):
            before = torch.far.memory_allocated()
            parts = ctx.saved_tensors
            assert torch.far.memory_allocated() - before == 4 * MB
            assert len({part.untyped_storage().data_ptr() for part in parts}) == 1
            assert [(parts[0] * parts[1].t()).sum().item(), parts[2].sum().item()] == expected
            return (gradient, *[None] * len(parts))
    scale = torch.ones((), device="far", requires_grad=True)
    with offload():
        loss = Both.apply(scale, h, h.t(), h.view(-1))
    assert saved.moved() == {"storages": 1, "bytes": 4 * MB}
    del h
    for again in (True, False):
        loss.backward(retain_graph=again)
        assert torch.far.memory_allocated() < MB
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


def test_what_is_known_of_tensors_goes_with_them() -> None:
    known = saved._ByOwner()
    for _ in range(1000):
        known.remember(torch.empty(1), "x")
    gc.collect()
    assert len(known._known) == 0
    kept = [torch.empty(1) for _ in range(300)]
    for number, tensor in enumerate(kept):
        known.remember(tensor, number)
    assert [known.find(tensor) for tensor in kept] == [*range(300)]
    assert known.find(kept[5].view(1, 1)) == 5
    assert known.find(kept[5].data) is None
    kept[7].add_(1)
    assert known.find(kept[7]) is None, "it has been written to"
    kept[8].data = torch.empty(1)
    assert known.find(kept[8]) is None, "it is in other memory"
