"""Plans: which setting counts on which device, what is reported, what fails, and that no two rows contradict each other."""

import itertools
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from platform import machine
from types import FrameType

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from samples import DATA, example, planned, values

import msctx
from msctx import plan
from msctx.errors import OptionError
from msctx.options import DEVICES, OPTIONS, Layer, Option, Settings, make_layer
from msctx.themes import Facts

STATUSES = {*plan.DONE, *plan.FAILING}


def test_a_row_tells_everything() -> None:
    (row,) = planned({"session": {"deterministic": 1}}).rows
    assert row.as_dict() == {
        "option": "deterministic",
        "spelling": "session.deterministic",
        "device": "cpu",
        "value": "ON",
        "origin": "layer 0",
        "status": "honoured",
        "switches": {
            "torch.deterministic": True,
            "torch.inductor.deterministic": True,
            "torch.deterministic.fill_uninitialized_memory": True,
            "torch.mkldnn.deterministic": True,
        },
        "reason": "",
        "overridden_by": None,
    }


def test_what_a_higher_level_displaces_is_told() -> None:
    """Levels are laid into one layer: what loses its place there to another option must not vanish."""
    low = make_layer({"enable_graph_kernel": False, "precision_mode": "force_fp16"}, "file")
    high = make_layer({"graph_kernel_flags": "--opt_level=1", "precision_mode_v2": "fp16"}, "command line")
    found = plan.make(Settings([low.under(high, lower=True)]), Facts())
    lost = {r.spelling: r for r in found.rows if r.winner}
    assert {name: r.winner for name, r in lost.items()} == {
        "enable_graph_kernel": "graph_kernel_flags.opt_level",
        "precision_mode": "precision_mode_v2",
    }
    assert all(r.shadowed and r not in found.failing and r.origin == "file" for r in lost.values())


def test_a_row_in_words() -> None:
    (row,) = planned({**REFUSES}).rows
    assert str(row).startswith(f"{REFUSED}=True on cpu: refused: torch 2.13 computes wrong gradients")
    assert str(msctx.explain(deterministic="ON", device="ascend")).endswith(f"\n{plan.UNTRIED}")


@pytest.mark.parametrize("device", DEVICES)
def test_deprecated_options_are_inert_and_name_what_replaces_them(device: str) -> None:
    for option in OPTIONS.values():
        if option.replaced_by:
            (row,) = msctx.explain({option.name: option.example}, device=device).rows
            assert row.status == "inert"
            assert option.replaced_by in row.reason


@pytest.mark.parametrize(
    ("target", "devices", "missing"),
    [
        ("CPU", ("cpu",), False),
        ("GPU", ("cpu",), True),
        ("GPU", ("cpu", "cuda"), False),
        ("Ascend", ("cpu", "cuda"), True),
        ("Ascend", ("cpu", "ascend"), False),
        (None, ("cpu",), False),
    ],
)
def test_a_missing_target(target: str | None, devices: tuple[str, ...], missing: bool) -> None:
    found = planned({"seed": 0} | ({"device_target": target} if target else {}), on=devices)
    assert (found.target, found.missing) == (target, missing)
    assert found.as_dict()["target_is_here"] is not missing


def test_sources_name_the_spellings_that_set_a_switch() -> None:
    found = planned({"session": {"deterministic": 1}, "seed": 0}, {"seed_scope": True})
    assert found.sources["torch.deterministic"] == {"session.deterministic"}
    assert found.sources["rng.saved"] == {"seed", "seed_scope"}
    assert found.sources["rng.seed"] == {"seed"}
    assert set(found.sources) == set(found.assignments)


REFUSED = "parallel_speed_up_json_path.enable_begin_end_inline_opt"
REFUSES = {REFUSED: True}
HOLD = f"""--enable_low_precision=False --cpu_arch={machine().upper().replace("_", "-")} --target_os={sys.platform}
    --enable_csr_fusion=False --enable_dynamic_shape_fusion=True --enable_cce_lib=False --enable_lite_conv_tuning=False"""
FAILING = [json.loads(line) for line in (Path(__file__).parent / "data" / "failing.jsonl").read_text().splitlines()]
FAILING += [["it holds", {"graph_kernel_flags": f"--opt_level=1 {' '.join(HOLD.split())}"}, [on], []] for on in DEVICES]
"""Why, options, the devices here, and on which of them it is reported that an option has no effect."""


def test_what_has_no_effect_where_it_counts() -> None:
    for why, options, devices, failing in FAILING:
        for more in ({}, {"strict": True}):
            found = planned({**options, **more}, on=tuple(devices))
            assert [r.device for r in found.failing] == failing, (why, options)
            assert found.strict is bool(more)


def test_failing_rows_are_told_once_for_each_option_and_reason() -> None:
    apart = ("device_", "precision_mode_v2", "compile_dynamic", "enable_dump_debug", "mix_compile", "static_memory")
    options = {name: example(option) for name, option in OPTIONS.items() if not name.startswith(apart)}
    for device in DEVICES:
        failing = msctx.explain(options, device=device).failing
        told = [(r.spelling, r.reason) for r in failing]
        assert len(told) == len(set(told))
        assert all(r.status in plan.FAILING and r.reason for r in failing)


