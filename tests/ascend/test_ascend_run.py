"""``msctx run``, ``exec``, ``doctor`` and ``explain`` on a machine with the device npu."""

import json
import os

import machine
import pytest

pytestmark = pytest.mark.full


def test_doctor_and_explain_know_the_machine(ascend_fresh):
    assert "torch_npu 2.13.0, 2 devices (Ascend910B1, CANN 8.5.0)" in ascend_fresh("-m", "msctx", "doctor", "--json")
    text = ascend_fresh("-m", "msctx", "explain", "device_target=Ascend", "matmul_allow_hf32=true")
    assert "torch.npu.matmul.allow_hf32 = True" in text


SITE = """
import os, sys


class Noting:
    def find_spec(self, name, path=None, target=None):
        if name == "torch_npu":
            sys.before_torch_npu = dict(os.environ)  # the last time is its import


sys.meta_path.insert(0, Noting())
"""
LOOK = """
import json, os, sys
import torch
from boundary import calls


def look(run):
    torch.npu.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    torch.npu.synchronize()
    (started,) = [call for call in calls() if call.startswith("aclInit")]
    for _ in range(2):
        torch.empty(5 << 20, dtype=torch.uint8, device="npu")
    return {
        "before": sys.before_torch_npu,
        "config": json.load(open(started[len("aclInit("):-1])),
        "memory": calls("aclrtMalloc"),
    }
"""


def test_run_sets_what_must_precede_the_import_of_torch_npu(ascend_fresh, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(SITE, encoding="utf-8")
    (tmp_path / "job.py").write_text(LOOK, encoding="utf-8")
    file = tmp_path / "job.yaml"
    context = {
        "device_target": "Ascend",
        "exception_dump": "1",
        "hccl_timeout": 600,
        "op_wait_timeout": 60,
        "deterministic": "ON",
        "env_config_path": {"sys": {"mem_reuse": False}},
        "op_compiler_cache_mode": "enable",
        "op_compiler_cache_dir.op_cache_ini": str(machine.ROOT / "configs/files/op_cache.ini"),
    }
    file.write_text(
        f"context: {json.dumps(context)}\nexperiment: {{entry: job.py:look}}\nrecord: {{dir: {tmp_path / 'runs'}}}\n",
        encoding="utf-8",
    )
    paths = os.pathsep.join((str(tmp_path), machine.variables()["PYTHONPATH"]))
    ascend_fresh("-m", "msctx", "run", str(file), cwd=tmp_path, env={"PYTHONPATH": paths})
    (result,) = (tmp_path / "runs").rglob("result.json")
    found = json.loads(result.read_text(encoding="utf-8"))
    expected = {
        "HCCL_EXEC_TIMEOUT": "600",
        "HCCL_EVENT_TIMEOUT": "60",
        "HCCL_DETERMINISTIC": "true",
        "TE_PARALLEL_COMPILER": "1",
        "PYTORCH_NO_NPU_MEMORY_CACHING": "1",
        "ASCEND_MAX_OP_CACHE_SIZE": "500",
        "ASCEND_REMAIN_CACHE_SIZE_RATIO": "50",
    }
    assert expected.items() <= found["before"].items(), {name: found["before"].get(name) for name in expected}
    assert found["config"]["dump"] == {"dump_scene": "aic_err_norm_dump"}
    assert found["memory"] == ["aclrtMallocAlign32(5242912)"] * 2, "memory goes back at once"
