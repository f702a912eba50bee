"""``aoe_tune_mode``: what is measured while a program runs, seen in what ran and in the file of measurements."""

import json
from pathlib import Path

import pytest
import torch
from graph_programs import Net, image

import msctx
from msctx.native import tuning_file


def test_operators_of_the_file_are_measured_and_kept_in_work_path(tmp_path: Path) -> None:
    config = tmp_path / "aoe.json"
    config.write_text(json.dumps({"tune_ops_type": ["Conv2D"]}))
    session = {"aoe_mode": "2", "aoe_config_file": str(config), "work_path": str(tmp_path)}
    net = Net()
    with msctx.context(session=session) as ctx:
        net(image()).sum().backward()
    assert {(row.direction, row.requested) for row in ctx.choices()} == {("fprop", "performance")}
    kept = json.loads((tmp_path / "msctx_tuning.json").read_text(encoding="utf-8"))
    assert kept
    with msctx.context(session=session):
        net(image())
    assert json.loads((tmp_path / "msctx_tuning.json").read_text(encoding="utf-8")) == kept, "measured once"


@pytest.mark.full
def test_compiled_code_is_recorded_and_stays_as_it_was(tmp_path: Path) -> None:
    net = Net().eval()
    with torch.no_grad(), msctx.context(mode="GRAPH_MODE"):
        expected = net(image())
    options = {"mode": "GRAPH_MODE", "aoe_tune_mode": "offline", "work_path": str(tmp_path)}
    with torch.no_grad(), msctx.context(**options):
        assert torch.equal(net(image()), expected)
    (group,) = tuning_file.read(tmp_path / "msctx_tuning.json").values()
    assert {key.direction for key in group} == {"fprop", "matmul"}
    assert not any("then" in key.problem for key in group)
