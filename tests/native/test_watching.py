"""conv_algo_rules and ctx.watch(model): algorithms for single modules and single problems."""

from __future__ import annotations

import copy
import gc
import signal
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
import torch
from convs import GEMM, asking, warned
from torch import nn
from torch.nn import functional as fn

import msctx
from msctx.native import watching
from msctx.options import OPTIONS
from msctx.options.kinds import BadValue

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
    assert ran(ctx, "wgrad") == {"layer2.0": "algo_3"}, "winograd has no weight gradient: nothing is asked for"


@pytest.fixture(autouse=True)
def only_models_of_this_test() -> None:
    """Others that are watched would make shapes ambiguous."""
    if watching._modules:
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
    "nothing was asked for": ({"layer9.*": "gemm", "stride=7": {"wgrad": "reference"}}, ["layer9.*", "stride=7"]),
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


@pytest.mark.parametrize(
    ("rule", "is_watched", "hints"),
    [("layer9.*", False, True), ("*", False, True), ("layer9.*", True, False), ("stride=7", False, False)],
)
def test_where_no_model_is_watched_a_rule_by_module_names_watch(
    rule: str, is_watched: bool, hints: bool, recwarn: pytest.WarningsRecorder
) -> None:
    with msctx.context(conv_algo_rules={rule: "gemm"}) as ctx:
        if is_watched:
            ctx.watch(model := Net())
        fn.conv2d(X, ONE)
    (text,) = warned(recwarn)
    assert ("; ctx.watch(model) makes" in text) == hints
    assert not is_watched or model


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


