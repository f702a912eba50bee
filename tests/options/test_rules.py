"""How options act on each other, one by one: who wins, who excludes whom, who needs whom."""

import re
from contextlib import suppress
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
import torch
from samples import example

import msctx
from msctx.errors import OptionError
from msctx.options import OPTIONS, Settings, conv_rules, make_layer, rules
from msctx.plan import Row

pytestmark = pytest.mark.filterwarnings("ignore::msctx.MsctxWarning")


def row(values: dict[str, Any], name: str, device: str = "cpu") -> Row:
    """The row of the spelling *name* in the plan of *values*."""
    found = [r for r in msctx.explain(values, device=device).rows if r.spelling == name]
    assert len(found) == 1, found
    return found[0]


def stacked(*layers: dict[str, Any]) -> Settings:
    return Settings([make_layer(values, f"layer {i}") for i, values in enumerate(layers)])


def in_force(settings: Settings, device: str = "cpu") -> dict[str, Any]:
    return {name: found[0].value for name, found in settings.on(device).items()}


def names_of(rule: Any) -> list[str]:
    """The options that a rule names."""
    match rule:
        case rules.Overrides():
            return [rule.winner.name, rule.loser.name]
        case rules.Excludes():
            return [rule.first.name, rule.second.name]
        case rules.Needs():
            return [rule.option.name, *(other.name for other in rule.others)]
        case _:
            return [rule.option.name, rule.other.name]


ACCELERATE = "experimental_accelerate_train_mode"
ALL = [*rules.OVERRIDES, *rules.EXCLUDES, *rules.NEEDS, *rules.FORBIDS]


def test_rules_name_options_and_values_that_exist() -> None:
    for rule in ALL:
        for name in names_of(rule):
            assert name in OPTIONS, rule
            assert rules.sentences(name), f"the reference has nothing of {rule}"
        whens = [v for v in vars(rule).values() if isinstance(v, rules.When)]
        for when in [*whens, *getattr(rule, "others", ())]:
            for value in when.values:
                found = make_layer({when.name: value}, "test").settings[when.name].value
                assert (type(found), found) == (type(value), value), rule


# --- who wins ---------------------------------------------------------------------------------------------------------

INI = "[ByOpType]\nSoftmaxV2=high_precision\n[ByNodeName]\nconv1=high_performance\n"


@pytest.fixture
def ini(tmp_path: Path) -> str:
    path = tmp_path / "ops.ini"
    path.write_text(INI)
    return str(path)


@pytest.mark.parametrize(
    ("winner", "value", "loser", "other"),
    [
        ("graph_kernel_flags.opt_level", 0, "enable_graph_kernel", True),
        ("graph_kernel_flags.opt_level", 3, "enable_graph_kernel", False),
        ("op_precision_mode", None, "op_select_implmode", "high_precision"),
        ("op_precision_mode", None, "optypelist_for_implmode", "Pooling"),
        ("dynamic_dims", "2,2;4,4", "dynamic_inputs_shape_range", "data:[128,-1]"),
        ("memory_optimize_level", "O1", "memory_offload", "ON"),
        ("memory_offload", "ON", "mempool_block_size", "2GB"),
        ("graph_run_mode", 0, "enable_small_channel", 0),
        ("op_debug_level", 1, "op_compiler_cache_mode", "force"),
    ],
)
def test_the_source_names_a_winner(winner: str, value: Any, loser: str, other: Any, ini: str) -> None:
    values = {winner: ini if value is None else value, loser: other}
    device = "cuda" if winner == "memory_offload" else "cpu"
    for order in (values, dict(reversed(values.items()))):
        settings = stacked(order)
        assert loser not in in_force(settings, device)
        assert winner in in_force(settings, device)
        told = row(order, loser, device)
        assert told.status == "inert"
        assert told.reason.startswith(f"overridden by {winner}=")
        assert told in msctx.explain(order, device=device).failing, "the user set it, and it has no effect: worth a warning"


def test_what_is_refused_further_in_takes_nobodys_place(ini: str) -> None:
    """A list of operators does nothing without op_select_implmode."""
    alone = stacked({"op_precision_mode": ini}, {"optypelist_for_implmode": "MatMul"})
    assert "op_precision_mode" in in_force(alone)
    assert "optypelist_for_implmode" not in in_force(alone)
    both = stacked({"op_precision_mode": ini}, {"optypelist_for_implmode": "MatMul", "op_select_implmode": "high_precision"})
    assert "op_precision_mode" not in in_force(both)
    assert "optypelist_for_implmode" in in_force(both)


