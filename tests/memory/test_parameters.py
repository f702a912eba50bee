"""variable_placement and external_weight: parameters on the host or mapped from files, copied to the device by what uses them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import msctx
from msctx.errors import SwitchError

Far = Callable[..., str]


@pytest.fixture(autouse=True)
def work_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ASCEND_WORK_PATH", str(tmp_path))
    return tmp_path


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 36, 10))


X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("tmp_weight_*/weight_*"))


# --- files ------------------------------------------------------------------------------------------------------------


def test_equal_weights_of_two_models_are_in_one_file(work_path: Path) -> None:
    one, other, third = network(), network(), nn.Linear(3, 3)
    with msctx.context(external_weight=True) as ctx:
        for model in (one, other, third):
            ctx.watch(model)
        contents = {p.detach().numpy().tobytes() for model in (one, other, third) for p in model.parameters()}
        assert len(files(work_path)) == len(contents)
        assert {path.stat().st_size for path in files(work_path)} == {len(content) for content in contents}
        assert torch.equal(one.eval()(X), other.eval()(X))
    assert files(work_path) == []
    assert [*work_path.iterdir()] == []


def mappings(folder: Path) -> dict[str, int]:
    """How often each file of a folder is mapped into this process."""
    found: dict[str, int] = {}
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.partition("/")[2]
        if f"/{path}".startswith(str(folder)):
            found[path] = found.get(path, 0) + 1
    return found


@pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="the system does not tell what is mapped")
def test_parameters_are_mapped_and_unmapped(work_path: Path) -> None:
    with msctx.context(external_weight=True) as ctx:
        ctx.watch(network())
        ctx.watch(model := network())
        held = [parameter.data for parameter in model.parameters()]
        assert len(mappings(work_path)) == len(files(work_path))
        del held
    assert mappings(work_path) == {}


def test_training_one_model_leaves_the_other_and_the_file(work_path: Path) -> None:
    one, other = network(), network()
    before = {name: value.clone() for name, value in other.state_dict().items()}
    trained = network()
    for model, options in ((trained, {}), (one, {"external_weight": True})):
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        with msctx.context(**options) as ctx:  # type: ignore[arg-type]
            ctx.watch(model)
            if options:
                ctx.watch(other)
                contents = [path.read_bytes() for path in files(work_path)]
            for _ in range(2):
                optimizer.zero_grad()
                model(X).square().mean().backward()
                optimizer.step()
            if options:
                assert [path.read_bytes() for path in files(work_path)] == contents
    assert all(torch.equal(value, one.state_dict()[name]) for name, value in trained.state_dict().items())
    assert all(torch.equal(value, other.state_dict()[name]) for name, value in before.items())


def test_identity_strides_dtypes_and_odd_shapes_stay() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            shared = torch.randn(7, 5)
            made = {
                "channels_last": torch.randn(4, 3, 3, 3).to(memory_format=torch.channels_last),
                "transposed": torch.randn(5, 7).t(),
                "part": shared[:, 1:3],
                "short": torch.randn(3).half(),
                "brain": torch.randn(3).bfloat16(),
                "imaginary": torch.randn(3, dtype=torch.complex64),
                "scalar": torch.tensor(1.5),
                "empty": torch.empty(0, 3),
                "expanded": torch.ones(1).expand(3),
            }
            for name, value in made.items():
                self.register_parameter(name, nn.Parameter(value))
            self.tied = self.short

    model = Odd()
    found = dict(model.named_parameters())
    values = {name: parameter.detach().clone() for name, parameter in found.items()}
    strides = {name: parameter.stride() for name, parameter in found.items() if name not in ("part", "expanded")}
    with msctx.context(external_weight=True) as ctx:
        ctx.watch(model)
        for _ in range(2):
            assert all(model.get_parameter(name) is parameter for name, parameter in found.items())
            assert all(torch.equal(parameter, values[name]) for name, parameter in found.items())
            assert {name: found[name].stride() for name in strides} == strides
        assert model.tied is model.short
    assert all(torch.equal(parameter, values[name]) for name, parameter in found.items())
    assert {name: found[name].stride() for name in strides} == strides


def test_models_that_are_watched_later_and_a_scope_inside_a_scope(work_path: Path) -> None:
    model = network()
    with msctx.context(external_weight=True) as ctx:
        assert files(work_path) == []
        ctx.watch(model)
        count = len(files(work_path))
        assert count
        with msctx.context(external_weight=False):
            assert files(work_path) == []
        assert len(files(work_path)) == count
        ctx.watch(model)
        assert len(files(work_path)) == count
    assert files(work_path) == []


def test_a_folder_that_cannot_be_made_is_told_and_nothing_changes(work_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (work_path / "file").write_text("")
    monkeypatch.setenv("ASCEND_WORK_PATH", str(work_path / "file"))
    model = network()
    pointers = [parameter.data_ptr() for parameter in model.parameters()]
    msctx.current().watch(model)
    with pytest.raises(SwitchError, match=r"external_weight: .*file"), msctx.context(external_weight=True):
        pass
    assert [parameter.data_ptr() for parameter in model.parameters()] == pointers
    assert msctx.state()["models.parameters"] is None


# --- copies for a device ----------------------------------------------------------------------------------------------

SETUP = """
    import torch
    from contextlib import contextmanager
    from torch import nn
    from torch.nn import functional as F
    from msctx.memory import parameters, saved, watched

    @contextmanager
    def placed(place):
        parameters.write(place)
        parameters.copy_for_operators(True)
        try:
            yield
        finally:
            parameters.copy_for_operators(False)
            parameters.write(None)

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
        losses, peaks = [], []
        torch.manual_seed(2)
        for _ in range(steps):
            torch.far.reset_peak_memory_stats()
            optimizer.zero_grad()
            loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.item())
            peaks.append(torch.far.max_memory_allocated())
        return losses, peaks

    def close(one, other):
        torch.testing.assert_close([*one.values()], [*other.values()], rtol=1e-5, atol=1e-6)
