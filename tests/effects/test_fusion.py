"""What options about fusion come to on every device."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from plans import rows

from msctx.effects.fusion import AGGRESSIVE
from msctx.options.graph import Compilation
from msctx.options.graph_kernel_flags import FLAGS


def made(*layers: dict[str, object], on: str = "cpu") -> Compilation:
    found = [row.assignments["graph.compilation"] for row in rows(*layers, on=on).values() if row.assignments]
    assert all(one == found[0] for one in found)
    compilation = found[0]
    assert isinstance(compilation, Compilation)
    return compilation


def test_there_are_51_flags_each_with_an_effect_or_a_reason() -> None:
    assert len({flag.name for flag in FLAGS}) == 51
    for flag in FLAGS:
        text = f"--{flag.name}" + ("" if flag.example is True else f"={flag.example}")
        for device in ("cpu", "cuda"):
            row = rows({"graph_kernel_flags": f"{text} --opt_level=2" if flag.name != "opt_level" else text}, on=device)[
                f"graph_kernel_flags.{flag.name}"
            ]
            if flag.why_not:
                assert (row.status, row.reason) == ("refused", flag.why_not)
            elif device in flag.devices:
                assert row.status == "honoured"
                assert (flag.name, row.value) in row.assignments["graph.compilation"].flags
            else:
                assert (row.status, row.reason) == ("inert", f"it has no meaning on {device}")


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_flags_win_over_enable_graph_kernel(device: str) -> None:
    mode = {"mode": 0}
    for flags, enabled, fused in (("", True, True), ("--opt_level=0", True, False), ("--opt_level=1", False, True)):
        options = {**mode, "enable_graph_kernel": enabled} | ({"graph_kernel_flags": flags} if flags else {})
        assert rows(options, on=device)["mode"].assignments["graph.compilation"].fused is fused
    assert rows({**mode, "graph_kernel_flags": "--opt_level=3"})["graph_kernel_flags.opt_level"].reason == AGGRESSIVE


def test_flags_of_an_inner_context_replace_those_of_the_outer() -> None:
    outer, inner = {"mode": 0, "graph_kernel_flags": "--opt_level=1"}, {"graph_kernel_flags": "--enable_vectorization=off"}
    assert made(outer, inner).flags == (("enable_vectorization", False),)


@pytest.mark.parametrize("off", [{"graph_kernel_flags.opt_level": 0}, {"enable_graph_kernel": False}])
def test_where_nothing_is_fused_other_flags_are_without_effect(off: dict[str, object], tmp_path: Path) -> None:
    file = tmp_path / "switch.json"
    file.write_text('{"Switch": {}}')
    options = {"graph_kernel_flags.enable_vectorization": False, "fusion_switch_file": str(file), "frozen_variable": True}
    found = rows(options | off)
    for name in options:
        assert found[name].status == "inert"
        assert found[name].reason.startswith(f"nothing is fused: {next(iter(off))}=")


def test_on_ascend_the_graph_engine_fuses(tmp_path: Path) -> None:
    file = tmp_path / "switch.json"
    file.write_text('{"Switch": {}}')
    found = rows(
        {
            "graph_kernel_flags": "--opt_level=2 --reduce_fuse_depth=2",
            "enable_scope_fusion_passes": "ScopeClipBoxesPass",
            "frozen_variable": True,
            "fusion_switch_file": str(file),
        },
        on="ascend",
    )
    assert {name.removeprefix("graph_kernel_flags."): row.status for name, row in found.items()} == {
        "graph_kernel_flags": "honoured",
        "opt_level": "approximated",
        "reduce_fuse_depth": "refused",
        "enable_scope_fusion_passes": "honoured",
        "frozen_variable": "honoured",
        "fusion_switch_file": "honoured",
    }
    assert found["fusion_switch_file"].assignments == {"torch.npu.engine_options": {"ge.fusionSwitchFile": str(file)}}


def test_switches_of_passes(tmp_path: Path) -> None:
    def of(**groups: dict[str, str]) -> dict[str, object]:
        file = tmp_path / "switch.json"
        file.write_text(json.dumps({"Switch": groups}))
        return {"mode": 0, "fusion_switch_file": str(file)}

    options = of(GraphFusion={"ALL": "off", "SoftmaxFusionPass": "on"})
    assert rows(options)["fusion_switch_file"].status == "honoured"
    assert made(options).fusion_switches == (("GraphFusion", "ALL", "off"), ("GraphFusion", "SoftmaxFusionPass", "on"))
    for name, reason in (("PoolingFusionPass", "no pass about pooling"), ("NoPass", "NoPass is no pass that is known")):
        row = rows(of(GraphFusion={name: "off"}))["fusion_switch_file"]
        assert row.status == "approximated"
        assert reason in row.reason


def test_an_algorithm_wins_over_what_would_hide_convolutions(tmp_path: Path) -> None:
    file = tmp_path / "switch.json"
    file.write_text('{"Switch": {"GraphFusion": {"ConvToFullyConnectionFusionPass": "on"}}}')
    options = {"frozen_variable": True, "graph_kernel_flags.online_tuning": 1, "fusion_switch_file": str(file), "mode": 0}
    alone = rows(options)
    assert {alone[name].status for name in options} == {"honoured"}
    assert alone["frozen_variable"].assignments["torch.inductor.freezing"] is True
    beside = rows(options | {"conv_fprop_algo": "gemm"})
    assert [beside[name].status for name in options] == ["refused", "inert", "approximated", "honoured"]
    assert all("the algorithm wins" in beside[name].reason for name in [*options][:3])
    assert beside["conv_fprop_algo"].assignments["torch.inductor.freezing"] is False
    found = beside["mode"].assignments["graph.compilation"]
    assert (found.frozen, found.flags, found.fusion_switches) == (False, (), ())


def test_what_is_trained_is_not_frozen_and_nothing_is_measured_under_determinism() -> None:
    assert rows({"frozen_variable": True, "graph_run_mode": 1})["frozen_variable"].status == "refused"
    found = rows({"graph_kernel_flags": "--online_tuning=1", "deterministic": "ON"})
    assert found["graph_kernel_flags.online_tuning"].status == "inert"