@pytest.mark.parametrize(
    ("winner", "value", "loser", "other"),
    [
        ("memory_optimize_level", "O0", "memory_offload", "ON"),
        ("graph_run_mode", 1, "enable_small_channel", 0),
        ("graph_run_mode", 0, "enable_small_channel", 1),
        ("op_debug_level", 0, "op_compiler_cache_mode", "force"),
        ("memory_offload", "OFF", "mempool_block_size", "2GB"),
    ],
)
def test_another_value_overrides_nothing(winner: str, value: Any, loser: str, other: Any) -> None:
    assert set(in_force(stacked({winner: value, loser: other}))) == {winner, loser}


def test_graph_kernel_flags_as_text_win_over_enable_graph_kernel() -> None:
    values = {"graph_kernel_flags": "--opt_level=0", "enable_graph_kernel": True}
    assert row(values, "enable_graph_kernel").reason.startswith("overridden by graph_kernel_flags.opt_level=0")
    assert "enable_graph_kernel" in in_force(stacked({"graph_kernel_flags": "--dump_as_text", "enable_graph_kernel": True}))


@pytest.mark.parametrize(("flags", "enabled"), [("--opt_level=0", False), ("--opt_level=2", True)])
def test_graph_kernel_flags_that_agree_with_enable_graph_kernel_take_nothing_away(flags: str, enabled: bool) -> None:
    plan = msctx.explain(graph_kernel_flags=flags, enable_graph_kernel=enabled, mode="GRAPH_MODE", strict=True, device="cpu")
    assert {row.spelling: row.status for row in plan.rows}["enable_graph_kernel"] == "honoured"
    assert not plan.failing


@pytest.mark.parametrize(
    ("outer", "inner", "left"),
    [
        (
            {"graph_kernel_flags": "--opt_level=3"},
            {"enable_graph_kernel": False},
            {"graph_kernel_flags", "enable_graph_kernel"},
        ),
        ({"enable_graph_kernel": False}, {"graph_kernel_flags.opt_level": 3}, {"graph_kernel_flags.opt_level"}),
        ({"precision_mode": "force_fp16"}, {"precision_mode_v2": "origin"}, {"precision_mode_v2"}),
        ({"precision_mode_v2": "origin"}, {"precision_mode": "force_fp16"}, {"precision_mode"}),
        ({"session": {"enable_dump": True}}, {"enable_dump_debug": True}, {"enable_dump_debug"}),
    ],
)
def test_of_two_that_compete_the_inner_scope_wins(outer: dict[str, Any], inner: dict[str, Any], left: set[str]) -> None:
    settings = stacked(outer, inner)
    assert set(in_force(settings)) == left
    assert all(expected for _, _, expected in settings.overridden("cpu"))


def test_a_winner_by_rule_wins_from_outside_too() -> None:
    settings = stacked({"memory_optimize_level": "O1"}, {"memory_offload": "ON"})
    assert in_force(settings) == {"memory_optimize_level": "O1"}
    (lost,) = settings.overridden("cpu")
    assert not lost.expected, "the inner scope asked for something that has no effect: worth a warning"


def test_what_something_further_in_replaced_is_no_fault() -> None:
    msctx.set_context(precision_mode="force_fp16")
    try:
        with msctx.context(precision_mode_v2="origin") as ctx:
            (outer,) = [r for r in ctx.plan.rows if r.spelling == "precision_mode"]
            assert outer.status == "inert"
            assert outer not in ctx.plan.failing
    finally:
        msctx.reset_context()


def test_a_new_file_replaces_all_that_the_old_one_said() -> None:
    outer, inner = {"graph_kernel_flags": "--opt_level=1 --dump_as_text"}, {"graph_kernel_flags": "--opt_level=2"}
    found = in_force(stacked(outer, inner))
    assert found == {"graph_kernel_flags": "--opt_level=2", "graph_kernel_flags.opt_level": 2}
    merged = make_layer(outer, "a").under(make_layer(inner, "b"))
    assert in_force(Settings([merged])) == found


