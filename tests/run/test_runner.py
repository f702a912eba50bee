"""Runs from end to end: the digits experiment, its record, its bits; Ctrl-C and entries that raise."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from processes import until

import msctx
from msctx.errors import EntryFailed, RecordError
from msctx.run.experiment_and_entry import prepare_environment, read
from msctx.run.runner import Terminated, run_experiment

ROOT = Path(__file__).parents[2]
DIGITS = str(ROOT / "configs" / "experiments" / "digits.yaml")
FILES = {"plan.json", "state.json", "environment.json", "config.yaml", "metrics.jsonl", "result.json"}


@pytest.mark.full
def test_digits_reaches_98_percent_and_leaves_a_record(tmp_path):
    result = run_experiment(read(DIGITS, need_entry=True), str(tmp_path / "run"))
    assert result["test_accuracy"] >= 0.98
    assert result["status"] == "completed"
    assert result["restored"] is True
    assert {p.name for p in (tmp_path / "run").iterdir()} == FILES
    assert json.loads((tmp_path / "run" / "result.json").read_text()) == result
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["epoch"] for row in rows] == list(range(1, 26))
    state = json.loads((tmp_path / "run" / "state.json").read_text())
    assert state["torch.deterministic"] is True  # the state under which it ran, not the one around it
    assert not torch.are_deterministic_algorithms_enabled()
    plan = json.loads((tmp_path / "run" / "plan.json").read_text())
    assert {row["option"]: row["status"] for row in plan["options"]}["deterministic"] == "honoured"


@pytest.mark.full
def test_deterministic_runs_leave_the_same_bits(tmp_path):
    """Two processes, so that nothing of the first can help the second; a third with another seed must differ."""

    def weights(name: str, *overrides: str) -> str:
        words = (DIGITS, "args.epochs=3", *overrides, "--out", str(tmp_path / name), "--json")
        done = subprocess.run([sys.executable, "-m", "msctx", "run", *words], capture_output=True, text=True, check=True)
        return json.loads(done.stdout)["weights_sha256"]

    assert weights("a") == weights("b")
    assert weights("c", "seed=1") != weights("d")


def test_the_recorded_configuration_repeats_the_run(tmp_path):
    first = run_experiment(read(DIGITS, ["args.epochs=1", "seed=7"]), str(tmp_path / "a"))
    again = run_experiment(read(str(tmp_path / "a" / "config.yaml")), str(tmp_path / "b"))
    assert first["weights_sha256"] == again["weights_sha256"]
    assert yaml.safe_load((tmp_path / "b" / "config.yaml").read_text())["context"]["seed"] == 7


def test_with_block_and_yaml_do_the_same(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "configs" / "experiments"))
    import digits

    recorded = run_experiment(read(DIGITS, ["args.epochs=1"]), str(tmp_path / "run"))
    with msctx.context(deterministic="ON", runtime_num_threads=1, seed=0):
        assert digits.train(epochs=1)["weights_sha256"] == recorded["weights_sha256"]


def test_a_program_may_set_options_itself(job, tmp_path):
    """set_context inside the entry beats YAML and command line, and is taken back with the run."""
    source = """
    import msctx, torch
    def main():
        before = msctx.get_context("deterministic", origin=True)
        msctx.set_context(deterministic="OFF")
        after = msctx.get_context("deterministic", origin=True)
        return {"before": before.value, "after": after.value, "flag": torch.are_deterministic_algorithms_enabled()}
    """
    result = run_experiment(read(job(source)), str(tmp_path / "run"))
    assert (result["before"], result["after"], result["flag"]) == ("ON", "OFF", False)
    assert msctx.get_context("deterministic", origin=True).origin == "default"


def test_an_entry_that_raises(job, tmp_path):
    file = job("import msctx.run\ndef main():\n    msctx.run.log(step=1)\n    raise ValueError('my mistake')\n")
    with pytest.raises(EntryFailed) as caught:
        run_experiment(read(file), str(tmp_path / "run"))
    assert "ValueError: my mistake" in str(caught.value)
    assert "runner.py" not in str(caught.value)
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["status"] == "failed"
    assert "my mistake" in result["error"]
    assert result["restored"] is True
    assert not torch.are_deterministic_algorithms_enabled()


def test_what_the_entry_leaves_changed_is_told(job, tmp_path):
    file = job("import torch\ndef main(): torch.set_default_dtype(torch.float64)\n")
    try:
        result = run_experiment(read(file), str(tmp_path / "run"))
    finally:
        torch.set_default_dtype(torch.float32)
    assert result["restored"] is True  # what the options set; the rest is the entry's own doing, and told
    assert result["left_changed"] == {"torch.default_dtype": {"found": "torch.float32", "left": "torch.float64"}}


def test_results_of_any_kind(job, tmp_path):
    for i, (returned, expected) in enumerate(
        [("3", {"value": 3}), ("None", {}), ("{'a': float('nan'), 'status': 1}", {"a": "nan"})]
    ):
        run_experiment(read(job(f"def main(): return {returned}")), str(tmp_path / f"run{i}"))
        result = json.loads((tmp_path / f"run{i}" / "result.json").read_text())
        assert {k: result[k] for k in expected} == expected
        assert result["status"] == "completed"


@pytest.mark.parametrize("ends_well", [True, False])
def test_a_record_that_cannot_be_finished_hides_neither_result_nor_mistake(job, tmp_path, ends_well):
    source = f"""
    import pathlib
    def main(run):
        (run.dir / "result.json").mkdir()
        if not {ends_well}:
            raise ValueError("my mistake")
        return {{"accuracy": 0.875}}
    """
    if ends_well:
        with pytest.raises(RecordError, match=r"result.json  cannot be written(.|\n)*0\.875(.|\n)*the run has ended") as caught:
            run_experiment(read(job(source)), str(tmp_path / "run"))
        assert "nothing was changed" not in str(caught.value)
    else:
        with pytest.raises(EntryFailed, match="my mistake"):
            run_experiment(read(job(source)), str(tmp_path / "run"))
    assert not torch.are_deterministic_algorithms_enabled()


UNTIL_ENDED = """
import os, time
def main(run):
    run.log(epoch=1)
    if not os.fork():  # a worker, which ends by the signal at once, without a word; a signal that comes during the fork is lost
        (run.dir / "child").write_text(str(os.getpid()))
    for _ in range(1200):  # Python sees a signal that comes just before a sleep begins only at its end
        time.sleep(0.05)