def test_such_an_error_is_raised_in_a_handler_and_replaces_no_exception() -> None:
    rules: dict[str, Any] = {"conv_algo_rules": {"stride=7": "gemm"}, "strict": True}

    def leave_by_a_callback() -> None:
        with ExitStack() as stack:
            stack.enter_context(msctx.context(**rules))
            stack.callback(lambda: fn.conv2d(X, ONE).numel() // 0)  # while the context is left, no exception is being handled

    def raise_again() -> None:
        with msctx.context(**rules):
            fn.conv2d(X, ONE)
            raise

    try:
        fn.conv2d(X, ONE).numel() // 0
    except ZeroDivisionError:
        with pytest.raises(msctx.StrictError, match="stride=7"), msctx.context(**rules):
            fn.conv2d(X, ONE)
        with pytest.warns(msctx.MsctxWarning), pytest.raises(ZeroDivisionError):
            raise_again()
    with pytest.warns(msctx.MsctxWarning), pytest.raises(ZeroDivisionError):
        leave_by_a_callback()


def test_a_rule_whose_row_was_dropped_is_not_reported(recwarn: pytest.WarningsRecorder) -> None:
    """One that matched nothing is, all the same."""
    w = torch.randn(1, 1, 1, 1)
    rules = {"input=1x1x1x7": {"fprop": "direct"}, "stride=5": {"fprop": "direct"}}
    with msctx.context(conv_algo_rules=rules, conv_fprop_algo="gemm") as ctx:
        for n in range(7, 4250):
            fn.conv2d(torch.ones(1, 1, 1, n), w)
    assert ctx.choices().dropped
    (found,) = warned(recwarn)
    assert "stride=5" in found


def test_a_rule_that_matches_what_was_decided_before_is_not_reported(recwarn: pytest.WarningsRecorder) -> None:
    for _ in range(2):
        with msctx.context(conv_algo_rules={"weight=4x3x3x3": "gemm"}) as ctx:
            fn.conv2d(X, ONE)
        assert len(ctx.choices()) == 1
    assert not warned(recwarn)
    with msctx.context(conv_algo_rules={"weight=4x3x3x3": "gemm"}):
        fn.conv2d(X, torch.randn(5, 3, 3, 3))
    (found,) = warned(recwarn)
    assert "weight=4x3x3x3" in found, "what matched before this context was entered does not count"


def test_a_rule_that_matched_stays_so_while_policies_come_and_go(recwarn: pytest.WarningsRecorder) -> None:
    with msctx.context(conv_algo_rules={"stride=3": "gemm"}), msctx.context(conv_algo_rules={"weight=4x*": "gemm"}):
        fn.conv2d(X, ONE)  # under the inner rules alone
    with msctx.context(conv_algo_rules={"weight=4x*": "gemm"}):
        with msctx.context(conv_dgrad_algo="normal"):  # the rules hold inside, too
            fn.conv2d(X, ONE)
        for n in range(40):  # more than are kept
            with msctx.context(conv_algo_rules={f"stride={n + 2}": "gemm"}):
                pass
        fn.conv2d(X, torch.randn(5, 3, 3, 3))
    assert not warned(recwarn)


def test_a_rule_whose_convolutions_did_run_by_another_one_is_not_unmatched(recwarn: pytest.WarningsRecorder) -> None:
    """A rule that asks for a backward pass only is not unmatched because nothing ran backward."""
    model = Net()
    with msctx.context(conv_algo_rules={"layer1.*": {"wgrad": "algo_1"}, "*": {"fprop": "gemm"}}) as ctx:
        ctx.watch(model)
        model(X)
    assert not warned(recwarn)


# --- weights that are elsewhere ---------------------------------------------------------------------------------------


def test_weights_that_are_cast_are_resolved_by_their_shape_where_one_module_has_it() -> None:
    model, alike = Net(), nn.Sequential(nn.Conv2d(3, 3, 3), nn.Conv2d(3, 3, 3))
    for watched, paths in ((model, {*PATHS}), (alike, {""})):
        with asking("fprop", "gemm") as ctx, torch.autocast("cpu", torch.bfloat16):
            ctx.watch(watched)
            watched(X)
        assert {row.module for row in ctx.choices()} == paths
        assert {row.problem.dtype for row in ctx.choices()} == {"bfloat16"}
    with asking("fprop", "gemm") as ctx:
        ctx.watch(model)
        model.double()(X.double())
    assert {*ran(ctx)} == {*PATHS}


def test_a_weight_that_got_a_new_storage_is_found_again() -> None:
    model = Net()
    ctx = asking("fprop", "gemm").watch(model)
    with ctx:
        model(X)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            module.weight = nn.Parameter(torch.randn_like(module.weight))
    model.head.weight.data = model.head.weight.data.clone()
    with ctx:
        model(X)
    assert {row.module: row.calls for row in ctx.choices()} == dict.fromkeys(PATHS, 2)
    with ctx:
        model.load_state_dict(Net().state_dict(), assign=True)
        model(X)
    assert {row.module for row in ctx.choices()} == {*PATHS}, "by shape"


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


def test_a_weight_that_was_met_before_is_found_once_a_module_has_it() -> None:
    """An average of the weights, of which the old ones are kept: it is tried out by itself first."""
    model, x = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), torch.randn(2, 8)
    average = {name: weight.clone() for name, weight in model.state_dict().items()}
    with msctx.context(matmul_algo_rules={"0": "reference", "1": "strict"}) as ctx:
        ctx.watch(model)
        model(x)
        for _ in range(5):
            torch.func.functional_call(model, average, (x,))
        kept = {name: weight.data for name, weight in model.named_parameters()}
        for name, weight in model.named_parameters():
            weight.data = average[name]
        for _ in range(20):
            model(x)
    assert kept
    assert min(row.calls for row in ctx.choices() if row.module) > 10