def test_ge_options_win_over_ascend_config() -> None:
    values = {
        "ascend_config": {
            "precision_mode": "force_fp16",
            "ge_options": {"session": {"ge.exec.precision_mode": "allow_mix_precision"}},
        }
    }
    plan = msctx.explain(values, device="ascend")
    (winner,) = [r for r in plan.rows if r.option == "precision_mode" and "overridden" not in r.reason]
    assert winner.value == "allow_mix_precision"
    assert winner.spelling == "ascend_config.ge_options.session.ge.exec.precision_mode"
    lost = row(values, "ascend_config.precision_mode", "ascend")
    assert lost.reason.startswith("overridden by ascend_config.ge_options.session.ge.exec.precision_mode='allow_mix_precision'")
    assert lost in plan.failing


@pytest.mark.parametrize(
    ("newer", "older", "device", "value"),
    [
        ({"device_context.gpu.op_tuning.conv_fprop_algo": "fft"}, {"gpu_config.conv_fprop_algo": "direct"}, "cuda", "fft"),
        ({"device_context.cpu.op_tuning.threads_num": 3}, {"runtime_num_threads": 5}, "cpu", 3),
        ({"runtime.set_memory.max_size": "2GB"}, {"max_device_memory": "4GB"}, "cuda", 2 * 2**30),
        ({"set_deterministic": True}, {"deterministic": "OFF"}, "cpu", "ON"),
    ],
)
def test_the_newer_vocabulary_wins_in_one_layer(newer: Any, older: Any, device: str, value: Any) -> None:
    (spelling,) = older
    for values in ({**newer, **older}, {**older, **newer}):
        settings = stacked(values)
        name = OPTIONS[next(iter(settings.on(device)))].name
        assert in_force(settings, device)[name] == value
        assert row(values, spelling, device).reason.startswith(f"overridden by {next(iter(newer))}=")
    assert in_force(stacked(newer, older), device)[name] != value, "a scope further in wins over any spelling outside"


def test_by_name_wins_over_by_type_is_kept_apart(ini: str) -> None:
    setting = make_layer({"op_precision_mode": ini}, "test").settings["op_precision_mode"]
    assert setting.content == {"ByOpType": {"SoftmaxV2": "high_precision"}, "ByNodeName": {"conv1": "high_performance"}}


# --- what excludes what -----------------------------------------------------------------------------------------------


@pytest.fixture
def oom(tmp_path: Path) -> str:
    path = tmp_path / "debug.cfg"
    path.write_text("op_debug_config=oom\n")
    return str(path)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"precision_mode": "force_fp16"}, {"precision_mode_v2": "fp16"}),
        ({"ascend_config.precision_mode": "force_fp16"}, {"session.precision_mode_v2": "fp16"}),
        ({"session": {"enable_dump": True}}, {"enable_dump_debug": True}),
        ({"compile_dynamic_mode": True}, {"input_shape": "x:-1,3"}),
        ({"compile_dynamic_mode": True}, {"dynamic_dims": "1;2"}),
        ({"compile_dynamic_mode": True}, {"dynamic_node_type": 0}),
        ({"mix_compile_mode": True}, {"iterations_per_loop": 2}),
        ({"static_memory_policy": 2}, {"graph_max_parallel_model_num": 2}),
        ({"static_memory_policy": 4}, {"graph_max_parallel_model_num": 8}),
        ({"hccl_timeout": 600}, {"stream_sync_timeout": 600_000}),
        ({"hccl_timeout": 0}, {"stream_sync_timeout": 600_000}),
        ({"op_debug_level": 2}, {"op_debug_config": None}),
    ],
)
def test_a_forbidden_pair_is_an_error(one: dict[str, Any], other: dict[str, Any], oom: str) -> None:
    other = {k: oom if v is None else v for k, v in other.items()}
    before = msctx.get_context()
    for values in ({**one, **other}, {**other, **one}):
        with pytest.raises(OptionError, match="cannot be set together with"):
            msctx.context(**values)
        with pytest.raises(OptionError, match="1 problem"):
            msctx.set_context(**values)
    assert msctx.get_context() == before


def sample(when: rules.When, oom: str) -> Any:
    """A value with which a condition holds."""
    option = OPTIONS[when.name]
    candidates = [*when.values, *[oom] * (when.name == "op_debug_config"), example(option), 2, 5, 600, 1000]
    for value in candidates:
        with suppress(OptionError):
            if when.holds(make_layer({when.name: value}, "test").settings[when.name]):
                return value
    raise AssertionError(f"no value for {when}")


