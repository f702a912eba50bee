"""`msctx migrate`: what it prints for people and for programs, and its exit codes."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tests" / "data" / "migrate" / "resnet.py"


def test_migrate_shows_yaml_block_and_statuses(msctx):
    code, out, err = msctx("migrate", str(SCRIPT), "--device", "cuda")
    assert code == 0
    for expected in ('deterministic: "ON"  # resnet.py:49', "with msctx.context(", "torch.cudnn.deterministic = True"):
        assert expected in out
    assert "note: " in err
    assert "device_target: args.device_target is known only when the script runs" in err


def test_migrate_prints_a_form_alone(msctx, tmp_path):
    code, out, _ = msctx("migrate", str(SCRIPT), "--as", "yaml")
    (tmp_path / "x.yaml").write_text(out)
    assert msctx("explain", str(tmp_path / "x.yaml"))[0] == code == 0
    _, out, _ = msctx("migrate", str(SCRIPT), "--as", "block")
    compile(out, "block", "exec")
    code, _, err = msctx("migrate", str(SCRIPT), "--as", "toml")
    assert (code, "yaml, block" in err) == (2, True)


def test_migrate_for_programs(msctx):
    code, out, _ = msctx("migrate", str(SCRIPT), "--json")
    found = json.loads(out)
    assert (code, found["options"]["seed"]) == (0, 1)
    assert {row["option"] for row in found["plan"]["options"]} >= {"seed", "deterministic"}


def test_migrate_of_a_script_that_sets_nothing(msctx, tmp_path):
    (tmp_path / "x.py").write_text("print(1)\n")
    code, _, err = msctx("migrate", str(tmp_path / "x.py"))
    assert code == 1
    assert "no call that sets MindSpore's context was found" in err
    assert msctx("migrate", str(tmp_path / "none.py"))[0] == 3


def test_a_terminal_of_few_letters(tmp_path):
    found = subprocess.run(
        [sys.executable, "-m", "msctx", "migrate", str(SCRIPT)],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        check=False,
    )
    assert found.returncode == 0
    assert b"\\u2026" in found.stdout
