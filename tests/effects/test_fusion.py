"""What options about fusion come to on every device."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from plans import rows

from msctx.effects.fusion import AGGRESSIVE
from msctx.options.graph_kernel_flags import FLAGS, settings_of


def test_each_of_the_51_flags_has_settings_of_inductor_or_a_reason() -> None:
    assert len({flag.name for flag in FLAGS}) == 51
    for flag in FLAGS:
        name = f"graph_kernel_flags.{flag.name}"
        for device in ("cpu", "cuda"):
            row = rows({"graph_kernel_flags.opt_level": 2, name: flag.example}, on=device)[name]
            if flag.why_not:
                assert (row.status, row.reason) == ("refused", flag.why_not)
            elif device in flag.devices:
                assert row.status == "honoured"
                assert (flag.name, row.value) in row.assignments["graph.compilation"].flags
                assert settings_of({flag.name: row.value})
            else:
                assert (row.status, row.reason) == ("inert", f"it has no meaning on {device}")
    row = rows({"mode": 0, "graph_kernel_flags": "--enable_recompute_fusion=false"})[
        "graph_kernel_flags.enable_recompute_fusion"
    ]
    assert (row.status, row.reason) == ("refused", "inductor has no setting that keeps all results")


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_flags_win_over_enable_graph_kernel(device: str) -> None:
    mode = {"mode": 0}
    for flags, enabled, fused in (("", True, True), ("--opt_level=0", True, False), ("--opt_level=1", False, True)):
        options = {**mode, "enable_graph_kernel": enabled} | ({"graph_kernel_flags": flags} if flags else {})
        assert rows(options, on=device)["mode"].assignments["graph.compilation"].fused is fused
    assert rows({**mode, "graph_kernel_flags": "--opt_level=3"})["graph_kernel_flags.opt_level"].reason == AGGRESSIVE


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
    flags = {"graph_kernel_flags": "--opt_level=2 --exact_precision_mode", "enable_scope_fusion_passes": "ScopeClipBoxesPass"}
    found = rows({**flags, "frozen_variable": True, "fusion_switch_file": str(file)}, on="ascend")
    others = {name.removeprefix("graph_kernel_flags."): row.status for name, row in found.items() if row.status != "honoured"}
    assert others == {"opt_level": "approximated", "exact_precision_mode": "refused"}
    assert found["fusion_switch_file"].assignments == {"torch.npu.engine_options": {"ge.fusionSwitchFile": str(file)}}


def test_switches_of_passes(tmp_path: Path) -> None:
    def of(**groups: dict[str, str]) -> dict[str, object]:
        file = tmp_path / "switch.json"
        file.write_text(json.dumps({"Switch": groups}))
        return {"mode": 0, "fusion_switch_file": str(file)}

    options = of(GraphFusion={"ALL": "off", "SoftmaxFusionPass": "on"})
    assert rows(options)["fusion_switch_file"].status == "honoured"
    made = rows(options)["mode"].assignments["graph.compilation"]
    assert made.fusion_switches == (("GraphFusion", "ALL", "off"), ("GraphFusion", "SoftmaxFusionPass", "on"))
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