NEEDED = {name: {"dump_path": "."} for name in ("session.enable_dump", "enable_dump_debug")}
"""What is an error without something else."""


@pytest.mark.parametrize("rule", rules.EXCLUDES, ids=[" ".join(names_of(rule)) for rule in rules.EXCLUDES])
def test_a_forbidden_pair_is_an_error_in_two_calls_too(rule: rules.Excludes, oom: str) -> None:
    one, other = ({**NEEDED.get(when.name, {}), when.name: sample(when, oom)} for when in (rule.first, rule.second))
    if rule.test is not None and not rule.test(one[rule.first.name], other[rule.second.name]):
        one, other = {"hccl_timeout": 600}, {"stream_sync_timeout": 1000}
    for first, second in ((one, other), (other, one)):
        try:
            msctx.set_context(**first)
            before = msctx.get_context()
            with pytest.raises(OptionError, match=r"cannot be set together with .* from set_context at test_rules\.py"):
                msctx.set_context(**second)
            assert msctx.get_context() == before
        finally:
            msctx.reset_context()


@pytest.mark.parametrize("rule", rules.NEEDS, ids=[" ".join(names_of(rule)) for rule in rules.NEEDS])
def test_every_need_is_checked(rule: rules.Needs, oom: str) -> None:
    name = rule.option.name
    device = OPTIONS[name].devices[0]
    alone = {name: sample(rule.option, oom)}
    found = row(alone, name, device)
    assert (found.status, found.is_error) == (("refused", True) if rule.status == "error" else (rule.status, False))
    get = {s.option.name: s for s in make_layer(alone, "test").settings.values()}
    for need in rules.NEEDS:
        if need.option.name == name:  # the first need is reported; each on its own must be seen
            assert rules.obstacle(get[name], lambda n, met=rule: get.get(n), device) is not None
    met = {w.name: sample(w, oom) for w in rule.others[:1]}
    both = {s.option.name: s for s in make_layer({**alone, **met}, "test").settings.values()}
    told = rules.obstacle(both[name], both.get, device)
    assert told is None or rule.others_text not in told[1]
    without = rules.obstacle(get[name], lambda n: None if n in met else both.get(n), device)
    assert without is not None


@pytest.mark.parametrize("rule", rules.FORBIDS, ids=[" ".join(names_of(rule)) for rule in rules.FORBIDS])
def test_everything_forbidden_is_told(rule: rules.Forbids, oom: str) -> None:
    for value in rule.other.values:
        needed = [need.others[0] for need in rules.NEEDS if need.option.name == rule.option.name]
        given = {need.name: sample(need, oom) for need in needed}
        given |= {rule.other.name: value, rule.option.name: sample(rule.option, oom)}
        found = row(given, rule.option.name, OPTIONS[rule.option.name].devices[0])
        assert (found.status, found.reason) == (rule.status, rule.why)


def test_the_order_in_which_options_are_set_does_not_matter() -> None:
    options = {"memory_optimize_level": "O1", "memory_offload": "ON", "mempool_block_size": "2GB"}
    for order in permutations(options.items()):
        settings = stacked(dict(order))
        assert set(in_force(settings, "cuda")) == {"memory_optimize_level", "mempool_block_size"}
        (lost,) = settings.overridden("cuda")
        assert (lost.setting.option.name, lost.winner.option.name) == ("memory_offload", "memory_optimize_level")


def test_as_many_sizes_as_dimensions_that_are_open() -> None:
    for shape, gears in (("data:1,-1", "1,2;3,4"), ("data:1,2", "1;2"), ("data:-1;label:-1", "1;2")):
        with pytest.raises(OptionError, match="a gear of dynamic_dims has one size for each -1"):
            make_layer({"input_shape": shape, "dynamic_dims": gears}, "test")
    assert make_layer({"input_shape": "data:-1,3;label:-1", "dynamic_dims": "1,2;3,4"}, "test").settings


@pytest.mark.parametrize(
    "values",
    [
        {"session": {"enable_dump": False}, "enable_dump_debug": True},
        {"compile_dynamic_mode": False, "input_shape": "x:-1,3"},
        {"mix_compile_mode": True, "iterations_per_loop": 1},
        {"static_memory_policy": 3, "graph_max_parallel_model_num": 2},
        {"hccl_timeout": 600, "stream_sync_timeout": 600_001},
        {"hccl_timeout": 600, "stream_sync_timeout": -1},
        {"ascend_config.precision_mode": "force_fp16", "device_context.ascend.op_precision.precision_mode": "force_fp32"},
    ],
)
def test_pairs_that_are_no_conflict(values: dict[str, Any]) -> None:
    assert make_layer(values, "test").settings