def settings_of(options: Iterable[Option]) -> st.SearchStrategy[tuple[str, object]]:
    pairs = [(spelling, value) for option in options for spelling in option.spellings for value in values(option)]
    return st.sampled_from(pairs)


SETTING = settings_of(OPTIONS.values())
MEETING = """deterministic deterministic_warn_only fill_uninitialized_memory device_target device_id default_device use_off_line
    max_device_memory matmul_allow_tf32 conv_allow_tf32 matmul_allow_hf32 conv_allow_hf32 seed seed_scope seed_by_rank
    runtime_num_threads inter_op_parallel_num pynative_synchronize max_call_depth strict
    exception_dump enable_exception_dump"""
"""Options that act on each other, drawn more often."""
ERRORS = ("dump_config", str(Path(__file__).parent / "data" / "dump_errors.json"))
BUILT_SETTING = settings_of(OPTIONS[name] for name in MEETING.split()) | st.just(ERRORS)
LAYERS = st.lists(st.lists(BUILT_SETTING | BUILT_SETTING | SETTING, min_size=1, max_size=8).map(dict), min_size=1, max_size=3)
MACHINES = st.builds(
    Facts,
    devices=st.sampled_from([("cpu",), ("cpu", "cuda"), ("cpu", "ascend"), DEVICES]),
    cann=st.sampled_from([None, (8, 3), (8, 5)]),
)


def valid(layers: list[dict[str, object]]) -> list[Layer]:
    made = []
    for i, layer in enumerate(layers):
        try:
            made.append(make_layer(layer, f"layer {i}"))
        except OptionError:
            assume(False)
    return made


def assert_agreed(found: plan.Plan) -> None:
    """No two rows give one switch different values."""
    seen: dict[str, tuple[object, plan.Row]] = {}
    for row in found.rows:
        for switch, value in row.assignments.items():
            first, other = seen.setdefault(switch, (value, row))
            assert first == value, f"{other} and {row} disagree about {switch}"
    assert found.assignments == {switch: value for switch, (value, _) in seen.items()}


def test_where_devices_share_a_switch_the_main_one_decides() -> None:
    """And the other one's row has the reason. What inductor compiles, it compiles for all as the main one has it."""
    assert {row.status for row in planned({"mode": 0, "conv_fprop_algo": "winograd"}, on=("cpu", "cuda")).rows} == {"honoured"}
    for option in OPTIONS.values():
        for group, whole, own in itertools.product(option.groups, values(option), values(option)):
            try:
                found = planned({option.name: whole, f"{group}.{option.name}": own}, on=DEVICES)
            except OptionError:  # a group of no device, or values that exclude each other
                continue
            assert_agreed(found)


@pytest.mark.parametrize(("target", "postponed", "loser"), [("CPU", False, "ascend"), ("Ascend", True, "cpu")])
def test_the_row_that_lost_a_shared_switch_names_the_winner(target: str, postponed: bool, loser: str) -> None:
    name = "parallel_speed_up_json_path.enable_grad_comm_opt"
    found = planned({"device_target": target, name: True, f"ascend_config.{name}": False}, on=("cpu", "ascend"))
    assert found.assignments["models.gradients_postponed"] is postponed
    (row,) = [row for row in found.rows if row.option == name and row.device == loser and not row.winner]
    assert (row.status, row.assignments) == ("inert", {})
    assert "overridden by " in row.reason
    assert "the devices share models.gradients_postponed" in row.reason
    assert (row in found.failing) == (target == "CPU"), "what the main device does not do is reported"


@settings(max_examples=500)
@given(layers=LAYERS, facts=MACHINES)
def test_a_plan_is_never_silent_and_always_the_same(layers: list[dict[str, object]], facts: Facts) -> None:
    made = Settings(valid(layers))
    found = plan.make(made, facts)
    assert_agreed(found)
    parts = {name for name in made for whole in made if name.startswith(f"{whole}.")}  # a file that is named anew replaces them
    assert set(made) - parts <= {r.option for r in found.rows} <= set(made), "each option that was set has a row"
    for row in found.rows:
        assert row.status in STATUSES
        assert row.reason or row.status == "honoured"
        assert not row.assignments or row.status in plan.DONE
        assert row.origin.startswith(("layer ", str(DATA)))
    assert all(row in found.rows and row.status in plan.FAILING for row in found.failing)
    done = {row.spelling for row in found.rows if row.status in plan.DONE}
    told = {row.spelling for row in found.rows if row in found.failing or row.shadowed}
    assert {row.spelling for row in found.rows} <= done | told, "done, or told"
    json.dumps(found.as_dict())
    again = plan.make(Settings(valid(layers)), facts)
    assert again.as_dict() == found.as_dict()
    assert list(again.assignments.items()) == list(found.assignments.items())


def test_a_plan_takes_few_calls() -> None:
    calls: list[str] = []

    def count(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and "/msctx/" in frame.f_code.co_filename and not frame.f_code.co_name.startswith("<"):
            calls.append(frame.f_code.co_name)

    for _ in range(2):  # what the first time finds out is kept
        calls.clear()
        sys.setprofile(count)
        try:
            msctx.explain(save_graphs=2)
        finally:
            sys.setprofile(None)
    assert len(calls) <= 160, calls
