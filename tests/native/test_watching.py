"""conv_algo_rules and ctx.watch(model): algorithms for single modules and single problems."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from convs import GEMM, asking, warned
from torch import nn
from torch.nn import functional as fn

import msctx
from msctx.native import watched

pytestmark = pytest.mark.usefixtures("one_thread")


class Net(nn.Module):
    """Two blocks and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.layer1 = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1))
        self.layer2 = nn.Sequential(nn.Conv2d(4, 5, 3, stride=2))
        self.head = nn.ConvTranspose2d(5, 2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.head(self.layer2(self.layer1(x)))
        return result


X = torch.randn(2, 3, 9, 9)
PATHS = ["layer1.0", "layer1.2", "layer2.0", "head"]


def ran(ctx: msctx.Context, direction: str = "fprop") -> dict[str, str]:
    """Module → what ran."""
    return {row.module: row.ran for row in ctx.choices() if row.direction == direction}


def test_the_modules_of_a_watched_model_have_their_paths() -> None:
    model = Net()
    with msctx.context(**GEMM) as ctx:
        assert ctx.watch(model) is ctx
        model(X).sum().backward()
    for direction, paths in (("fprop", PATHS), ("dgrad", PATHS[1:]), ("wgrad", PATHS)):
        assert sorted(ran(ctx, direction)) == sorted(paths)
    assert "layer1.0: 2x3x9x9 * 4x3x3x3" in str(ctx.choices())


def test_the_first_rule_that_matches_and_names_the_direction_decides() -> None:
    model = Net()
    rules = {
        "layer1.0": {"fprop": "direct"},
        "layer1.*": "winograd",
        "layer2.*": {"fprop": "direct", "wgrad": "algo_3"},
        "head": {"dgrad": "algo_1"},
        "*": {"fprop": "gemm"},
    }
    with msctx.context(conv_algo_rules=rules) as ctx:
        ctx.watch(model)
        model(X).sum().backward()
    assert ran(ctx) == {"layer1.0": "direct", "layer1.2": "winograd", "layer2.0": "direct", "head": "gemm"}
    assert ran(ctx, "dgrad") == {"layer1.2": "winograd", "head": "algo_1"}
    assert ran(ctx, "wgrad") == {"layer2.0": "algo_3"}, "winograd has no weight gradient: nothing is requested"


@pytest.fixture(autouse=True)
def only_models_of_this_test() -> None:
    """Others that are watched would make shapes ambiguous."""
    gc.collect()


CONDITIONS = {
    "weight=4x3x3x3": ["layer1.0"],
    "weight=4x*": ["layer1.0", "layer1.2"],
    "stride=2": ["layer2.0"],
    "padding=1": ["layer1.0", "layer1.2"],
    "transposed=true": ["head"],
    "input=2x4x9x9 stride=1": ["layer1.2"],
    "module=layer1.* weight=4x4x3x3": ["layer1.2"],
    "groups=1": PATHS,
    "dilation=1 dtype=float32 layout=channels_first": PATHS,
    "layer?.0": ["layer1.0", "layer2.0"],
    "*": PATHS,
}


def test_conditions() -> None:
    model = Net()
    for conditions, matched in CONDITIONS.items():
        with msctx.context(conv_algo_rules={conditions: {"fprop": "reference"}}) as ctx:
            ctx.watch(model)
            model(X)
        assert {*ran(ctx)} == {*matched}, conditions


FIELDS: dict[str, dict[str, Any]] = {
    "stride=2x1": {"stride": (2, 1)},
    "padding=0x2": {"padding": (0, 2)},
    "dilation=2": {"dilation": 2},
    "groups=2": {"groups": 2},
    "dtype=bfloat16": {},
    "layout=channels_last": {},
}


def test_fields_are_compared_with_what_choices_shows() -> None:
    for field, options in FIELDS.items():
        dtype = torch.bfloat16 if "dtype" in field else torch.float32
        layout = torch.channels_last if "layout" in field else torch.contiguous_format
        x = torch.randn(1, 4, 9, 9, dtype=dtype).to(memory_format=layout)
        w = torch.randn(4, 4 // options.get("groups", 1), 3, 3, dtype=dtype)
        with msctx.context(conv_algo_rules={field: {"fprop": "gemm"}}, conv_fprop_algo="reference") as ctx:
            fn.conv2d(x, w, **options)
            fn.conv2d(torch.randn(1, 3, 7, 7), ONE)
        found = {row.problem.weight[1] * row.problem.groups: row.ran for row in ctx.choices()}
        assert found == {4: "gemm", 3: "reference"}, field


ONE = torch.randn(4, 3, 3, 3)
UNMATCHED = {
    "others matched": ({"weight=4x3x3x3": "gemm", "layer9.*": "gemm", "stride=7": "reference"}, ["layer9.*", "stride=7"]),
    "other images": ({"dims=2": {"fprop": "gemm"}, "dims=3": {"fprop": "gemm"}}, ["dims=3"]),
    "nothing was requested": ({"layer9.*": "gemm", "stride=7": {"wgrad": "reference"}}, ["layer9.*", "stride=7"]),
    "a pattern of its own": ({"weight=[^5]x*": {"fprop": "gemm"}}, []),
}


@pytest.mark.parametrize("case", UNMATCHED)
def test_rules_that_matched_nothing_are_reported(case: str, recwarn: pytest.WarningsRecorder) -> None:
    rules, expected = UNMATCHED[case]
    with msctx.context(conv_algo_rules=rules):
        pass
    assert not warned(recwarn), "nothing ran"
    with msctx.context(conv_algo_rules=rules):
        fn.conv2d(X, ONE)
    assert [text.partition("; ")[0].rpartition(" ")[2] for text in warned(recwarn)] == expected


@pytest.mark.parametrize("asking", [{"strict": True}, {"fallback": "error"}])
def test_a_rule_that_matched_nothing_is_an_error_where_nothing_may_be_left_out(
    asking: dict[str, object], recwarn: pytest.WarningsRecorder
) -> None:
    rules = {"conv_algo_rules": {"stride=7": "gemm", "layer9.*": "gemm"}}
    with (
        pytest.raises(msctx.StrictError, match=r"(?s)no convolution matched stride=7\n.*layer9"),
        msctx.context(**rules, **asking),
    ):
        fn.conv2d(X, ONE)
    outer = msctx.context(conv_dgrad_algo="algo_1", **asking)
    with pytest.raises(msctx.StrictError, match="stride=7"), outer, msctx.context(**rules):
        fn.conv2d(X, ONE)
    assert not warned(recwarn)
    assert not msctx.state()["native.convolution.cpu"], "all is put back first"
    with pytest.raises(ZeroDivisionError), msctx.context(**rules, **asking):
        fn.conv2d(X, ONE).numel() // 0
    assert len(warned(recwarn)) == 2, "beside an exception that is under way they are warnings"
    with msctx.context(**rules, **asking):
        pass


# --- weights that are elsewhere ---------------------------------------------------------------------------------------


def test_weights_that_are_cast_are_resolved_by_their_shape_where_one_module_has_it() -> None:
    model, alike = Net(), nn.Sequential(nn.Conv2d(3, 3, 3), nn.Conv2d(3, 3, 3))
    for one, paths in ((model, {*PATHS}), (alike, {""})):
        with asking("fprop", "gemm") as ctx, torch.autocast("cpu", torch.bfloat16):
            ctx.watch(one)
            one(X)
        assert {row.module for row in ctx.choices()} == paths
        assert {row.problem.dtype for row in ctx.choices()} == {"bfloat16"}
    with asking("fprop", "gemm") as ctx:
        ctx.watch(model)
        model.double()(X.double())
    assert {*ran(ctx)} == {*PATHS}


def _cloned(model: nn.Sequential) -> None:
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()


EXCHANGES: dict[str, Callable[[nn.Sequential], object]] = {
    "data": _cloned,
    "dtype": lambda model: model.double().float(),
    "assign": lambda model: model.load_state_dict({k: v.clone() for k, v in model.state_dict().items()}, assign=True),
    "module": lambda model: model.__setitem__(0, copy.deepcopy(model[0])),
}


@pytest.mark.parametrize("kind", ["convolution", "product"])
@pytest.mark.parametrize("what", EXCHANGES)
def test_rules_hold_inside_a_scope_where_weights_are_exchanged(what: str, kind: str) -> None:
    """Though two modules have weights of one shape."""
    if kind == "product":
        model, x, rules = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), torch.randn(2, 8), {"matmul_algo_rules": "strict"}
    else:
        model, x = nn.Sequential(nn.Conv2d(8, 8, 3), nn.Conv2d(8, 8, 3)), torch.randn(2, 8, 9, 9)
        rules = {"conv_algo_rules": "gemm"}
    ((option, other),) = rules.items()
    with msctx.context(**{option: {"0": "reference", "1": other}}, strict=True) as ctx:
        ctx.watch(model)
        for number in range(3):
            model(x)
            calls = {(row.module, row.ran): row.calls for row in ctx.choices()}
            assert calls == {("0", "reference"): number + 1, ("1", other): number + 1}
            EXCHANGES[what](model)


def test_a_model_is_looked_at_again_only_where_it_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A context that watches it anew in every step costs little, and still knows what was exchanged between the steps."""
    model, looks, look = Net(), list[bool](), watched._look_at

    def noted(one: watched.Model) -> bool:
        found = look(one)
        looks.append(found and one.module() is model)
        return found

    monkeypatch.setattr(watched, "_look_at", noted)

    def step() -> list[str]:
        with msctx.context(conv_algo_rules={"head": "gemm"}) as ctx:
            ctx.watch(model)
            model(X)
        return [row.module for row in ctx.choices() if row.ran == "gemm"]

    assert [step() for _ in range(3)] == [["head"]] * 3
    assert sum(looks) == 1
    model.head.weight.data = model.head.weight.data.clone()
    assert (step(), sum(looks)) == (["head"], 2)
    model.head = nn.ConvTranspose2d(5, 2, 2)
    assert (step(), sum(looks)) == (["head"], 3)
    model.load_state_dict(Net().state_dict(), assign=True)
    assert (step(), step(), sum(looks)) == (["head"], ["head"], 4)


def test_a_model_that_died_is_forgotten() -> None:
    model = Net()
    with asking("fprop", "gemm") as ctx:
        ctx.watch(model)
        model(X)
        shape, number = model.layer1[0].weight.shape, watched.record(model).number
        del model
        gc.collect()
        fn.conv2d(X, torch.randn(shape), padding=1)
    assert "" in ran(ctx)
    assert number not in {model.number for model in watched.KNOWN}


def test_watching_runs_no_parametrization() -> None:
    """Power iterations and random numbers belong to the model: an observer moves neither."""
    model = nn.utils.parametrizations.spectral_norm(nn.Conv2d(3, 4, 5))
    parametrizations: Any = model.parametrizations
    before = parametrizations["weight"][0]._u.clone()
    random_state = torch.get_rng_state()
    ctx = asking("fprop", "gemm").watch(model)
    with ctx:
        pass
    assert torch.equal(parametrizations["weight"][0]._u, before)
    assert torch.equal(torch.get_rng_state(), random_state)
    with ctx:
        model(torch.randn(1, 3, 9, 9))
    assert [row.calls for row in ctx.choices()] == [1]


def test_another_models_weight_of_the_same_shape_is_not_the_watched_one() -> None:
    student, teacher = nn.Sequential(nn.Conv2d(3, 4, 3)), nn.Sequential(nn.Conv2d(3, 4, 3))
    x = torch.randn(1, 3, 8, 8)
    with msctx.context(conv_algo_rules={"0": "fft"}) as ctx:
        ctx.watch(student)
        teacher(x)
        student(x)
    assert [(row.module, row.ran, row.calls) for row in ctx.choices()] == [("0", "fft", 1)]


def test_weights_laid_into_one_storage_are_distinguished() -> None:
    flat = torch.randn(288)
    model = nn.Sequential(*(nn.Conv2d(4, 4, 3, padding=1, bias=False) for _ in range(2)))
    for i, module in enumerate(model):
        module.weight = nn.Parameter(flat[144 * i : 144 * (i + 1)].view(4, 4, 3, 3))
    with asking("fprop", "gemm") as ctx:
        ctx.watch(model)
        model(torch.randn(1, 4, 6, 6))
    assert {row.module for row in ctx.choices()} == {"0", "1"}