# --- what needs what --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "name", "status", "needed"),
    [
        ({"session.enable_dump": True}, "session.enable_dump", "refused", {"dump_path": "."}),
        ({"local_rank_id": 0}, "local_rank_id", "refused", {"local_device_list": "0,1"}),
        ({"graph_max_parallel_model_num": 2}, "graph_max_parallel_model_num", "refused", {"graph_run_mode": 0}),
        ({"optypelist_for_implmode": "mm"}, "optypelist_for_implmode", "refused", {"op_select_implmode": "high_precision"}),
        ({"dump_mode": "all"}, "dump_mode", "inert", {"session.enable_dump": True, "dump_path": "."}),
        ({"graph_kernel_flags.dump_as_text": True}, "graph_kernel_flags.dump_as_text", "inert", {"enable_graph_kernel": True}),
    ],
)
def test_what_an_option_needs(values: dict[str, Any], name: str, status: str, needed: dict[str, Any]) -> None:
    device = OPTIONS[name].devices[0]
    alone = row(values, name, device)
    assert alone.status == status
    assert ("it needs" if status == "refused" else "no effect without") in alone.reason
    assert next(iter(needed)) in alone.reason
    beside = row({**values, **needed}, name, device)
    assert beside.status not in (status, "refused", "inert")


def test_the_mix_list_needs_a_mixed_mode(tmp_path: Path) -> None:
    path = tmp_path / "mix.json"
    path.write_text('{"black-list": {"to-add": ["MatMul"]}}')
    alone = row({"modify_mixlist": str(path), "precision_mode": "force_fp16"}, "modify_mixlist")
    assert alone.status == "refused"
    assert "precision_mode=allow_mix_precision" in alone.reason
    assert row({"modify_mixlist": str(path), "precision_mode_v2": "mixed_float16"}, "modify_mixlist").status == "honoured"


@pytest.mark.parametrize(
    ("values", "name", "status"),
    [
        ({"deterministic": "ON", "conv_dgrad_algo": "algo_0"}, "conv_dgrad_algo", "refused"),
        ({"deterministic": "ON", "conv_wgrad_algo": "algo_0"}, "conv_wgrad_algo", "refused"),
        ({"deterministic": "ON", "conv_wgrad_algo": "algo_3"}, "conv_wgrad_algo", "refused"),
        ({"op_compiler_cache_mode": "disable", "op_compiler_cache_dir": "x"}, "op_compiler_cache_dir", "inert"),
        ({"deterministic": "ON", "aoe_tune_mode": "online"}, "aoe_tune_mode", "inert"),
        ({"deterministic": "ON", "aoe_mode": "2"}, "aoe_mode", "inert"),
        (
            {"precision_mode": "force_fp16", ACCELERATE: "fast|step|0.5"},
            ACCELERATE,
            "refused",
        ),
        (
            {"precision_mode_v2": "fp16", ACCELERATE: "fast|step|0.5"},
            ACCELERATE,
            "refused",
        ),
    ],
)
def test_what_another_option_forbids(values: dict[str, Any], name: str, status: str) -> None:
    assert row(values, name).status == status
    (first, *_) = values
    del values[first]
    assert row(values, name).status == "honoured"


def test_some_modes_allow_what_others_forbid() -> None:
    given = {ACCELERATE: "fast|loss|1.1"}
    for mode in ({"precision_mode": "allow_fp32_to_fp16"}, {"precision_mode_v2": "origin"}):
        assert row({**given, **mode}, ACCELERATE).status == "honoured"
    assert row({"deterministic": "ON", "aoe_tune_mode": "offline"}, "aoe_tune_mode").status == "honoured"


def test_checked_kernels_are_not_cached_unless_they_are_listed(tmp_path: Path) -> None:
    path = tmp_path / "debug.cfg"
    given = {"op_debug_config": str(path), "op_compiler_cache_mode": "enable"}
    path.write_text("op_debug_config=dump_cce\n")
    assert row(given, "op_compiler_cache_mode").reason.startswith("overridden by op_debug_config=")
    path.write_text("op_debug_config=dump_cce\nop_debug_list=conv1\n")
    assert row(given, "op_compiler_cache_mode").status == "honoured"


