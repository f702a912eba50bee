"""`msctx exec`: which processes of a command compute under the options, and how it ends."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

ECHO = """
import torch
def show(where):
    # one write: ranks share the pipe, and torchrun's Python does not buffer
    line = f"{where} {torch.are_deterministic_algorithms_enabled()} {torch.get_num_threads()}\\n"
    print(line, end="", flush=True)
"""
CHILDREN = """
import multiprocessing, sys, threading, echo
from torch.utils.data import DataLoader
class Data:
    def __len__(self): return 1
    def __getitem__(self, number):
        echo.show("worker")
        return number
if __name__ == "__main__":
    start = multiprocessing.get_context(sys.argv[1])
    child = start.Process(target=echo.show, args=("child",))
    child.start()
    child.join()
    list(DataLoader(Data(), num_workers=1, multiprocessing_context=start))
"""
OPTIONS = ("deterministic=ON", "runtime_num_threads=1")


@pytest.fixture
def run(run_forked):

    def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
        code = f"""
        from msctx.cli import main
        main({["exec", *map(str, words)]!r})
        """
        return run_forked(code, timeout=300)

    return run


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "echo.py").write_text(ECHO)
    (tmp_path / "children.py").write_text(CHILDREN)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    return tmp_path


@pytest.mark.full
@pytest.mark.parametrize("start", ["fork", "spawn", "forkserver"])
def test_workers_are_reached(run, folder, start):
    done = run(*OPTIONS, "--", sys.executable, folder / "children.py", start)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["child True 1", "worker True 1"]


@pytest.mark.full
@pytest.mark.parametrize("first", ["", "msctx.state()", "from msctx.observers import operator_events"])
def test_programs_that_begin_with_msctx_are_reached(run, folder, first):
    """Their first import of torch may be one of msctx's own modules, or their own."""
    done = run(*OPTIONS, "--", sys.executable, "-c", f"import msctx\n{first}\nimport echo\necho.show('here')")
    assert (done.stdout, done.stderr) == ("here True 1\n", "")


@pytest.mark.full
def test_msctx_itself_is_reached(run, folder):
    for words, shown in (
        (["explain", "seed=1"], "torch.deterministic = True"),
        (["exec", "seed=1", "--", sys.executable, "-c", "import echo; echo.show('inner')"], "inner True 1"),
        (["run", "digits", "--out", str(folder / "ranks"), "--nproc", "2", "args.epochs=1"], "the records of the ranks are in"),
    ):
        done = run(*OPTIONS, "--", sys.executable, "-m", "msctx", *words)
        assert shown in done.stdout, done.stderr
        assert done.returncode == 0


@pytest.mark.full
def test_torchrun_and_a_shell_are_reached(run, folder):
    """A cap on memory holds, too, of a program that knows nothing of msctx."""
    (folder / "train.py").write_text(
        "import torch, echo\necho.show('rank')\n"
        "try:\n    torch.zeros(1 << 28)\nexcept RuntimeError as error:\n"
        "    print('no memory\\n' if 'MiB' in str(error) else error, end='')"
    )
    inner = f"{sys.executable} -m torch.distributed.run --standalone --nproc-per-node 2 {folder / 'train.py'}"
    done = run(*OPTIONS, "max_device_memory=0.5GB", "--", "/bin/sh", "-c", inner)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["no memory"] * 2 + ["rank True 1"] * 2


def test_a_file_gives_the_options_and_the_command_its_exit_code(run, folder):
    (folder / "options.yaml").write_text("context: {deterministic: 'ON', runtime_num_threads: 2}")
    program = "import echo, sys; echo.show('program'); sys.exit(int(sys.argv[-1]))"
    done = run(folder / "options.yaml", "runtime_num_threads=1", sys.executable, "-c", program, "--code", "9")
    assert (done.stdout, done.returncode) == ("program True 1\n", 9), done.stderr