"""


@pytest.mark.parametrize(
    ("number", "code", "reason"),
    [(signal.SIGTERM, 128 + signal.SIGTERM, "SIGTERM"), pytest.param(signal.SIGINT, 130, None, marks=pytest.mark.full)],
)
def test_a_signal_leaves_a_valid_record_and_ends_the_process(job, tmp_path, number, code, reason):
    out = tmp_path / "run"
    command = [sys.executable, "-m", "msctx", "run", job(UNTIL_ENDED), "--out", str(out), "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until(lambda: (out / "child").exists() and (out / "child").read_text())
    os.kill(int((out / "child").read_text()), signal.SIGTERM)
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == code
    assert "Traceback" not in stderr
    result = json.loads((out / "result.json").read_text())
    assert (result["status"], result.get("reason"), result["restored"]) == ("interrupted", reason, True)
    if number == signal.SIGINT:
        assert "interrupted; the record is in" in stderr
        assert json.loads(stdout) == result
    assert {p.name for p in out.iterdir()} == FILES | {"child"}


def test_sigterm_waits_until_the_record_is_written(job, tmp_path, monkeypatch):
    monkeypatch.setattr("msctx.run.runner.peaks", lambda: signal.raise_signal(signal.SIGTERM) or {})
    with pytest.raises(Terminated):
        run_experiment(read(job("def main(): pass\n"), ["deterministic=ON"]), str(tmp_path / "run"))
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["status"], result["restored"]) == ("completed", True)
    assert not msctx.current().plan.rows


def test_variables_that_libraries_read_once_are_set_before_torch(monkeypatch, tmp_path):
    monkeypatch.setattr("msctx.devices.likely", lambda: ("cpu", "cuda"))
    for name in ("CUBLAS_WORKSPACE_CONFIG", "NCCL_ALGO"):
        monkeypatch.setenv(name, "")  # so that what is set here is taken back
        del os.environ[name]
    experiment = read(None, ["deterministic=ON"])
    prepare_environment(experiment)
    assert os.environ.pop("CUBLAS_WORKSPACE_CONFIG") == ":4096:8"
    assert os.environ["NCCL_ALGO"] == "Ring"
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    prepare_environment(experiment)
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"  # the user's own stays
    code = "from msctx.run.experiment_and_entry import read; e = read('digits'); import sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(("code", "status"), [("0", "completed"), ("3", "failed"), ("'no data'", "failed")])
def test_an_entry_that_ends_itself(job, tmp_path, code, status):
    experiment = read(job(f"import sys\ndef main(): sys.exit({code})\n"))
    if status == "completed":
        run_experiment(experiment, str(tmp_path / "run"))
    else:
        with pytest.raises(EntryFailed, match=f"ended itself with {code}"):
            run_experiment(experiment, str(tmp_path / "run"))
    assert json.loads((tmp_path / "run" / "result.json").read_text())["status"] == status


@pytest.mark.full
def test_every_algorithm_reaches_the_same_accuracy(tmp_path):
    file = str(ROOT / "configs" / "experiments" / "digits_algorithms.yaml")
    words = ["args.epochs=2", "runtime_num_threads=1"]
    result = run_experiment(read(file, words, need_entry=True), str(tmp_path / "run"))
    accuracy = result["test_accuracy"]
    assert isinstance(accuracy, dict)
    assert min(accuracy.values()) >= 0.95
    assert result["difference"] <= 0.015  # five of 359 images: other last bits, another path
    ran = {
        row["algorithm"]: row["ran"] for row in map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    }
    assert ran["torch"] == ""
    assert ran["winograd"] == "dgrad=winograd, fprop=winograd, wgrad=winograd_nonfused"
    assert ran["implicit_gemm"] == "dgrad=algo_0, fprop=implicit_gemm, wgrad=algo_0"
    for name in ("fft", "fft_tiling", "winograd_nonfused"):
        assert ran[name] == f"dgrad={name}, fprop={name}, wgrad={name}"
