"""Graph mode on every device."""

from __future__ import annotations

import pytest
from plans import check, planned, rows

from msctx.options.graph import Compilation, Shapes

ALONE = "msctx.jit alone"


def made(*, eager: bool = False, **settings: bool) -> dict[str, object]:
    of_mode = {"graph.modules": not eager, "torch.dynamo.force_eager": eager}
    return {"graph.compilation": Compilation(**settings), **of_mode}


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_all_options_come_to_one_value(device: str) -> None:
    strict = Compilation(whole=True)
    check(
        [
            (device, {"mode": 0}, {"mode": ("honoured", made(), "")}),
            (device, {"mode": 1}, {"mode": ("honoured", made(eager=True), "")}),
            (device, {"jit_syntax_level": 0}, {"jit_syntax_level": ("honoured", {"graph.compilation": strict}, ALONE)}),
            (
                device,
                {"mode": 0, "jit_syntax_level": 0, "enable_graph_kernel": False, "precompile_only": True},
                {"mode": ("honoured", made(whole=True, fused=False, only=True), "")},
            ),
            (
                device,
                {"mode": 0, "jit_syntax_level": 1},
                {"jit_syntax_level": ("approximated", {"graph.compilation": Compilation()}, "acts as LAX")},
            ),
        ]
    )


def test_on_ascend_torchair_compiles_graphs_and_eager_code_runs() -> None:
    for options, status in (
        ({"mode": 0}, "honoured"),
        ({"jit_syntax_level": 0}, "honoured"),
        ({"jit_syntax_level": 2}, "approximated"),
        ({"enable_graph_kernel": False}, "honoured"),
        ({"precompile_only": True}, "approximated"),
    ):
        (row,) = rows(options, on="ascend").values()
        assert (row.status, "torchair" in row.reason) == (status, True)
        assert "graph.compilation" in row.assignments
    assert rows({"mode": 1}, on="ascend")["mode"].status == "honoured"


def test_each_scope_compiles_as_the_merged_options_do() -> None:
    inner = rows({"mode": 0, "jit_syntax_level": 0}, {"enable_graph_kernel": False})["enable_graph_kernel"]
    assert dict(inner.assignments) == {"graph.compilation": Compilation(whole=True, fused=False)}


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_in_graph_mode_determinism_reaches_into_inductor(device: str) -> None:
    names = {"torch.inductor.fallback_random", "torch.inductor.emulate_precision_casts"}
    for value, on in (("ON", True), ("OFF", False)):
        row = rows({"mode": 0, "deterministic": value}, on=device)["deterministic"]
        assert {row.assignments[name] for name in names} == {on}
        assert not names & set(rows({"deterministic": value}, on=device)["deterministic"].assignments)
    assert rows({"mode": 0, "batch_invariant": True})["batch_invariant"].assignments["torch.inductor.batch_invariant"] is True


@pytest.mark.parametrize("option", ["input_shape", "dynamic_dims", "dynamic_inputs_shape_range"])
def test_the_plan_states_which_modules_accept_every_shape(option: str) -> None:
    """As losses must: they are called beside the model."""
    session = RANGES if option in RANGES else GEARS
    found = rows({"mode": 0, "session": session})[option]
    assert (found.status, "modules without any, such as losses, accept every shape" in found.reason) == ("honoured", True)
    assert "losses" not in rows({"session": session})[option].reason, "functions of msctx.jit have no such exception"


def test_shapes_are_part_of_it() -> None:
    gears = {"input_shape": "x:-1,3;y:0", "dynamic_dims": "2;4", "dynamic_node_type": 1}
    found = rows({"mode": 0, "session": gears})["input_shape"].assignments["graph.compilation"]
    assert found.shapes == Shapes(gears=((("x", (2, 3)), ("y", ())), (("x", (4, 3)), ("y", ()))), named=True, dynamic=False)
    ranges = {"dynamic_input": True, "dynamic_inputs_shape_range": "getnext:[128,3~5,-1],[];data:[7]"}
    found = rows({"mode": 0, "session": ranges})["dynamic_input"].assignments["graph.compilation"]
    assert found.shapes == Shapes(ranges=(((128, 128), (3, 5), (-1, -1)), (), ((7, 7),)))


GEARS = {"input_shape": "x:-1,3", "dynamic_dims": "2;4", "dynamic_node_type": 1}
RANGES = {"dynamic_input": True, "dynamic_inputs_shape_range": "data:[2~9,3]"}
SIZES = {"compile_dynamic_mode": True}


@pytest.mark.parametrize(("wins", "yields"), [(GEARS, RANGES), (RANGES, SIZES)])
def test_what_decides_nothing_about_shapes_is_overridden(wins: dict[str, object], yields: dict[str, object]) -> None:
    alone = rows({"mode": 0, "session": wins})["mode"].assignments["graph.compilation"]
    plan = planned({"mode": 0, "session": wins | yields})
    overridden = {row.option for row in plan.rows if row.status == "inert" and row.reason.startswith("overridden by ")}
    assert overridden == set(yields)
    assert {row.status for row in plan.rows if row.option in wins} == {"honoured"}
    assert next(row for row in plan.rows if row.option == "mode").assignments["graph.compilation"] == alone


@pytest.mark.parametrize(("outer", "inner"), [(GEARS, RANGES), (RANGES, SIZES), (SIZES, RANGES), (RANGES, GEARS)])
def test_of_several_scopes_the_inner_one_decides_about_shapes(outer: dict[str, object], inner: dict[str, object]) -> None:
    alone = rows({"mode": 0, "session": inner})["mode"].assignments["graph.compilation"]
    plan = planned({"mode": 0, "session": outer}, {"session": inner})
    assert next(row for row in plan.rows if row.option == "mode").assignments["graph.compilation"] == alone
    assert {row.option for row in plan.rows if row.status != "honoured"} == set(outer)
    assert {row.option for row in plan.failing} <= {"dynamic_inputs_shape_range"}, (
        "which had a range to say, and needs dynamic_input"
    )


def test_mixed_computing_is_forbidden_by_what_strict_is() -> None:
    for value, whole in ((False, True), (True, False)):
        row = rows({"mode": 0, "mix_compile_mode": value})["mix_compile_mode"]
        assert dict(row.assignments) == {"graph.compilation": Compilation(whole=whole)}
