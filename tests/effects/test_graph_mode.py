"""Graph mode on every device."""

from __future__ import annotations

import pytest
from plans import check, rows

from msctx.options.graph import Compilation

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


def test_on_ascend_graphs_wait_and_eager_code_runs() -> None:
    for options in ({"mode": 0}, {"jit_syntax_level": 0}, {"enable_graph_kernel": True}, {"precompile_only": True}):
        assert {row.status for row in rows(options, on="ascend").values()} == {"not_built"}
    assert rows({"mode": 1}, on="ascend")["mode"].status == "honoured"


def test_each_scope_compiles_as_the_merged_options_do() -> None:
    inner = rows({"mode": 0, "jit_syntax_level": 0}, {"enable_graph_kernel": False})["enable_graph_kernel"]
    assert dict(inner.assignments) == {"graph.compilation": Compilation(whole=True, fused=False)}
