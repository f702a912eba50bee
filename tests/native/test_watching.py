"""ctx.watch(model): rules for modules and problems act on the models of open contexts, whoever dies or is exchanged meanwhile."""

import copy
import gc
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from convs import asking, warned
from torch import nn
from torch.nn import functional as fn

import msctx
from msctx.errors import MsctxWarning
from msctx.memory import parameter_placement
from msctx.native import watched_models

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


def ran(ctx: "msctx.Context", direction: str = "fprop") -> dict[str, str]:
    """Module → what ran."""
    return {row.module: row.ran for row in ctx.choices() if row.direction == direction}


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


def test_rules_of_the_process_that_matched_nothing_are_reported(recwarn: pytest.WarningsRecorder) -> None:
    msctx.set_context(conv_algo_rules={"stride=7": "gemm", "weight=4x3x3x3": "gemm"}, strict=True)
    fn.conv2d(X, ONE)
    msctx.set_context(seed=0)
    assert not warned(recwarn)
    msctx.reset_context()
    assert warned(recwarn) == ["conv_algo_rules: no convolution matched stride=7"]


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


def _laid_into_one_storage(model: nn.Sequential) -> None:
    flat = torch.cat([module.weight.detach().flatten() for module in model])
    for module, values in zip(model, flat.chunk(2), strict=True):
        module.weight = nn.Parameter(values.view_as(module.weight))


EXCHANGES: dict[str, Callable[[nn.Sequential], object]] = {
    "storage": _laid_into_one_storage,
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


# --- whose models -----------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def weights_in_a_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ASCEND_WORK_PATH", str(tmp_path))


def model_of(channels: int = 3) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(channels, 4, 3), nn.Conv2d(4, 4, 3))


def moved() -> int:
    return parameter_placement.placed()["moved"]


def test_a_later_context_leaves_the_models_of_one_that_was_left_alone() -> None:
    model = model_of()
    with msctx.context(deterministic="OFF") as ctx:
        ctx.watch(model)
    with msctx.context(external_weight=True) as later:
        assert moved() == 0
        with ctx:
            assert moved() == 4, "it keeps its models, also inside another"
        assert moved() == 0
        later.watch(model)
        assert moved() == 4
    assert moved() == 0
    with later:
        assert moved() == 4, "entered again it has them, too"


def test_contexts_inside_one_that_watches_act_on_its_models() -> None:
    one, other = model_of(), model_of()
    with msctx.context(deterministic="OFF") as outer:
        outer.watch(one)
        with msctx.context(external_weight=True) as inner:
            assert moved() == 4
            inner.watch(other).watch(one)
            assert moved() == 8
        assert moved() == 0
    with msctx.context(external_weight=True) as outer:
        outer.watch(one)
        with msctx.context(deterministic="OFF") as inner:
            inner.watch(one).watch(other)
            assert moved() == 8
        assert moved() == 4, "the inner one's own are put back"


def test_names_and_rules_are_those_of_open_contexts() -> None:
    one, other = model_of(), model_of()
    x = torch.randn(1, 3, 8, 8)
    with msctx.context(conv_fprop_algo="gemm") as first:
        first.watch(one)
        one(x)
    assert [row.module for row in first.choices()] == ["0", "1"]
    with msctx.context(conv_algo_rules={"0": "direct"}) as second:
        second.watch(other)
        one(x)
        other(x)
    assert {row.module: row.ran for row in second.choices()} == {"0": "direct"}, "the first model's 0 is not meant"
    with first:
        one(x)
    assert {row.module: row.calls for row in first.choices()} == {"0": 2, "1": 2}


def test_outside_of_every_block_it_is_for_the_process() -> None:
    msctx.current().watch(model := model_of())
    with msctx.context(external_weight=True):
        assert moved() == 4
    assert len(watched_models.models()) == 1
    del model
    gc.collect()
    assert watched_models.models() == []


def test_a_function_that_is_bound_has_the_models_of_its_context() -> None:
    model = model_of()
    with msctx.context(external_weight=True) as ctx:
        ctx.watch(model)
        bound = ctx.bind(moved)
    assert bound() == 4
    assert moved() == 0
    with pytest.warns(MsctxWarning, match="did nothing to any model"):
        assert pickle.loads(pickle.dumps(bound))() == 0


def test_copies_and_pickles_of_watched_models_are_not_watched() -> None:
    model = model_of()
    with msctx.context(external_weight=True) as ctx:
        ctx.watch(model)
        others = [copy.deepcopy(model), pickle.loads(pickle.dumps(model)), copy.copy(model)[0:1]]
        assert moved() == 4
        for other in others[:2]:
            assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    "option",
    [{"conv_fprop_algo": "gemm", "fallback": "silent"}, {"memory_optimize_level": "O1"}, {"external_weight": True}],
    ids=str,
)
def test_scripted_and_traced_models_can_be_watched(option: dict[str, Any]) -> None:
    model = nn.Sequential(nn.Sequential(nn.Conv2d(3, 3, 3), nn.Tanh()), nn.Sequential(nn.Conv2d(3, 3, 3), nn.Tanh()))
    x = torch.randn(1, 3, 8, 8)
    expected = model(x)
    for other in (torch.jit.script(model), torch.jit.trace(model, x)):
        with msctx.context(**option) as ctx:
            ctx.watch(other)
            found = other(x)
            found.sum().backward()
        assert torch.allclose(found, expected, atol=1e-5)