@pytest.mark.full
def test_a_command_that_does_not_use_the_options(run, folder):
    done = run(*OPTIONS, "--", "echo", "done")
    assert (done.stdout, done.returncode) == ("done\n", 0)
    assert "the options did nothing: no process of `echo done`" in done.stderr
    strict = run(*OPTIONS, "strict=true", "--", sys.executable, "-S", "-c", "print('done')")
    assert (strict.stdout, strict.returncode) == ("done\n", 7)


@pytest.mark.full
@pytest.mark.parametrize(("watches", "strict", "code"), [(True, "true", 0), (False, "false", 0), (False, "true", 7)])
def test_an_option_that_did_nothing_in_any_process(run, folder, watches, strict, code):
    program = (
        "import msctx, subprocess, sys, torch; from torch.nn import Linear, Sequential\n"
        "model = Sequential(Sequential(Linear(2, 2)), Sequential(Linear(2, 2)))\n"
        f"if sys.argv[1:]: {watches} and msctx.current().watch(model)\n"
        "else: subprocess.run([sys.executable, __file__, 'again'], check=True)"
    )
    (folder / "twice.py").write_text(program)
    done = run("memory_optimize_level=O1", f"strict={strict}", "--", sys.executable, str(folder / "twice.py"))
    assert (done.returncode, done.stderr.count("memory_optimize_level=O1 did nothing to any model")) == (code, not watches)


def test_the_launcher_imports_torch_for_the_plan_alone():
    for flags, is_shown in (([], False), (["-v"], True)):
        command = [sys.executable, "-X", "importtime", "-m", "msctx", "exec", *flags, *OPTIONS, "--", "true"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert ("deterministic = ON  from command line" in done.stderr) is is_shown
        assert any(line.endswith(" torch") for line in done.stderr.splitlines()) is is_shown


@pytest.mark.parametrize(
    "words", [["exec", *OPTIONS, "--", sys.executable, "-c", "import torch"], ["state"], ["explain", *OPTIONS]]
)
def test_a_file_that_is_called_torch_is_named(words, folder):
    (folder / "torch.py").write_text("")
    command = [sys.executable, "-m", "msctx", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    assert f"error: import  torch: is {folder / 'torch.py'}, which is not PyTorch; rename it" in done.stderr
    assert "Traceback" not in done.stderr


IMPORTS = "try:\n    import torch\nexcept Exception:\n    pass\nprint('on')"
"""A program that catches what it can."""


@pytest.mark.parametrize(("strict", "code"), [((), 2), pytest.param(("strict=true",), 7, marks=pytest.mark.full)])
def test_a_process_that_has_said_why_it_could_not_enter_them(run, folder, strict, code):
    program = (
        "import json, os; os.environ['MSCTX_PLAN'] = json.dumps({**json.loads(os.environ['MSCTX_PLAN']), 'version': '0.0.1'})"
    )
    done = run("deterministic=ON", *strict, "--", sys.executable, "-c", f"{program}\n{IMPORTS}")
    assert (done.stdout, done.returncode) == ("", code), done.stderr
    assert "error: environment  MSCTX_PLAN: is not what `msctx exec` of msctx" in done.stderr
    assert "Traceback" not in done.stderr
    assert "no process of" in done.stderr


def test_a_python_without_torch_reads_nothing_of_ours():
    program = "import sys; print([name for name in sys.modules if name.startswith('msctx')])"
    environment = os.environ | {"MSCTX_PLAN": '{"version": "0.0.1"}'}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == "[]\n"


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signals_reach_the_command(folder, number):
    program = (
        "import signal, sys, time\nsignal.signal(int(sys.argv[1]), lambda *_: sys.exit(11))\n"
        "print('on', flush=True)\ntime.sleep(60)"
    )
    command = [sys.executable, "-m", "msctx", "exec", *OPTIONS, "--", sys.executable, "-c", program, str(int(number))]
    pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, start_new_session=True, **pipes) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "on\n"
        time.sleep(0.1)
        process.send_signal(number)
        assert process.wait(60) == 11