def test_the_modes_named_in_rules_are_those_declared() -> None:
    assert set(rules.PRECISION_MODES) == set(OPTIONS["precision_mode"].choices)
    assert set(rules.PRECISION_MODES_V2) == set(OPTIONS["precision_mode_v2"].choices)


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
    asked = {"session": {name: True, "op_execute_timeout": 100}, "strict": strict}
    told = rf"session\.{name}: it needs dump_path; set it, or leave .*{name} out"
    before = msctx.state()
    with pytest.raises(OptionError, match=told):
        msctx.context(**asked).__enter__()
    with pytest.raises(OptionError, match=told):
        msctx.set_context(**asked)
    assert msctx.state() == before
    assert not msctx.get_context()


def test_which_algorithm_is_asked_for_is_read_from_the_rules_themselves() -> None:
    assert conv_rules.asked_by({"fprop": None}, None) == {}
    assert conv_rules.asked_by({"fprop": "gemm", "dgrad": None}, "performance.*: fprop=gemm, dgrad=algo_0") == {
        ("fprop", "gemm"): "conv_fprop_algo=gemm",
        ("dgrad", "algo_0"): "dgrad=algo_0 of conv_algo_rules",
    }


def test_a_condition_takes_truth_as_choices_shows_it() -> None:
    layer = make_layer({"conv_algo_rules": {"transposed=True": "gemm"}}, "test")
    assert layer.settings["conv_algo_rules"].value.startswith("transposed=true:")


@pytest.mark.parametrize(
    ("option", "condition", "reason"),
    [
        ("conv_algo_rules", "dtype=float31", "'float31' is no dtype of a problem; did you mean 'float32'?"),
        ("conv_algo_rules", "dtype=torch.float16", "did you mean 'float16'?"),
        ("conv_algo_rules", "layout=channel_last", "did you mean 'channels_last'?"),
        ("conv_algo_rules", "transposed=no", "'no' is no transposed of a problem"),
        ("conv_algo_rules", "dims=4", "'4' is no dims of a problem"),
        ("conv_algo_rules", "stride=x", "'x' is no stride of a problem"),
        ("conv_algo_rules", "groups=a", "'a' is no groups of a problem"),
        ("conv_algo_rules", "weight=4x3x3x3,stride=1", "'4x3x3x3,stride=1' is no weight of a problem"),
        ("conv_algo_rules", "weight = 4x3x3x3", "write field=pattern without spaces"),
        ("conv_algo_rules", "weight= 4x3x3x3", "write field=pattern without spaces"),
        ("matmul_algo_rules", "layout=channels_last", "'channels_last' is no layout of a problem"),
    ],
)
def test_values_that_no_problem_has_are_mistakes(option: str, condition: str, reason: str) -> None:
    with pytest.raises(OptionError, match=re.escape(reason)):
        make_layer({option: {condition: "reference"}}, "test")


@pytest.mark.parametrize(
    ("option", "condition", "canonical"),
    [
        ("conv_algo_rules", "stride=1x1", "stride=1"),
        ("conv_algo_rules", "padding=0x2 dtype=bfloat16", "padding=0x2 dtype=bfloat16"),
        ("conv_algo_rules", "input=*x[1-4]x*x* dims=?", "input=*x[1-4]x*x* dims=?"),
        ("matmul_algo_rules", "layout=?T input=*x4096", "layout=?T input=*x4096"),
        ("conv_algo_rules", "dtype=int64 layout=strided", "dtype=int64 layout=strided"),
        ("matmul_algo_rules", "dtype=quint8 layout=packed", "dtype=quint8 layout=packed"),
    ],
)
def test_patterns_stay_and_values_are_written_as_choices_shows_them(option: str, condition: str, canonical: str) -> None:
    layer = make_layer({option: {condition: "reference"}}, "test")
    assert layer.settings[option].value.startswith(f"{canonical}: ")


def test_every_dtype_that_operators_compute_with_may_be_named() -> None:
    torchs = {str(one).removeprefix("torch.") for one in vars(torch).values() if isinstance(one, torch.dtype)}
    assert not {*conv_rules.DTYPES} - torchs
    assert not [name for name in torchs - {*conv_rules.DTYPES} if not re.match(r"bits|q?u?int[1-7](x|$)|float4", name)], (
        "those only store"
    )
