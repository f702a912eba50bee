"""How options act on each other: each rule is checked by its own row. Examples are in ``data/plans-rules.txt`` and ``values.txt``."""

from contextlib import suppress
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from samples import example

import msctx
from msctx.errors import OptionError
from msctx.options import OPTIONS, Settings, algorithm_policy, make_layer, rules
from msctx.plan import Row
from msctx.themes.precision import PRECISION_MODES, PRECISION_MODES_V2

EXCLUDES, NEEDS, FORBIDS = (
    [rule for rule in rules.RULES if isinstance(rule, kind)] for kind in (rules.Excludes, rules.Needs, rules.Forbids)
)
pytestmark = pytest.mark.filterwarnings("ignore::msctx.MsctxWarning")


def row(values: dict[str, Any], name: str, device: str = "cpu") -> Row:
    (found,) = [r for r in msctx.explain(values, device=device).rows if r.spelling == name]
    return found


def stacked(*layers: dict[str, Any]) -> Settings:
    return Settings([make_layer(values, f"layer {i}") for i, values in enumerate(layers)])


def test_rules_name_options_and_values_that_exist() -> None:
    for rule in rules.RULES:
        assert {*rule.names} <= OPTIONS.keys(), rule
        whens = [v for v in vars(rule).values() if isinstance(v, rules.When)]
        for when in [*whens, *getattr(rule, "others", ())]:
            for value in when.values:
                found = make_layer({when.name: value}, "test").settings[when.name].value
                assert (type(found), found) == (type(value), value), rule
    assert set(PRECISION_MODES) == set(OPTIONS["precision_mode"].choices)
    assert set(PRECISION_MODES_V2) == set(OPTIONS["precision_mode_v2"].choices)


@pytest.fixture
def oom(tmp_path: Path) -> str:
    path = tmp_path / "debug.cfg"
    path.write_text("op_debug_config=oom\n")
    return str(path)


def sample(when: rules.When, oom: str) -> Any:
    option = OPTIONS[when.name]
    candidates = [*when.values, *[oom] * (when.name == "op_debug_config"), example(option), 2, 5, 600, 1000]
    for value in candidates:
        with suppress(OptionError):
            if when.holds(make_layer({when.name: value}, "test").settings[when.name]):
                return value
    raise AssertionError(f"no value for {when}")


NEEDED = {name: {"dump_path": "."} for name in ("session.enable_dump", "enable_dump_debug")}
"""What is an error without something else."""


@pytest.mark.parametrize("rule", EXCLUDES, ids=str)
def test_a_forbidden_pair_is_an_error_in_one_call_and_in_two(rule: rules.Excludes, oom: str) -> None:
    one, other = ({**NEEDED.get(when.name, {}), when.name: sample(when, oom)} for when in (rule.first, rule.second))
    if rule.test is not None and not rule.test(one[rule.first.name], other[rule.second.name]):
        one, other = {"hccl_timeout": 600}, {"stream_sync_timeout": 1000}
    for first, second in ((one, other), (other, one)):
        with pytest.raises(OptionError, match="cannot be set together with"):
            msctx.set_context(**first, **{key: value for key, value in second.items() if key not in first})
        assert msctx.get_context() == {}
        try:
            msctx.set_context(**first)
            before = msctx.get_context()
            with pytest.raises(OptionError, match=r"cannot be set together with .* from set_context at test_rules\.py"):
                msctx.set_context(**second)
            assert msctx.get_context() == before
        finally:
            msctx.reset_context()


@pytest.mark.parametrize("rule", NEEDS, ids=str)
def test_every_need_is_checked(rule: rules.Needs, oom: str) -> None:
    name = rule.option.name
    device = OPTIONS[name].devices[0]
    alone = {name: sample(rule.option, oom)}
    found = row(alone, name, device)
    assert (found.status, found.is_error) == (("refused", True) if rule.status == "error" else (rule.status, False))
    met = {w.name: sample(w, oom) for w in rule.others[:1]}
    both = {s.option.name: s for s in make_layer({**alone, **met}, "test").settings.values()}
    told = rules.obstacle(both[name], both.get, device)
    assert told is None or rule.why not in told[1]
    assert rules.obstacle(both[name], lambda n: None if n in met else both.get(n), device) is not None


