"""What the options of caches come to together, on every device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from plans import check, planned, rows

from msctx.options import DEVICES
from msctx.options.compile_cache import CompileCache

HERE, OFF = "torch.compiler.cache", CompileCache(off=True)
ON = {"enable_compile_cache": True}


def cache(*layers: dict[str, Any], on: str = "cpu") -> Any:
    return planned(*layers, on=on).assignments.get(HERE)


@pytest.mark.parametrize("device", DEVICES)
def test_torchs_caches_are_on_in_the_folder_or_really_off(device: str) -> None:
    status, why = ("approximated", "torchair") if device == "ascend" else ("honoured", "")
    on = {
        HERE: CompileCache("kept"),
        "torch.compiler.force_disable_caches": False,
        "torch.inductor.fx_graph_cache": True,
        "torch.inductor.autotune_local_cache": True,
        "torch.functorch.enable_autograd_cache": True,
        "torch.compiler.job_id": "msctx",
    }
    off = {HERE: OFF, "torch.compiler.force_disable_caches": True, "torch.inductor.cpp_cache_precompile_headers": False}
    both = dict.fromkeys(("enable_compile_cache", "compile_cache_path"), (status, on, why))
    check([(device, ON | {"compile_cache_path": "kept"}, both)])
    check([(device, {"enable_compile_cache": False}, {"enable_compile_cache": (status, off, why)})])


def test_unset_means_as_torch_has_it() -> None:
    assert planned({"seed": 1}).assignments.keys().isdisjoint({HERE, "torch.compiler.force_disable_caches"})
    check([("cpu", {"compile_cache_path": "kept"}, {"compile_cache_path": ("inert", {}, "enable_compile_cache")})])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (ON, CompileCache(".")),
        ({"op_compiler_cache_mode": "enable"}, CompileCache(kernels=True)),
        ({"op_compiler_cache_dir": "ops"}, CompileCache("ops", kernels=True)),
        ({"op_compiler_cache_mode": "force", "op_compiler_cache_dir": "ops"}, CompileCache("ops", kernels=True, renew=True)),
        ({"op_compiler_cache_mode": "disable", "op_compiler_cache_dir": "ops"}, OFF),
    ],
)
def test_the_folder_and_the_modes(options: dict[str, Any], expected: CompileCache) -> None:
    assert cache(options) == expected


def test_torch_npu_has_its_own_cache_of_kernels() -> None:
    mode, folder = "torch.npu.op_compiler_cache_mode", "torch.npu.op_compiler_cache_dir"
    both = {"op_compiler_cache_mode": "force", "op_compiler_cache_dir": "ops"}
    for graphs, kept in (({}, None), (ON, CompileCache(".")), ({"enable_compile_cache": False}, OFF)):
        found = planned(both, graphs, on="ascend").assignments
        assert (found[mode], found[folder], found.get(HERE)) == ("force", "ops", kept)
        assert found["torch.npu.graph_options"]["ge.op_compiler_cache_mode"] == "force"


def test_cann_reads_the_limits_of_its_kernels_itself(tmp_path: Path) -> None:
    path = tmp_path / "op_cache.ini"
    path.write_text("[op_compiler_cache]\nmax_op_cache_size=7\nremain_cache_size_ratio=20\n")
    limits = {"op_compiler_cache_dir.op_cache_ini": str(path)}
    refused = dict.fromkeys(limits, ("refused", {}, "kernel_cache/op_cache.ini"))
    check([("ascend", {"op_compiler_cache_dir": "ops"} | limits, refused)])
    assert planned(ON | limits, on="ascend").assignments[HERE].megabytes == 7


@pytest.mark.parametrize("on", [True, False])
def test_enable_compile_cache_wins_in_one_place_and_the_higher_one_in_two(on: bool) -> None:
    graphs, kernels = {"enable_compile_cache": on}, {"op_compiler_cache_mode": "force", "op_compiler_cache_dir": "ops"}
    expected = CompileCache(".") if on else OFF
    assert cache(graphs | kernels) == expected
    assert cache(kernels, graphs) == expected
    assert cache(graphs, kernels) == CompileCache("ops", kernels=True, renew=True)
    reasons = [row.reason for row in planned(graphs | kernels).rows if row.option in kernels]
    assert reasons
    assert all(reason.startswith("overridden by enable_compile_cache") for reason in reasons)


@pytest.mark.parametrize("bits", [{"deterministic": "ON"}, {"thread_invariant": True}, {"batch_invariant": True}])
def test_what_earlier_runs_have_learnt_changes_no_bits(bits: dict[str, Any]) -> None:
    assert "torch.compiler.job_id" not in rows(ON | bits)["enable_compile_cache"].assignments
