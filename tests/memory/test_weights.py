"""external_weight maps weights from files, variable_format_optimize lays them otherwise: same parameters, values and training."""

import copy
import resource
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import msctx
from msctx.errors import SwitchError
from msctx.memory import memory_format, parameter_placement


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


def mapped(folder: Path) -> set[str]:
    """The files of a folder that are mapped into this process."""
    return {found for line in Path("/proc/self/maps").read_text().splitlines() if str(folder) in (found := line[73:].strip())}


def test_equal_weights_of_two_models_are_mapped_from_one_file(work_path: Path) -> None:
    one, other, third = network(), network(), nn.Linear(3, 3)
    with msctx.context(external_weight=True) as ctx:
        for model in (one, other, third):
            ctx.watch(model)
        contents = {p.detach().numpy().tobytes() for model in (one, other, third) for p in model.parameters()}
        assert len(files(work_path)) == len(contents)
        assert {path.stat().st_size for path in files(work_path)} == {len(content) for content in contents}
        assert mapped(work_path) == {str(path) for path in files(work_path)}
        assert torch.equal(one.eval()(X), other.eval()(X))
    assert files(work_path) == [*work_path.iterdir()] == [*mapped(work_path)] == []


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


def test_a_file_that_cannot_be_written_is_told_and_nothing_changes(work_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(400, 400))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))  # the first fits
    try:
        with msctx.context(external_weight=True) as ctx:
            with pytest.raises(SwitchError, match=r"external_weight: .*weight_[0-9a-f]{64}: File too large"):
                ctx.watch(model)
            assert parameter_placement.placed() == {"place": "file", "moved": 0, "bytes": 0, "left": 4}
            assert not [*work_path.rglob("*.part")]
        with pytest.raises(SwitchError, match="File too large"), ctx:
            pass
        with msctx.context(external_weight=True) as outer, pytest.raises(SwitchError, match="File too large"), ctx:
            outer.watch(nn.Tanh())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert msctx.state()["models.parameters"] is None
    assert [*work_path.iterdir()] == []
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())
    with ctx:
        assert len(files(work_path)) == 4


def test_what_somebody_else_holds_stays_where_it_is() -> None:
    flat = torch.randn(2, 8)
    whole, shared, aliased = nn.Linear(3, 3), nn.Linear(3, 3, bias=False).share_memory(), nn.Linear(3, 3)
    slices = nn.ParameterList([nn.Parameter(flat[0]), nn.Parameter(flat[1])])
    twice = nn.ParameterList([nn.Parameter(whole_storage := torch.randn(5)), nn.Parameter(whole_storage)])
    del whole_storage
    state = aliased.state_dict()
    model = nn.ModuleList([whole, shared, aliased, slices, twice])
    pointers = {name: parameter.data_ptr() for name, parameter in model.named_parameters()}
    with msctx.context(external_weight=True) as ctx:
        ctx.watch(model)
        moved = {name for name, parameter in model.named_parameters() if parameter.data_ptr() != pointers[name]}
        assert moved == {"0.weight", "0.bias"}
        assert parameter_placement.placed() == {"place": "file", "moved": 2, "bytes": 48, "left": 7}
        with torch.no_grad():
            slices[0].fill_(7)
            twice[0].fill_(8)
            aliased.weight.fill_(9)
    assert (flat[0, 0].item(), twice[1][0].item(), state["weight"][0, 0].item()) == (7, 8, 9)
    assert shared.weight.is_shared()
    assert parameter_placement.placed() == {"place": None, "moved": 0, "bytes": 0, "left": 0}


@pytest.mark.parametrize("back_inside", [True, False])
def test_a_model_that_was_moved_in_inference_mode_trains_afterwards(back_inside: bool) -> None:
    model = network()
    model(X).sum().backward()
    with msctx.context() if back_inside else msctx.context(external_weight=True):
        with torch.inference_mode(), msctx.context(external_weight=True) as ctx:
            ctx.watch(nn.Sequential(model, made_there := nn.Linear(3, 3)))
            model.eval()(X)
            made_there(torch.ones(3))
        assert not any(parameter.is_inference() for parameter in model.parameters())
        model.train()(X).square().mean().backward()
        torch.optim.SGD(model.parameters(), 0.1).step()


