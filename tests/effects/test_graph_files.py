"""The files of graphs, and the names in them, on every device."""

from __future__ import annotations

from plans import check, planned, rows

from msctx.options import DEVICES
from msctx.options.observation import GraphFiles

TEXT = "not MindSpore's IR"


def files(level: int, path: str = ".", **more: object) -> dict[str, object]:
    apart = {"torch.dynamo.apart": (f"save_graphs={level}", f"save_graphs_path={path}"), "torch.inductor.fx_graph_cache": False}
    return {"observers.graph_files": GraphFiles(level, path), **apart, **more}


def test_levels() -> None:
    trace = {"torch.inductor.trace.enabled": True, "torch.inductor.trace.debug_dir": "./"}
    off = {"save_graphs": ("honoured", {"observers.graph_files": None}, "")}
    check(
        [
            ("cpu", {"save_graphs": 1}, {"save_graphs": ("approximated", files(1), TEXT)}),
            ("cuda", {"save_graphs": True}, {"save_graphs": ("approximated", files(2), TEXT)}),
            ("ascend", {"save_graphs": 3}, {"save_graphs": ("approximated", files(3, **trace), "torchair")}),
            *((device, {"save_graphs": 0}, off) for device in DEVICES),
        ]
    )


def test_a_path_and_its_level_say_the_same() -> None:
    options = {"save_graphs": 2, "save_graphs_path": "graphs"}
    expected = ("approximated", files(2, "graphs"), TEXT)
    check([("cpu", options, {"save_graphs": expected, "save_graphs_path": expected})])


def test_a_path_alone_does_nothing() -> None:
    row = rows({"save_graphs_path": "graphs"})["save_graphs_path"]
    assert (row.status, dict(row.assignments)) == ("inert", {})


def test_a_cache_that_is_asked_for_stays_on() -> None:
    for cache in ({"enable_compile_cache": True}, {"session.op_compiler_cache_mode": "enable"}):
        found = planned({"save_graphs": 1, **cache})
        assert found.assignments["torch.inductor.fx_graph_cache"] is True
        row = next(row for row in found.rows if row.option == "save_graphs")
        assert (row.status, "recorded with it" in row.reason) == ("approximated", True)
    assert planned({"save_graphs": 1, "enable_compile_cache": False}).assignments["torch.inductor.fx_graph_cache"] is False


def test_inner_scopes() -> None:
    found = planned({"save_graphs": 1, "save_graphs_path": "outer"}, {"save_graphs": 2})
    assert found.assignments["observers.graph_files"] == GraphFiles(2, "outer")
    assert planned({"save_graphs": 1}, {"save_graphs": 0}).assignments["observers.graph_files"] is None


def test_names_of_modules() -> None:
    for value in (True, False):
        expected = ("honoured", {"observers.class_names": value}, "")
        check(
            [(device, {"reserve_class_name_in_scope": value}, {"reserve_class_name_in_scope": expected}) for device in DEVICES]
        )
