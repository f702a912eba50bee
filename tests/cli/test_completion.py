"""Completion of options and their values, as shells request it."""

import os
import re
import shutil
import subprocess
import sys

import pytest


@pytest.mark.full
def test_bash_completes_options(tmp_path):
    """In a real bash."""
    if (bash := shutil.which("bash")) is None:
        pytest.skip("there is no bash")
    command = tmp_path / "msctx"
    command.write_text(f"#!{sys.executable}\nfrom msctx.cli import main\nmain()\n")
    command.chmod(0o755)
    script = f"""
        cd {tmp_path}
        PATH={tmp_path}:$PATH
        eval "$(_MSCTX_COMPLETE=source_bash msctx)"
        ask() {{ COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _msctx_completion msctx; echo "${{COMPREPLY[*]}}"; }}
        ask msctx run digits conv_al
        ask msctx run dig
        ask msctx options max_dev
    """
    done = subprocess.run([bash, "-c", script], capture_output=True, text=True, check=True, env={**os.environ})
    offered = ["conv_algo_rules= conv_allow_hf32= conv_allow_tf32=", "digits digits_algorithms", "max_device_memory"]
    assert done.stdout.splitlines() == offered, done.stderr


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("msctx explain conv_fprop_algo=wino", ["conv_fprop_algo=winograd", "conv_fprop_algo=winograd_nonfused"]),
        ("msctx explain nothing=", []),
    ],
)
def test_zsh_completes_whole_words(typed, offered):
    env = {**os.environ, "_MSCTX_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": typed}
    command = [sys.executable, "-c", "from msctx.cli import app; app(prog_name='msctx')"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    assert re.findall(r'"([^"]+)"', done.stdout) == offered, done