def test_a_cap_on_memory_counts_neither_moving_nor_putting_back() -> None:
    model = nn.Linear(1024, 1024, bias=False)
    expected = model.weight.detach().clone()
    with msctx.context(external_weight=True, max_device_memory="3MB") as ctx:
        ctx.watch(model)
        before = msctx.memory_stats()["caps"][-1]["peak_bytes"]
        assert before < 2**20, "4 MB were copied into memory under the cap"
        with msctx.context(external_weight=False):
            assert parameter_placement.PLACES.read() is None
            assert torch.equal(model.weight, expected)
        assert parameter_placement.PLACES.read() == "file"
    assert torch.equal(model.weight, expected)
    assert parameter_placement.PLACES.read() is None


def test_what_cannot_be_put_back_is_told_and_the_switch_is_none(work_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = network()
    expected = [parameter.detach().clone() for parameter in model.parameters()]
    msctx.current().watch(model)
    parameter_placement.PLACES.write("file")
    pointers = [parameter.data_ptr() for parameter in model.parameters()]

    def memory(parameter: nn.Parameter, device: torch.device) -> torch.Tensor:
        if parameter is model[0].weight:
            raise torch.OutOfMemoryError("there is no room")
        return torch.empty_like(parameter.data, device=device)

    monkeypatch.setattr(parameter_placement, "memory_of", memory)
    with pytest.raises(SwitchError, match="1 modules or weights stay changed: there is no room"):
        parameter_placement.PLACES.write(None)
    assert parameter_placement.PLACES.read() is None
    assert [*work_path.iterdir()] == []
    assert all(torch.equal(*pair) for pair in zip(model.parameters(), expected, strict=True))
    same = [parameter.data_ptr() == pointer for parameter, pointer in zip(model.parameters(), pointers, strict=True)]
    assert same == [True] + [False] * 5


# --- variable_format_optimize -------------------------------------------------------------------------------------------


LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
KINDS = [
    pytest.param(lambda: nn.Conv2d(4, 6, 3), id="2-D"),
    pytest.param(lambda: nn.Conv3d(4, 6, 3), id="3-D"),
    pytest.param(lambda: nn.ConvTranspose2d(4, 6, 3), id="transposed"),
    pytest.param(lambda: nn.Conv2d(4, 6, 1), id="1x1"),
    pytest.param(lambda: nn.Conv2d(4, 8, 3, groups=4), id="depthwise"),
]


def favoured(weight: torch.Tensor) -> tuple[int, ...]:
    return torch.empty(weight.shape, device="meta", memory_format=LAST[weight.ndim]).stride()


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.Flatten(), nn.Linear(64, 2))


IMAGES = torch.randn(5, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def steps(model: nn.Module, optimizer: torch.optim.Optimizer, count: int, *, keep: bool = False) -> None:
    for _ in range(count):
        optimizer.zero_grad(set_to_none=not keep)
        model(IMAGES).square().mean().backward()
        optimizer.step()


def strides(model: nn.Module) -> list[tuple[int, ...]]:
    return [p.stride() for p in model.parameters()]


@pytest.mark.parametrize("make", KINDS)
def test_weights_get_the_format_and_their_own_strides_back(make: Callable[[], nn.Module]) -> None:
    model = make()
    found, values, weight = strides(model), copy.deepcopy(model.state_dict()), model.weight
    with msctx.context(variable_format_optimize=True) as ctx:
        ctx.watch(model)
        assert model.weight is weight
        assert weight.stride() == favoured(weight)
        assert model.bias.stride() == (1,)
        torch.testing.assert_close(dict(model.state_dict()), dict(values), rtol=0, atol=0)
    assert (strides(model), model.weight) == (found, weight)
    torch.testing.assert_close(dict(model.state_dict()), dict(values), rtol=0, atol=0)


def test_false_makes_them_contiguous_and_unset_leaves_them() -> None:
    model = net().to(memory_format=torch.channels_last)
    found = strides(model)
    with msctx.context(deterministic="ON") as ctx:
        ctx.watch(model)
        assert strides(model) == found
    with msctx.context(session={"variable_format_optimize": False}) as ctx:
        ctx.watch(model)
        assert all(p.is_contiguous() for p in model.parameters())
        with msctx.context(variable_format_optimize=True):
            assert strides(model) == found
        assert all(p.is_contiguous() for p in model.parameters())
    assert strides(model) == found


def state_of(optimizer: torch.optim.Optimizer) -> dict[int, tuple[int, ...]]:
    """The tensors of its state and their strides."""
    found = [value for state in optimizer.state.values() for value in state.values() if isinstance(value, torch.Tensor)]
    return {id(value): value.stride() for value in found}


OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
    "Adam": lambda p: torch.optim.Adam(p, 1e-2),
    "foreach": lambda p: torch.optim.Adam(p, 1e-2, foreach=True),
    "fused": lambda p: torch.optim.Adam(p, 1e-2, fused=True),
}


