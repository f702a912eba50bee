"""variable_placement, external_weight, memory_offload: parameters and activations are in host memory, on the device far."""

from collections.abc import Callable
from pathlib import Path

import pytest

Far = Callable[..., str]


@pytest.fixture(autouse=True)
def work_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ASCEND_WORK_PATH", str(tmp_path))
    return tmp_path


SETUP = """
    import torch
    from contextlib import contextmanager
    from torch import nn
    from torch.nn import functional as F
    from msctx.memory import offload, parameter_placement
    from msctx.native import watched_models

    @contextmanager
    def placed(place):
        parameter_placement.PLACES.write(place)
        parameter_placement.copy_for_operators(True)
        try:
            yield
        finally:
            parameter_placement.copy_for_operators(False)
            parameter_placement.PLACES.write(None)

    class Model(nn.Module):
        '''Uses its weights in all the ways that modules have.'''
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(50, 64)
            self.encoder = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
            self.factors = nn.ParameterList([torch.randn(64, 8) / 8, torch.randn(8, 32) / 3])
            self.normalised = nn.utils.parametrizations.weight_norm(nn.Linear(32, 32))
            self.scale = nn.Parameter(torch.full((32,), 1.5))
            self.head = nn.Linear(32, 50)
            self.mapping = nn.Parameter(torch.randn(64, 32))
            self.head.weight = nn.Parameter(torch.randn(50, 32) / 6)

        def forward(self, tokens):
            h = self.encoder(self.embedding(tokens))
            h = torch.linalg.multi_dot([h.flatten(0, 1), *self.factors]).unflatten(0, h.shape[:2])
            h = self.normalised(h) * self.scale.exp()
            h = h + self.embedding(tokens) @ (self.mapping * 0.1)
            return self.head(h)

    def model():
        torch.manual_seed(0)
        return Model().to("far")

    tokens = torch.randint(50, (4, 16), generator=torch.Generator().manual_seed(1)).to("far")

    def train(model, steps=3):
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
        losses = []
        torch.manual_seed(2)
        for _ in range(steps):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.item())
        return losses

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

    def close(one, other):
        torch.testing.assert_close([*one.values()], [*other.values()], rtol=1e-5, atol=1e-6)
"""


@pytest.fixture
def far(far: Far) -> Far:
    """Run code after SETUP."""
    return lambda code: far(SETUP + code)


@pytest.mark.full
@pytest.mark.parametrize("place", ["host", "file"])
def test_a_model_trains_with_its_parameters_on_the_host(far: Far, place: str) -> None:
    far(f"""
    reference = model()
    losses = train(reference)
    placed_model = model()
    watched_models.OF_PROCESS.watch(placed_model)
    begin = torch.far.memory_allocated()
    with placed("{place}"):
        assert {{p.device.type for p in placed_model.parameters()}} == {{"cpu"}}
        size = sum(p.nbytes for p in placed_model.parameters())
        assert torch.far.memory_allocated() <= begin - size
        found = train(placed_model)
        assert {{p.grad.device.type for p in placed_model.parameters()}} == {{"cpu"}}
    assert {{p.device.type for p in placed_model.parameters()}} == {{"far"}}
    assert {{p.grad.device.type for p in placed_model.parameters()}} == {{"far"}}
    torch.testing.assert_close(found, losses, rtol=1e-5, atol=0)
    expected = {{name: value.cpu() for name, value in reference.state_dict().items()}}
    close({{name: value.cpu() for name, value in placed_model.state_dict().items()}}, expected)
    """)


@pytest.mark.full
def test_the_backward_pass_fetches_parameters_again_instead_of_holding_copies(far: Far) -> None:
    far("""
    layers = nn.Sequential(*[nn.Linear(512, 512, bias=False) for _ in range(8)]).to("far")
    watched_models.OF_PROCESS.watch(layers)
    data = torch.randn(2, 512).to("far")
    with placed("host"):
        begin = torch.far.memory_allocated()
        loss = layers(data).sum()
        assert torch.far.memory_allocated() - begin < 2 * 512 * 512 * 4
        torch.far.reset_peak_memory_stats()
        loss.backward()
        assert torch.far.max_memory_allocated() - begin < 4 * 512 * 512 * 4
        loss = layers(data).sum()
        with torch.no_grad():
            layers[3].weight.mul_(2)
        try:
            loss.backward()
        except RuntimeError as error:
            assert "modified by an inplace operation" in str(error)
        else:
            raise AssertionError("the wrong weights were used")
    """)


