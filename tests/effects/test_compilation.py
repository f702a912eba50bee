"""What shows the inside of torch.compile, on every device."""

from __future__ import annotations

from pathlib import Path

import pytest
from plans import check, planned, rows

from msctx.options import DEVICES
from msctx.options.observation import Kernels

DEBUG = "torch.inductor.aot_inductor.debug_compile"


def config(folder: Path, *words: str, only: str = "") -> str:
    path = folder / f"{'_'.join(words)}{only}.cfg"
    path.write_text(f"op_debug_config={','.join(words)}\n" + f"op_debug_list={only}\n" * bool(only))
    return str(path)


def test_each_word_of_op_debug_config_is_its_setting_of_inductor(tmp_path: Path) -> None:
    expected = {
        "oom": {"torch.inductor.debug_index_asserts": True, "torch.inductor.assert_indirect_indexing": True},
        "dump_cce": {"observers.kernels": Kernels()},
        "dump_loc": {"observers.kernels": Kernels("", True), "torch.inductor.trace.provenance_tracking_level": 1},
        "ccec_O0": {DEBUG: True},
        "ccec_g": {"torch.inductor.aot_inductor.debug_symbols": True},
    }
    others = {
        "observers.kernels": None,
        "torch.inductor.debug_index_asserts": False,
        DEBUG: False,
        "torch.inductor.aot_inductor.debug_symbols": False,
        "torch.inductor.fx_graph_cache": False,
    }
    for word, own in expected.items():
        row = rows({"op_debug_config": config(tmp_path, word)})["op_debug_config"]
        assigned = dict(row.assignments)
        assert assigned.pop("torch.dynamo.apart")[0] == word
        assert assigned == others | own
        assert row.status == ("honoured" if word in ("oom", "ccec_g") else "approximated")


def test_check_flag_means_streams_and_a_cpu_has_none(tmp_path: Path) -> None:
    path = config(tmp_path, "check_flag")
    check([("cpu", {"op_debug_config": path}, {"op_debug_config": ("inert", {}, "no pipelines")})])
    assert rows({"op_debug_config": path}, on="cuda")["op_debug_config"].assignments["torch.cuda.sanitizer"] is True
    assert "graph engine" in rows({"op_debug_config": path}, on="ascend")["op_debug_config"].reason


def test_accelerators_have_words_of_their_own(tmp_path: Path) -> None:
    oom, o0 = ({"op_debug_config": config(tmp_path, word)} for word in ("oom", "ccec_O0"))
    assert rows(oom, on="ascend")["op_debug_config"].assignments["torch.npu.op_debug_option"] == "oom"
    assert "torch.npu.op_debug_option" not in rows(o0, on="ascend")["op_debug_config"].assignments, "it stays on in a process"
    assert rows(o0, on="cuda")["op_debug_config"].assignments["env.DISABLE_PTXAS_OPT"] == "1"
    assert rows(oom, on="cuda")["op_debug_config"].assignments["env.DISABLE_PTXAS_OPT"] is None
    assert "CUDA_LAUNCH_BLOCKING" in rows(oom, on="cuda")["op_debug_config"].reason


@pytest.mark.parametrize("device", DEVICES)
def test_both_options_of_kept_sources_come_to_one_value(device: str, tmp_path: Path) -> None:
    options = {"op_debug_config": config(tmp_path, "dump_cce"), "debug_dir": "kept"}
    plan = planned(options, on=device)
    assert plan.assignments["observers.kernels"] == Kernels("kept")
    found = [r.assignments["torch.dynamo.apart"] for r in plan.rows if "torch.dynamo.apart" in r.assignments]
    assert len(found) >= 2
    assert len({*found}) == 1
    assert found[0][:2] == ("dump_cce", "debug_dir=kept")


def test_debug_level_is_what_torch_logs_checks_and_keeps() -> None:
    found = {
        "torch.dynamo.verbose": True,
        "torch.functorch.debug_assert": True,
        "torch.inductor.trace.provenance_tracking_level": 1,
        **dict.fromkeys(("torch.logs.dynamo", "torch.logs.aot", "torch.logs.inductor"), 10),
        "torch.dynamo.apart": ("debug",),
    }
    for value in (1, "DEBUG"):
        check([(device, {"debug_level": value}, {"debug_level": ("honoured", found, "")}) for device in ("cpu", "cuda")])
    check([("ascend", {"debug_level": 1}, {"debug_level": ("approximated", found, "torchair")})])
    for device in DEVICES:
        assert not rows({"debug_level": 0}, on=device)["debug_level"].assignments
    assert not planned({"debug_level": 1}, {"debug_level": 0}).assignments
