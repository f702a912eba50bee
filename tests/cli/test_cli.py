"""The command line: output for people and programs, exit codes, and no traceback of ours for a user's mistake."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from msctx import cli

ROOT = Path(__file__).parents[2]


REFUSED = "parallel_speed_up_json_path.enable_begin_end_inline_opt=true"
"""An option that is refused."""


def test_explain_as_a_table(command):
    code, out, _ = command("explain", "deterministic=ON", REFUSED, "gpu_config.conv_allow_tf32=false")
    assert code == 0
    for expected in (
        "deterministic = ON",
        "command line",
        "honoured",
        "torch.deterministic = True",
        "refused",
        "no CUDA device",
    ):
        assert expected in out
    assert f"1 of 3 options take effect (1 honoured); not: {REFUSED.partition('=')[0]}, gpu_config.conv_allow_tf32" in out


def test_a_preset_stands_where_options_do(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for words in (("reproducible",), ("digits", "reproducible")):
        rows = json.loads(command("explain", *words, "--json")[1])["options"]
        assert "thread_invariant" in {row["option"] for row in rows if row["origin"] == "preset reproducible"}
    (tmp_path / "x.yaml").write_text("context: {deterministic: ON}")
    (row,) = json.loads(command("explain", "preset=x.yaml", "--json")[1])["options"]
    assert (row["option"], row["value"]) == ("deterministic", "ON")


def test_run_a_function_by_its_name(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.py").write_text("def main(x=1): return {'twice': 2 * x}")
    assert json.loads(command("run", "job.py:main", "args.x=4", "--json")[1])["twice"] == 8
    found = json.loads(command("run", "job.py:main", "--sweep", "args.x=4,5", "--out", "sweep", "--json")[1])
    assert [point["result"]["twice"] for point in found["points"]] == [8, 10]


def test_what_follows_two_dashes_are_the_arguments_of_a_script(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.py").write_text("import pathlib, sys; pathlib.Path(sys.argv[1]).write_text(repr(sys.argv[2:]))")
    words = ["--fast", "--batch-size", "3", "1e3", "09", "", "a: 'é😀\"", "--json", "--"]
    assert command("run", "job.py", "seed=0", "--out", "run", "--", "ran", *words)[0] == 0
    (tmp_path / "ran").rename("first")
    assert command("run", "run/config.yaml", "--out", "again")[0] == 0
    assert (tmp_path / "ran").read_text() == (tmp_path / "first").read_text() == repr(words)


def test_explain_changes_nothing_and_needs_no_torch():
    code = (
        "import sys\nfrom msctx.cli import main\n"
        "try: main(['explain', 'deterministic=ON', '--device', 'ascend'])\n"
        "except SystemExit: pass\nassert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_a_plan_for_a_device_that_is_here_has_its_facts(command, monkeypatch):
    monkeypatch.setattr("msctx.native.core.amx_obstacle", lambda: "this processor has no AMX")
    for words in ([], ["--all"]):
        assert "has no AMX" in command("explain", "matmul_allow_tf32=true", "--device", "cpu", "--json", *words)[1]
    code, _, err = command("explain", "matmul_algo=bf16x3", "--device", "ascend")
    assert (code, "note: no ascend here; the plan assumes a machine that has all it needs" in err) == (0, True)


def test_mistakes_as_json(command):
    code, out, _ = command("explain", "determinstic=ON", "seed=x", "--json")
    error = json.loads(out)
    assert (code, error["exit_code"], error["error"]) == (2, 2, "OptionError")
    assert [(p["path"], p["hint"]) for p in error["problems"]] == [("determinstic", "deterministic"), ("seed", "")]


def test_dry_run_checks_everything_and_makes_nothing(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, _ = command("run", "digits", "--dry-run", "--out", "x")
    assert code == 0
    assert "deterministic = ON" in out
    assert not list(tmp_path.iterdir())
    assert command("run", "digits", "args.epoch=1", "--dry-run")[0] == 4


def test_run_shows_what_is_in_effect(command, tmp_path):
    code, out, err = command("run", "digits", "args.epochs=1", "--out", str(tmp_path / "run"))
    assert code == 0
    for expected in ("deterministic = ON", "3 of 3 options take effect", "test_accuracy", "completed", "restored"):
        assert expected in out
    assert "epoch=1" in err
    code, _, err = command("run", "digits", "args.epochs=1", "--out", str(tmp_path / "run"))
    assert code == 3
    assert "is not empty" in err


def test_state_and_diff(command, tmp_path):
    paths = []
    for i, words in enumerate(([], [], ["deterministic=ON"])):
        code, out, _ = command("state", *words, "--json")
        assert code == 0
        paths.append(tmp_path / f"{i}.json")
        paths[-1].write_text(out)
    assert command("diff", str(paths[0]), str(paths[1]))[:2] == (0, "no differences\n")
    code, out, _ = command("diff", str(paths[0]), str(paths[2]), "--json")
    assert code == 1
    assert json.loads(out)["torch.deterministic"] == {"a": False, "b": True}
    code, out, _ = command("diff", str(paths[0]), str(paths[2]))
    assert code == 1
    assert "torch.deterministic" in out
    assert "torch.deterministic" in command("state")[1]


def test_doctor(command):
    code, out, _ = command("doctor", "--json")
    found = {check["name"]: check for check in json.loads(out)}
    assert code == 0
    assert found["torch"]["status"] == "ok"
    assert all(check["fix"] for check in found.values() if check["status"] == "missing")
    assert found["memory allocator"]["found"] in ("the C library's", "tcmalloc", "jemalloc", "mimalloc")
    assert "C++ compiler" in command("doctor")[1]


def test_help_begins_with_what_people_come_for(command):
    _, text, _ = command("--help")
    commands = [line.split()[0] for line in text.partition("Commands:")[2].splitlines() if line.strip()]
    assert commands[:4] == ["run", "exec", "explain", "init"]
    assert not {"…", "..."} & {word[-3:] for word in text.partition("Commands:")[2].split()}, "no text is cut"


def test_version_and_module():
    done = subprocess.run([sys.executable, "-m", "msctx", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == __import__("msctx").__version__


def test_variables_of_the_environment_are_part_of_every_plan(command, monkeypatch, tmp_path):
    """explain, --dry-run, run and the recorded config.yaml agree: YAML < MSCTX_* < command line."""
    (tmp_path / "job.py").write_text("import torch\ndef main(): return {'on': torch.are_deterministic_algorithms_enabled()}\n")
    file = tmp_path / "job.yaml"
    file.write_text("context: {deterministic: OFF}\nexperiment: {entry: job.py:main}\n")
    monkeypatch.setenv("MSCTX_DETERMINISTIC", "ON")
    for argv in (["explain", str(file)], ["run", str(file), "--dry-run"]):
        (row,) = json.loads(command(*argv, "--json")[1])["options"]
        assert (row["value"], row["origin"]) == ("ON", "environment MSCTX_DETERMINISTIC")
    result = json.loads(command("run", str(file), "--out", str(tmp_path / "a"), "--json")[1])
    assert result["on"] is True
    assert "deterministic: 'ON'" in (tmp_path / "a" / "config.yaml").read_text()
    (row,) = json.loads(command("explain", str(file), "deterministic=OFF", "--json")[1])["options"]
    assert (row["value"], row["origin"]) == ("OFF", "command line")
    monkeypatch.setenv("MSCTX_DETERMINISM", "ON")
    code, _, err = command("explain", str(file))
    assert code == 2
    assert "did you mean deterministic?" in err


def test_json_stays_json_when_the_entry_prints(command, tmp_path):
    (tmp_path / "job.py").write_text("def main(): print('hello'); return {1: 2}\n")
    (tmp_path / "job.yaml").write_text("experiment: {entry: job.py:main}\n")
    code, out, err = command("run", str(tmp_path / "job.yaml"), "--out", str(tmp_path / "a"), "--json")
    assert (code, json.loads(out)["1"]) == (0, 2)
    assert "hello" in err
    assert command("run", str(tmp_path / "job.yaml"), "--out", str(tmp_path / "b"))[0] == 0


@pytest.mark.full
def test_output_that_cannot_be_written():
    for command in (f"{sys.executable} -m msctx state > /dev/full", f"{sys.executable} -m msctx explain seed=1 >&-"):
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
        assert "Traceback" not in done.stderr, done.stderr
        assert ("error: the output cannot be written: No space left" in done.stderr) == ("/dev/full" in command)


def test_a_file_that_fails_is_named(command, monkeypatch):
    """It is not the output."""

    def fail(**given):
        raise PermissionError(13, "Permission denied", "/data/x.bin")

    monkeypatch.setattr(cli, "app", fail)
    assert command("state") == (3, "", "error: /data/x.bin  Permission denied\n")
    code, out, _ = command("state", "--json")
    assert (code, json.loads(out)["message"]) == (3, "/data/x.bin  Permission denied")


@pytest.mark.full
def test_warnings_are_one_line_and_name_no_line_of_ours():
    command = [sys.executable, "-m", "msctx", "state", REFUSED]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"warning: {REFUSED.partition('=')[0]}=True on cpu: refused: torch 2.13 ")
    done = subprocess.run([sys.executable, "-W", "error", *command[1:]], capture_output=True, text=True)
    assert (done.returncode, "Traceback" in done.stderr) == (7, False)


@pytest.mark.parametrize("device", ["cpu", "cuda", "ascend"])
def test_explain_all_has_a_row_for_each_path(command, device):
    code, out, _ = command("explain", "--all", "--device", device, "--json")
    rows = {row["path"]: row for row in json.loads(out)}
    assert (code, len(rows)) == (0, 146)
    assert rows["deterministic"]["status"] == ("approximated" if device == "ascend" else "honoured")
    assert "torch.deterministic" in rows["deterministic"]["switches"]
    assert rows["deterministic"]["aliases"] == ["session.deterministic", "set_deterministic"]


def test_options_lists_them_all(command):
    code, out, _ = command("options", "--json")
    found = json.loads(out)
    assert code == 0
    assert {"deterministic", "conv_fprop_algo", "seed", "session.enable_dump"} <= {o["name"] for o in found}
    assert len({path for o in found for path in o["paths"]}) == 146 - 4
    code, out, _ = command("options")
    assert len(out.splitlines()) >= len(found)


@pytest.mark.parametrize("name", ["conv_fprop_algo", "device_context.gpu.op_tuning.conv_fprop_algo"])
def test_options_of_one_by_any_of_its_names(command, name):
    code, out, _ = command("options", name)
    assert code == 0
    for expected in ("winograd_nonfused", "implicit_precomp_gemm (precomp_gemm)", "honoured", "also written", "cpu_config"):
        assert expected in out
    code, out, _ = command("options", name, "--json")
    page = json.loads(out)
    assert page["name"] == "conv_fprop_algo"
    fft = page["values"][6]
    assert (fft["value"], set(fft["status"])) == ("fft", {"cpu", "cuda", "ascend"})
    assert "Fourier" in fft["means"]


def test_options_shows_interactions_and_cann_keys(command):
    _, out, _ = command("options", "precision_mode_v2")
    assert "precision_mode and precision_mode_v2: they exclude each other" in out
    _, out, _ = command("options", "op_precision_mode")
    assert "op_precision_mode wins over op_select_implmode" in out
    assert "[ByOpType]" in out, "a sample of the file"
    assert json.loads(command("options", "ge.exec.precision_mode", "--json")[1])["name"] == "precision_mode"


def test_options_are_found_by_words_of_their_help_and_values(command):
    for word, name in (("denormal", "flush_denormal"), ("Winograd", "conv_fprop_algo"), ("launch", "pynative_synchronize")):
        assert name in [row["name"] for row in json.loads(command("options", word, "--json")[1])]


def test_options_of_a_group(command):
    code, out, _ = command("options", "gpu_config", "--json")
    assert code == 0
    algorithms = ["conv_fprop_algo", "conv_dgrad_algo", "conv_wgrad_algo", "matmul_algo"]
    assert [o["name"] for o in json.loads(out)] == [*algorithms, "conv_allow_tf32", "matmul_allow_tf32"]


@pytest.mark.parametrize(("name", "hint"), [("explain", 0), ("run", 1), ("verify", 1)])
def test_wrong_usage_is_reported_as_json_too(command, name, hint):
    code, out, err = command(name, "--bogus", "--json")
    assert (code, json.loads(out)["exit_code"]) == (2, 2)
    assert "No such option" in err
    assert err.count("own arguments follow --") == hint


@pytest.mark.full
@pytest.mark.parametrize("command", ["state", "options --json", "explain --all --device cpu --json", "schema"])
def test_nobody_need_read_to_the_end(command):
    code = f"{sys.executable} -m msctx {command} | head -1; exit ${{PIPESTATUS[0]}}"
    found = subprocess.run(["bash", "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert (found.returncode, found.stderr) == (0, "")


@pytest.mark.full
def test_an_example_can_be_typed_as_it_stands(command):
    _, out, _ = command("options", "--json")
    for option in json.loads(out):
        text = option["example"]
        if option["file"] or isinstance(text, dict):
            continue
        word = f"{option['name']}={json.dumps(text) if isinstance(text, bool) else text}"
        code, _, err = command("explain", word, "--device", "cpu")
        assert code == 0, (word, err)


def test_explain_all_shows_what_was_set_though_it_is_overridden(command):
    _, out, _ = command(
        "explain", "--all", "--device", "cpu", "--json", "enable_graph_kernel=true", "graph_kernel_flags.opt_level=0"
    )
    row = next(r for r in json.loads(out) if r["path"] == "enable_graph_kernel")
    assert (row["value"], row["status"]) == (True, "inert")
    assert row["reason"].startswith("overridden by graph_kernel_flags.opt_level=0")


def test_explain_reports_that_strict_would_refuse(command):
    _, out, _ = command("explain", "strict=true", REFUSED)
    assert "strict=True: entering this would be refused" in out
    assert f"1 of 2 options take effect (1 honoured); not: {REFUSED.partition('=')[0]}" in out
