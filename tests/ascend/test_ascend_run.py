"""A training from end to end by ``msctx run`` on the device npu: forward, backward, optimizer, checkpoint, record."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import machine
import pytest

pytestmark = pytest.mark.full
Run = Callable[..., str]

JOB = """
import torch
from torch.nn.functional import cross_entropy


def train(run, checkpoint, epochs=4):
    inputs = torch.randn(256, 16)
    classes = (inputs @ torch.randn(16, 4)).argmax(1)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4)).to(run.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for epoch in range(epochs):
        total = 0.0
        for x, y in zip(inputs.split(32), classes.split(32)):
            optimizer.zero_grad()
            loss = cross_entropy(model(x.to(run.device)), y.to(run.device))
            loss.backward()
            optimizer.step()
            total += loss.item() / 8
        run.log(epoch=epoch + 1, loss=total)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, checkpoint)
    again = torch.load(checkpoint, map_location="cpu")["model"]
    assert all(torch.equal(tensor.cpu(), again[name]) for name, tensor in model.state_dict().items())
    return {"device": run.device.type, "loss": total}
"""


def _trained(run: Run, folder: Path, device: str, **options: object) -> tuple[dict[str, object], list[float]]:
    folder.mkdir()
    (folder / "job.py").write_text(JOB, encoding="utf-8")
    context = json.dumps({"device_target": device, **options})
    file = folder / "job.yaml"
    file.write_text(
        f"context: {context}\n"
        f"experiment: {{entry: job.py:train, seed: 0, args: {{checkpoint: {folder / 'trained.pt'}}}}}\n"
        f"record: {{dir: {folder / 'runs'}}}\n",
        encoding="utf-8",
    )
    run("-m", "msctx", "run", str(file), cwd=folder)
    assert (folder / "trained.pt").exists()
    return _recorded(folder / "runs")


def _recorded(runs: Path) -> tuple[dict[str, object], list[float]]:
    """What the only run there ended with, and its losses."""
    (record,) = runs.iterdir()
    result = json.loads((record / "result.json").read_text(encoding="utf-8"))
    rows = [json.loads(line) for line in (record / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    environment = json.loads((record / "environment.json").read_text(encoding="utf-8"))
    assert environment["devices"]["ascend"] == 2
    assert environment["ascend"] == {"soc": "Ascend910B1", "cann": "8.5.0"}
    assert environment["libraries"]["torch-npu"] == "2.13.0"
    return result, [row["loss"] for row in rows]


def test_a_training_ends_with_the_losses_of_the_cpu_and_a_record_of_the_device(ascend_fresh: Run, tmp_path: Path) -> None:
    on_cpu, expected = _trained(ascend_fresh, tmp_path / "cpu", "CPU")
    on_npu, losses = _trained(ascend_fresh, tmp_path / "npu", "Ascend", deterministic="ON", device_id=0)
    assert (on_cpu["device"], on_npu["device"]) == ("cpu", "npu")
    assert on_npu["status"] == "completed"
    assert on_npu["restored"] is True
    assert "left_changed" not in on_npu, on_npu
    assert losses == pytest.approx(expected, rel=1e-3)
    assert losses[-1] < 0.5 * losses[0]
    _, again = _trained(ascend_fresh, tmp_path / "again", "Ascend", deterministic="ON")
    assert again == losses
    _, mixed = _trained(ascend_fresh, tmp_path / "mixed", "Ascend", precision_mode="allow_mix_precision_bf16")
    assert mixed != losses
    assert mixed == pytest.approx(losses, rel=0.1)


def test_the_digits_experiment_goes_to_its_end(ascend_fresh: Run, tmp_path: Path) -> None:
    def trained(name: str, device: str) -> tuple[dict[str, object], list[float]]:
        given = (f"device_target={device}", "args.epochs=1", f"record.dir={tmp_path / name}")
        ascend_fresh("-m", "msctx", "run", "configs/experiments/digits.yaml", *given)
        return _recorded(tmp_path / name)

    result, losses = trained("npu", "Ascend")
    assert (result["status"], result["restored"]) == ("completed", True)
    assert result["test_accuracy"] > 0.9
    again, its_losses = trained("again", "Ascend")
    assert (again["weights_sha256"], its_losses) == (result["weights_sha256"], losses)
    on_cpu, expected = trained("cpu", "CPU")
    assert losses == pytest.approx(expected, rel=0.3)  # other numbers are drawn for dropout, and convolutions take HF32
    assert on_cpu["weights_sha256"] != result["weights_sha256"]


def test_doctor_and_explain_know_the_machine(ascend_fresh: Run) -> None:
    assert "torch_npu 2.13.0, 2 devices (Ascend910B1, CANN 8.5.0)" in ascend_fresh("-m", "msctx", "doctor", "--json")
    text = ascend_fresh("-m", "msctx", "explain", "device_target=Ascend", "matmul_allow_hf32=true")
    assert "torch.npu.matmul.allow_hf32 = True" in text


def test_exec_sets_what_must_precede_the_first_use_of_the_device(ascend_fresh: Run) -> None:
    given = ("device_target=Ascend", "exception_dump=1", "hccl_timeout=600", "deterministic=ON", "op_timeout=9")
    text = ascend_fresh(
        *("-m", "msctx", "exec", *given, "--", sys.executable, "-c"),
        """
        import json, os, torch
        from boundary import calls
        assert os.environ["HCCL_EXEC_TIMEOUT"] == "600" and os.environ["HCCL_DETERMINISTIC"] == "true"
        torch.npu.set_device(0)
        a = torch.ones(2, 2).npu()
        a @ a
        found = calls()
        (started,) = [call for call in found if call.startswith("aclInit")]
        assert json.load(open(started[len("aclInit("):-1]))["dump"] == {"dump_scene": "aic_err_norm_dump"}
        assert found.index("aclrtSetOpExecuteTimeOutV2(9000000)") > found.index("aclrtSetOpExecuteTimeOutV2(547000000)")
        assert "aclrtSetSysParamOpt(ACL_OPT_DETERMINISTIC, 1)" in found
        print("computed")
        """,
    )
    assert text.split()[-1] == "computed", text


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


@pytest.mark.parametrize("ranks", [1, 2])
def test_run_sets_what_must_precede_the_import_of_torch_npu(ascend_fresh: Run, tmp_path: Path, ranks: int) -> None:
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
    }
    file.write_text(
        f"context: {json.dumps(context)}\nexperiment: {{entry: job.py:look, seed: 0}}\nrecord: {{dir: {tmp_path / 'runs'}}}\n",
        encoding="utf-8",
    )
    how = ("--nproc", str(ranks)) if ranks > 1 else ()
    ascend_fresh(
        "-m",
        "msctx",
        "run",
        *how,
        str(file),
        cwd=tmp_path,
        env={"PYTHONPATH": os.pathsep.join((str(tmp_path), machine.variables()["PYTHONPATH"]))},
    )
    results = sorted((tmp_path / "runs").rglob("result.json"))
    assert len(results) == ranks
    for one in results:
        found = json.loads(one.read_text(encoding="utf-8"))
        expected = {
            "HCCL_EXEC_TIMEOUT": "600",
            "HCCL_EVENT_TIMEOUT": "60",
            "HCCL_DETERMINISTIC": "true",
            "TE_PARALLEL_COMPILER": "1",
            "PYTORCH_NO_NPU_MEMORY_CACHING": "1",
        }
        assert expected.items() <= found["before"].items(), {name: found["before"].get(name) for name in expected}
        assert found["config"]["dump"] == {"dump_scene": "aic_err_norm_dump"}
        assert found["memory"] == ["aclrtMallocAlign32(5242912)"] * 2, "memory goes back at once"


def test_scripts_are_migrated_on_the_machine(ascend_fresh: Run, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import mindspore as ms\nms.set_context(device_target='Ascend', ascend_config={'matmul_allow_hf32': True})\n"
    )
    assert "matmul_allow_hf32" in ascend_fresh("-m", "msctx", "migrate", str(script), cwd=tmp_path)
