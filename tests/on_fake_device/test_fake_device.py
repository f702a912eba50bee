"""The device far is an accelerator on which what tests of memory and of copies rely on holds; they compare it with the CPU."""

from __future__ import annotations

from collections.abc import Callable

Far = Callable[..., str]


def test_it_is_the_accelerator_and_draws_the_numbers_of_the_cpu(far: Far) -> None:
    far("""
        import torch
        assert fake_device.register() is torch.far is torch.get_device_module("far")
        assert torch.accelerator.current_accelerator().type == "far"
        assert torch.accelerator.is_available() and torch.far.is_available() and torch.far.device_count() == 1
        x = torch.arange(3.0, device="far")
        assert x.is_far and not x.is_cpu and x.device == torch.device("far", 0)
        assert torch.equal(x.cpu(), torch.arange(3.0)) and x.sum().item() == 3
        with torch.device("far"):
            assert torch.nn.Linear(2, 2).weight.is_far

        def drawn(device):
            torch.manual_seed(1)
            generator = torch.Generator(device).manual_seed(2)
            numbers = torch.randn(4, device=device), torch.rand(3, generator=generator, device=device)
            return [n.cpu() for n in (*numbers, torch.randperm(9, device=device))]

        assert all(torch.equal(a, b) for a, b in zip(drawn("cpu"), drawn("far"), strict=True))
    """)


def test_two_devices_in_one_operator_are_an_error(far: Far) -> None:
    far("""
        import torch
        from torch import nn

        here, there = torch.ones(1, 1, 3, 3), torch.ones(1, 1, 3, 3, device="far")
        wrong = [
            lambda: here + there,
            lambda: here.add_(there),
            lambda: torch.add(there, there, out=here),
            lambda: torch.cat([here, there]),
            lambda: here @ there,
            lambda: nn.Linear(3, 3)(there),
            lambda: nn.Conv2d(1, 1, 1)(there),
            lambda: torch._foreach_add_([here], [there]),
            lambda: torch.empty(0, device="far").set_(here),
        ]
        for i, run in enumerate(wrong):
            try:
                run()
            except RuntimeError as error:
                assert "same device" in str(error), error
            else:
                raise AssertionError(f"number {i} has passed")
        assert (there + torch.tensor(2.0)).sum().item() == 27  # one number may come from the CPU, and so may indices
        assert there[torch.tensor([0])].is_far
        there[:, :, torch.tensor([1])] = 5.0
        assert there.sum().item() == 21
    """)


def test_memory_is_counted(far: Far) -> None:
    far("""
        import torch

        used, peak = torch.far.memory_allocated, torch.far.max_memory_allocated
        assert used() == 0
        a = torch.empty(1000, device="far")
        assert used() == peak() == 4000
        b = a * 2
        view = b[10:].view(99, 10)
        assert used() == 8000
        del a, b
        assert (used(), peak()) == (4000, 8000)  # the view keeps all of it
        del view
        assert (used(), peak()) == (0, 8000)
        torch.far.reset_peak_memory_stats()
        assert peak() == 0
        c = torch.ones(100, device="far")
        c.resize_(1000)
        assert used() == 4000 and c[:100].sum().item() == 100
        c.untyped_storage().resize_(0)
        assert used() == 0
        c.untyped_storage().resize_(4000)
        c.fill_(1)
        assert used() == 4000 and c.sum().item() == 1000
        torch.add(c, 1, out=torch.empty(0, device="far"))
        d = torch.empty(0, device="far")
        torch.add(c, 1, out=d)
        assert d.shape == (1000,) and used() == 8000 == torch.accelerator.memory_allocated()
        del c, d
        assert used() == 0
    """)


def test_in_place_and_views_share_memory(far: Far) -> None:
    far("""
        import torch

        a = torch.arange(12.0, device="far").view(3, 4)
        t = a.t()
        assert t.data_ptr() == a.data_ptr() and t.add_(1) is t and a[0, 0].item() == 1
        for row in a.split(1):
            row.mul_(2)
        a.unbind(0)[0].zero_()
        a.diagonal().fill_(9)
        assert a.tolist() == [[9, 0, 0, 0], [10, 9, 14, 16], [18, 20, 9, 24]]
        a.t_()
        assert a.shape == (4, 3) and a.contiguous().flatten()[:3].tolist() == [9, 10, 18]

        x = torch.ones(3, requires_grad=True)
        y = x.to("far")
        y[0] = 3
        y.sum().backward()
        assert x.grad.tolist() == [0, 1, 1] and x.grad.is_cpu

        w = torch.ones(3, device="far", requires_grad=True)
        z = w * 2
        out = z * z
        z.add_(1)
        try:
            out.sum().backward()
        except RuntimeError as error:
            assert "modified by an inplace operation" in str(error)
        else:
            raise AssertionError("the change was not seen")
    """)


def test_pinned_memory_and_streams(far: Far) -> None:
    far("""
        import torch

        pinned = torch.randn(5).pin_memory()
        assert pinned.is_pinned() and pinned[2:].is_pinned() and not torch.randn(5).is_pinned()
        there = pinned.to("far", non_blocking=True)
        back = torch.empty(5, pin_memory=True)
        back.copy_(there, non_blocking=True)
        assert back.is_pinned() and torch.equal(back, pinned)
        data = torch.utils.data.TensorDataset(torch.randn(8, 2))
        assert all(x.is_pinned() for (x,) in torch.utils.data.DataLoader(data, batch_size=4, pin_memory=True))

        side, event = torch.far.Stream(), torch.far.Event()
        before = torch.far.current_stream()
        assert before == torch.far.default_stream() != side
        with torch.far.stream(side):
            assert torch.far.current_stream() == side
            x = torch.ones(3, device="far", requires_grad=True)
            y = (x * 2).sum()
            event.record()
        y.backward()  # its gradients go from one stream to another
        assert torch.far.current_stream() == before
        before.wait_event(event)
        before.wait_stream(side)
        x.record_stream(side)
        torch.far.synchronize()
        assert event.query() and x.grad.tolist() == [2, 2, 2]
    """)


def test_a_copy_on_another_stream_is_made_when_it_is_waited_for(far: Far) -> None:
    far("""
        import torch

        def copied(waits=True, records=True, waited=True, pinned=True, size=1000):
            host, there = torch.empty(size, pin_memory=pinned), torch.ones(size, device="far")
            side, main = torch.far.Stream(), torch.far.current_stream()
            if waits:
                side.wait_stream(main)
            with torch.far.stream(side):
                host.copy_(there, non_blocking=True)
                event = side.record_event()
            if records:
                there.record_stream(side)
            used = torch.far.memory_allocated()
            del there
            assert torch.far.memory_allocated() == used - 4 * size
            if waited:
                main.wait_event(event)
            return bool((host == 1).all())

        assert copied() and copied(pinned=False, waits=False, records=False, waited=False)
        assert not copied(waits=False) and not copied(records=False) and not copied(waited=False)
    """)