@pytest.mark.full
def test_what_takes_any_device_sees_parameters_where_they_are(far: Far) -> None:
    far("""
    linear = nn.Linear(4, 4).to("far")
    watched_models.OF_PROCESS.watch(linear)
    given = torch.ones(4, 4, device="far")
    with placed("host"):
        weight = linear.weight
        with torch.no_grad():
            weight.copy_(given)
            weight[0] = given[1] * 3
        assert weight.device.type == "cpu" and weight[0, 0].item() == 3
        state = {name: value.clone() for name, value in linear.state_dict().items()}
        linear.load_state_dict({name: value.to("far") for name, value in state.items()})
        assert weight.device.type == "cpu"
        for mixed in (lambda: weight.detach().add_(given), lambda: torch.ones(4, 4) @ given):
            try:
                mixed()
            except RuntimeError:
                continue
            raise AssertionError("the host's and the device's memory were mixed silently")
        loss = linear(given).sum()
        (gradient,) = torch.autograd.grad(loss, [weight])
        assert gradient.device.type == "cpu"
    assert linear.weight is weight and weight.device.type == "far"
    """)


@pytest.mark.full
def test_views_and_operators_in_place(far: Far) -> None:
    far("""
    linear = nn.Linear(4, 4).to("far")
    watched_models.OF_PROCESS.watch(linear)
    x = torch.randn(3, 4).to("far").requires_grad_()
    def run(compute):
        linear.zero_grad()
        x.grad = None
        result = compute(linear.weight, linear.bias)
        if result.requires_grad:
            result.square().sum().backward()
        return [t.detach().cpu() for t in (result, x.grad, linear.weight.grad, linear.bias.grad) if t is not None]
    def with_out(w, b):
        with torch.no_grad():
            h = torch.zeros(3, 4, device="far")
            assert torch.add(x, b, out=h) is h
            h[1] = b
            h[[0]] = b
            torch._foreach_add_([h], [b])
        return h
    def iadd(w, b):
        h = x * 2
        h += b
        h *= b.T if b.ndim > 1 else b
        return h
    computes = [
        lambda w, b: x @ w.T, lambda w, b: x @ w.mT, lambda w, b: x @ w.data, lambda w, b: x @ w.T.contiguous().T, iadd,
        lambda w, b: (x * 2).add_(b), lambda w, b: (x * 2).addcmul_(b, b), lambda w, b: torch.addmm(b, x, w.H),
        lambda w, b: (x * 2).copy_(b), with_out,
    ]
    expected = [run(compute) for compute in computes]
    with placed("host"):
        for compute, result in zip(computes, expected, strict=True):
            assert all(torch.equal(*pair) for pair in zip(run(compute), result, strict=True))
        before = linear.bias.tolist()
        with torch.no_grad():
            given = torch.ones(4, device="far")
            for wrong in (
                lambda: torch.add(given, given, out=linear.bias),
                lambda: torch.add(given, linear.bias, out=linear.bias),
                lambda: linear.bias.add_(given),
                lambda: linear.bias.data.add_(given),
                lambda: torch._foreach_add_([linear.bias], [given]),
            ):
                try:
                    wrong()
                except RuntimeError as error:
                    assert "same device" in str(error), error
                else:
                    raise AssertionError("a result was lost")
        assert linear.bias.tolist() == before
        import io
        file = io.BytesIO()
        torch.save(linear.state_dict(), file)
        file.seek(0)
        assert all(not vars(value) for value in torch.load(file).values()), "nothing of this goes into files"
    """)


@pytest.mark.full
def test_a_copy_is_forgotten_with_its_scope_and_its_model(far: Far) -> None:
    far("""
    import gc
    begin = torch.far.memory_allocated()
    layers = nn.Linear(1024, 1024).to("far")
    x = torch.ones(1, 1024, device="far")
    watched_models.OF_PROCESS.watch(layers)
    with placed("host"):
        layers(x).sum().backward()
        (x @ layers.weight.T).sum().backward()
    del layers, x
    gc.collect()
    assert torch.far.memory_allocated() == begin, torch.far.memory_allocated() - begin
    """)


@pytest.mark.full
def test_the_host_waits_for_copies_of_parameters_from_pinned_memory(far: Far) -> None:
    far("""
    from torch.utils._python_dispatch import TorchDispatchMode
    class Seen(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            if function is torch.ops.aten._to_copy.default and str(kwargs.get("device")).startswith("far"):
                seen.append(kwargs.get("non_blocking", False))
            return function(*args, **kwargs or {})
    seen = []
    linear = nn.Linear(4, 4).to("far")
    watched_models.OF_PROCESS.watch(linear)
    with placed("host"):
        assert all(parameter.is_pinned() for parameter in linear.parameters())
        with Seen():
            linear(torch.ones(1, 4, device="far")).sum().backward()
    assert seen and not any(seen), seen
    """)


# --- memory_offload ---------------------------------------------------------------------------------------------------


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