@pytest.mark.parametrize("rule", FORBIDS, ids=str)
def test_everything_forbidden_is_told(rule: rules.Forbids, oom: str) -> None:
    for value in rule.other.values:
        needed = [need.others[0] for need in NEEDS if need.option.name == rule.option.name]
        given = {need.name: sample(need, oom) for need in needed}
        given |= {rule.other.name: value, rule.option.name: sample(rule.option, oom)}
        found = row(given, rule.option.name, OPTIONS[rule.option.name].devices[0])
        status = "inert" if rule.status == "off" else rule.status
        assert (found.status, found.reason, found.shadowed) == (status, rule.why, rule.status == "off")


def test_the_order_in_which_options_are_set_does_not_matter() -> None:
    options = {"memory_optimize_level": "O1", "memory_offload": "ON", "mempool_block_size": "2GB"}
    for order in permutations(options.items()):
        settings = stacked(dict(order))
        assert set(settings.on("cuda")) == {"memory_optimize_level", "mempool_block_size"}
        (lost,) = settings.overridden("cuda")
        assert (lost.setting.option.name, lost.winner.option.name) == ("memory_offload", "memory_optimize_level")


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        (({"precision_mode": "force_fp16"}, {"precision_mode_v2": "origin"}), True),
        (({"memory_optimize_level": "O1"}, {"memory_offload": "ON"}), False),
        (({"memory_optimize_level": "O1", "memory_offload": "ON"},), False),
    ],
)
def test_what_yields_is_worth_a_warning_unless_something_further_in_replaced_it(layers: Any, expected: bool) -> None:
    settings = stacked(*layers)
    assert [lost.expected for lost in settings.overridden("cpu")] == [expected]
    merged = make_layer(layers[0], "a").under(make_layer(layers[-1], "b"), lower=len(layers) > 1)
    assert set(Settings([merged]).on("cpu")) == set(settings.on("cpu")), "layers may be merged"


def test_checked_kernels_are_not_cached_unless_they_are_listed(tmp_path: Path) -> None:
    path = tmp_path / "debug.cfg"
    given = {"op_debug_config": str(path), "op_compiler_cache_mode": "enable"}
    path.write_text("op_debug_config=dump_cce\n")
    assert row(given, "op_compiler_cache_mode").reason.startswith("overridden by op_debug_config=")
    path.write_text("op_debug_config=dump_cce\nop_debug_list=conv1\n")
    assert row(given, "op_compiler_cache_mode").status == "honoured"


def test_a_requirement_may_come_from_an_outer_scope(tmp_path: Path) -> None:
    msctx.set_context(dump_path=str(tmp_path))
    try:
        with msctx.context(session={"enable_dump": True}) as ctx:
            (found,) = [r for r in ctx.plan.rows if r.spelling == "session.enable_dump"]
            assert found.status == "approximated"
    finally:
        msctx.reset_context()


@pytest.mark.parametrize("name", ["enable_dump", "enable_dump_debug"])
@pytest.mark.parametrize("strict", [False, True])
def test_a_dump_without_a_folder_is_an_error_before_anything_changes(name: str, strict: bool) -> None:
    requested = {"session": {name: True, "op_execute_timeout": 100}, "strict": strict}
    told = rf"session\.{name}: it needs dump_path; set it, or leave .*{name} out"
    before = msctx.state()
    for set_it in (lambda: msctx.context(**requested).__enter__(), lambda: msctx.set_context(**requested)):
        with pytest.raises(OptionError, match=told):
            set_it()
    assert msctx.state() == before
    assert not msctx.get_context()


def test_which_algorithm_is_asked_for_is_read_from_the_rules_themselves() -> None:
    assert algorithm_policy.requested_by({"fprop": None}, None) == {}
    assert algorithm_policy.requested_by({"fprop": "gemm", "dgrad": None}, "performance.*: fprop=gemm, dgrad=algo_0") == {
        ("fprop", "gemm"): "conv_fprop_algo=gemm",
        ("dgrad", "algo_0"): "dgrad=algo_0 of conv_algo_rules",
    }