@pytest.mark.parametrize("keep", [False, True], ids=["new gradients", "kept gradients"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_what_is_trained_is_the_same_before_inside_and_after(name: str, keep: bool) -> None:
    reference, model = net(), net()
    steps(reference, OPTIMIZERS[name](reference.parameters()), 6, keep=keep)
    found, objects = strides(model), [*model.parameters()]
    optimizer = OPTIMIZERS[name](model.parameters())
    steps(model, optimizer, 2, keep=keep)
    kept = state_of(optimizer)
    with msctx.context(variable_format_optimize=True) as ctx:
        ctx.watch(model)
        steps(model, optimizer, 2, keep=keep)
        assert model[0].weight.stride() == favoured(model[0].weight)
        model(IMAGES).square().mean().backward()  # a gradient that outlives the block
    assert state_of(optimizer) == kept
    assert strides(model) == found
    assert all(a is b for a, b in zip(model.parameters(), objects, strict=True))
    assert [p.grad.stride() for p in model.parameters()] == found
    steps(model, optimizer, 2, keep=keep)
    for one, other in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=2e-4, atol=2e-5)
    assert not memory_format._hooks


def test_an_optimizer_sees_the_found_strides_of_a_gradient_in_a_bucket() -> None:
    """As in DistributedDataParallel: its memory is not the parameter's to replace."""
    reference, model = net(), net()
    steps(reference, torch.optim.Adam(reference.parameters(), 1e-2, fused=True), 3)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2, fused=True)
    with msctx.context(variable_format_optimize=True) as ctx:
        ctx.watch(model)
        weight = model[0].weight
        bucket = torch.zeros(weight.numel() + 1)
        for _ in range(3):
            weight.grad = None
            view = bucket[1:].as_strided(weight.shape, weight.stride(), 1)
            model.zero_grad()
            model(IMAGES).square().mean().backward()
            weight.grad = view.copy_(weight.grad)
            optimizer.step()
            assert weight.grad is view
    torch.testing.assert_close(weight, reference[0].weight, rtol=2e-4, atol=2e-5)


def test_parameters_that_are_replaced_shared_or_not_dense() -> None:
    model = nn.ModuleList([nn.Conv2d(4, 4, 3) for _ in range(5)])
    model[1].weight = model[0].weight  # shared
    whole = torch.randn(4, 4, 3, 6)
    model[2].weight = nn.Parameter(whole[..., ::2])  # with gaps, in somebody's memory
    model[3].weight = nn.Parameter(torch.randn(3, 3, 4, 4).permute(3, 2, 1, 0))  # dense, in an order of its own
    found, old = strides(model), model[4].weight
    with msctx.context(variable_format_optimize=True) as ctx:
        ctx.watch(model)
        assert model[0].weight is model[1].weight
        assert model[0].weight.stride() == model[3].weight.stride() == favoured(model[0].weight)
        assert model[2].weight.stride() == whole[..., ::2].stride()
        model[4].weight = new = nn.Parameter(torch.randn(4, 4, 3, 3))
        model[3].weight.data.mul_(2)
        with torch.no_grad():
            model[0].weight.zero_()
    assert strides(model)[:-2] == found[:-2]
    assert (old.stride(), new.stride()) == (found[-2], (36, 9, 3, 1))
    assert not model[1].weight.any()


def test_what_the_program_lays_itself_inside_stays() -> None:
    model = nn.Conv2d(4, 6, 3).to(memory_format=torch.channels_last)
    with msctx.context(variable_format_optimize=False) as ctx:
        ctx.watch(model)
        model.weight.data = mine = torch.zeros(3, 3, 4, 6).permute(3, 2, 0, 1)
    assert model.weight.stride() == mine.stride()