"""


@pytest.mark.parametrize("place", ["host", "file"])
def test_a_model_trains_with_its_parameters_on_the_host(far: Far, place: str) -> None:
    far(
        SETUP
        + f"""
    reference = model()
    losses, _ = train(reference)
    placed_model = model()
    watched.watch(placed_model)
    begin = torch.far.memory_allocated()
    with placed("{place}"):
        assert {{p.device.type for p in placed_model.parameters()}} == {{"cpu"}}
        size = sum(p.nbytes for p in placed_model.parameters())
        assert torch.far.memory_allocated() <= begin - size
        found, _ = train(placed_model)
        assert {{p.grad.device.type for p in placed_model.parameters()}} == {{"cpu"}}
    assert {{p.device.type for p in placed_model.parameters()}} == {{"far"}}
    assert {{p.grad.device.type for p in placed_model.parameters()}} == {{"far"}}
    torch.testing.assert_close(found, losses, rtol=1e-5, atol=0)
    expected = {{name: value.cpu() for name, value in reference.state_dict().items()}}
    close({{name: value.cpu() for name, value in placed_model.state_dict().items()}}, expected)
    """
    )


def test_the_backward_pass_fetches_parameters_again_instead_of_holding_copies(far: Far) -> None:
    far(
        SETUP
        + """
    layers = nn.Sequential(*[nn.Linear(512, 512, bias=False) for _ in range(8)]).to("far")
    watched.watch(layers)
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
    """
    )


def test_what_takes_any_device_sees_parameters_where_they_are(far: Far) -> None:
    far(
        SETUP
        + """
    linear = nn.Linear(4, 4).to("far")
    watched.watch(linear)
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
    """
    )


def test_weights_on_the_host_stay_there_and_other_threads_have_their_own(far: Far) -> None:
    far(
        SETUP
        + """
    import threading
    here, there = nn.Linear(2, 2), nn.Linear(2, 2).to("far")
    for each in (here, there):
        watched.watch(each)
    pointer = here.weight.data_ptr()
    found = []
    def other():
        try:
            there(torch.ones(1, 2, device="far"))
        except RuntimeError:
            found.append("mixed")
    with placed("host"):
        assert here.weight.data_ptr() == pointer
        here(torch.ones(1, 2))
        there(torch.ones(1, 2, device="far"))
        thread = threading.Thread(target=other)
        thread.start(); thread.join()
    assert found == ["mixed"], "the option holds in the thread that entered it"
    assert here.weight.data_ptr() == pointer
    """
    )


def test_with_activations_on_the_host_too_next_to_nothing_is_left_on_the_device(far: Far) -> None:
    far(
        SETUP
        + """
    layers = nn.Sequential(*[layer for _ in range(8) for layer in (nn.Linear(256, 256), nn.GELU())]).to("far")
    data = torch.randn(512, 256).to("far")
    def gradients():
        layers.zero_grad()
        begin = torch.far.memory_allocated()
        loss = layers(data).square().mean()
        left = torch.far.memory_allocated() - begin
        loss.backward()
        return left, [p.grad.cpu() for p in layers.parameters()]
    held, expected = gradients()
    watched.watch(layers)
    with placed("host"):
        saved.turn("activations", True)
        left, found = gradients()
        saved.turn("activations", False)
    assert all(torch.equal(a, b) for a, b in zip(expected, found))
    assert left < held / 50, (left, held)
    """
    )