@pytest.mark.parametrize("transform", ["grad", "vmap"])
def test_wrappers_of_torch_func_in_the_place_of_weights_are_passed_over(transform: str) -> None:
    model, x = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), torch.randn(2, 8)
    weights = {name: weight.detach().clone() for name, weight in model.named_parameters()}

    def loss(given: dict[str, torch.Tensor]) -> torch.Tensor:
        made: torch.Tensor = torch.func.functional_call(model, given, (x,))
        return made.sum()

    with msctx.context(matmul_algo_rules={"0": "reference", "1": "strict"}) as ctx:
        ctx.watch(model)
        if transform == "grad":
            torch.func.grad(loss)(weights)
        else:
            torch.func.vmap(loss)({name: torch.stack([weight, weight]) for name, weight in weights.items()})
        model(x)
    assert {row.module: row.calls for row in ctx.choices() if row.module} == {"0": 1, "1": 1}


def _by_signal(compute: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> Callable[[], object]:
    monkeypatch.setitem(HANDLED, "before", signal.signal(signal.SIGUSR1, lambda *_: compute()))
    return lambda: signal.raise_signal(signal.SIGUSR1)


HANDLED: dict[str, Any] = {}


@pytest.mark.parametrize("begins", [_by_signal, lambda compute, monkeypatch: compute], ids=["signal", "finalizer"])
def test_what_is_computed_while_the_models_are_looked_at(begins: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal's handler, or a finalizer, meets a weight that nobody knows, in the middle of a look."""
    model, done, look = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), [], watching._look_at

    def compute() -> None:
        fn.linear(torch.randn(2, 8), torch.randn(8, 8))
        done.append(1)

    comes = begins(compute, monkeypatch)

    def looking(*given: Any) -> bool:
        if len(done) < 3:
            comes()
        return look(*given)

    try:
        with msctx.context(matmul_algo_rules={"0": "reference", "1": "strict"}) as ctx, torch.no_grad():
            ctx.watch(model)
            monkeypatch.setattr(watching, "_look_at", looking)
            for _ in range(3):
                compute()
            model(torch.randn(2, 8))
    finally:
        if HANDLED:
            signal.signal(signal.SIGUSR1, HANDLED.pop("before"))
    assert len(done) > 3
    assert {row.module for row in ctx.choices() if row.module} == {"0", "1"}


def test_weights_that_are_computed_for_each_call_cost_few_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    model, looks, look = nn.Sequential(*(nn.Linear(8, 8) for _ in range(4))), [], watching._look_again
    monkeypatch.setattr(watching, "_look_again", lambda library: (looks.append(library), look(library)))
    with msctx.context(matmul_algo="strict") as ctx, torch.no_grad():
        ctx.watch(model)
        model(torch.randn(2, 8))
        before = len(looks)
        for _ in range(100):
            fn.linear(torch.randn(2, 8), torch.randn(8, 8))
    assert len(looks) - before <= 100 / 4 + 3


def test_a_model_is_looked_at_again_only_where_it_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A context that watches it anew in every step costs little, and still knows what was exchanged between the steps."""
    model, looks, look = Net(), [], watching.watch
    monkeypatch.setattr(watching, "watch", lambda *given: (looks.append(given), look(*given)))

    def step() -> list[str]:
        with msctx.context(conv_algo_rules={"head": "gemm"}) as ctx:
            ctx.watch(model)
            model(X)
        return [row.module for row in ctx.choices() if row.ran == "gemm"]

    assert [step() for _ in range(3)] == [["head"]] * 3
    assert len(looks) == 1
    model.head.weight.data = model.head.weight.data.clone()
    assert (step(), len(looks)) == (["head"], 2)
    model.head = nn.ConvTranspose2d(5, 2, 2)
    assert (step(), len(looks)) == (["head"], 3)
    model.load_state_dict(Net().state_dict(), assign=True)
    assert (step(), step(), len(looks)) == (["head"], ["head"], 4)


def test_a_model_that_died_is_forgotten() -> None:
    model = Net()
    before = len(watching._modules)
    with asking("fprop", "gemm") as ctx:
        ctx.watch(model)
        assert len(watching._modules) == before + 4
        model(X)
        shape = model.layer1[0].weight.shape
        del model
        gc.collect()
        assert len(watching._modules) == before
        fn.conv2d(X, torch.randn(shape), padding=1)
    assert "" in ran(ctx)


def test_a_copy_is_another_model() -> None:
    model = Net()
    with asking("fprop", "gemm") as ctx:
        ctx.watch(model)
        other = copy.deepcopy(model)
        other.layer1[0].weight = nn.Parameter(torch.randn(4, 3, 1, 1))
        other.layer1[0](X)
        model(X)
    assert {*ran(ctx)} == {"", *PATHS}


def test_a_shared_weight_has_one_of_its_paths_also_when_another_module_dies() -> None:
    first, second = nn.Conv2d(3, 3, 3), nn.Conv2d(3, 3, 3)
    second.weight = first.weight
    model = nn.ModuleDict({"first": first, "second": second})
    with asking("fprop", "gemm") as ctx:
        ctx.watch(model)
        second(X)
        assert {*ran(ctx)} <= {"first", "second"}
        del model["second"], second
        gc.collect()
    with asking("fprop", "gemm") as later:
        later.watch(model)
        first(X)
    assert [*ran(later)] == ["first"]


def test_modules_that_see_one_weight_in_two_shapes_can_die_one_after_the_other() -> None:
    first, second = nn.Conv2d(3, 4, 5, bias=False), nn.Conv2d(4, 3, 5, bias=False)
    second.weight = nn.Parameter(first.weight.data.view(3, 4, 5, 5))
    kept = nn.Conv2d(3, 4, 7)
    with asking("fprop", "gemm") as ctx:
        ctx.watch(first).watch(second).watch(kept)
        del first
        gc.collect()
        del second
        gc.collect()
        fn.conv2d(X, torch.randn(4, 3, 5, 5))
    assert [*ran(ctx)] == [""]


def test_a_model_without_convolutions() -> None:
    with asking("fprop", "gemm") as ctx:
        ctx.watch(nn.Linear(3, 4)).watch(nn.LazyConv2d(4, 3))
        fn.conv2d(X, ONE)
    assert [*ran(ctx)] == [""]


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


@pytest.mark.parametrize(
    "written",
    [
        '{"layer1.*": "winograd", "weight=64x3x7x7": {"fprop": "gemm"}}',
        "{layer1.*: winograd, weight=64x3x7x7: {fprop: gemm}}",
        "layer1.*: winograd; weight=64x3x7x7: fprop=gemm",
    ],
)
def test_rules_on_a_command_line(written: str) -> None:
    mapping = {"layer1.*": "winograd", "weight=64x3x7x7": {"fprop": "gemm"}}
    parse = OPTIONS["conv_algo_rules"].kind.parse
    assert parse(written) == parse(mapping)
    with pytest.raises(BadValue, match="is not a mapping"):
        parse(written[:-1] if written.startswith("{") else "{" + written)


def test_a_module_that_ever_new_models_share_is_known_once_for_each_that_lives() -> None:
    shared = nn.Linear(4, 4)
    with msctx.context(matmul_algo="reference", fallback="silent") as ctx:
        for _ in range(5):
            ctx.watch(nn.Sequential(shared))
        for _ in range(5):
            with msctx.context() as inner:
                inner.watch(nn.Sequential(shared))
            del inner
        gc.collect()
        ctx.watch(nn.Sequential(shared))
        known = [key for key in watching._modules if key[0] == id(shared)]
    assert len(known) <= 6


def test_conditions_take_what_choices_shows_of_calls_that_are_left_to_torch() -> None:
    x, w = X.long(), ONE.long()
    with asking("fprop", "gemm", fallback="silent") as ctx:
        fn.conv2d(x, w)
    problem = ctx.choices()[0].problem
    with msctx.context(conv_algo_rules={f"dtype={problem.dtype} layout={problem.layout}": "gemm"}, fallback="silent") as ctx:
        fn.conv2d(x, w)
    assert ctx.choices()[0].asked == "gemm", "the rule matched"
