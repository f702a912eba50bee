"""msctx verify from the command line: faults that are planted in a training are named at their place."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

FILE = Path(__file__).with_name("planted.py")
SOURCE = FILE.read_text(encoding="utf-8").splitlines()


def line(text: str) -> str:
    return f"planted.py:{next(number for number, one in enumerate(SOURCE, 1) if text in one)}"


Command = Callable[..., tuple[int, str, str]]


def run(command: Command, *words: str, entry: str = "train") -> tuple[int, str, str]:
    return command("verify", f"{FILE}:{entry}", *words)


def found(command: Command, *words: str, code: int | None = 1, entry: str = "train") -> dict[str, Any]:
    ended, out, err = run(command, *words, "--json", entry=entry)
    assert code in (ended, None), err + out
    return dict(json.loads(out))


@pytest.mark.full
def test_equal_runs(command):
    code, out, err = run(command)
    assert (code, err) == (0, "")
    assert out.startswith("equal: first run and second run agree in 2 steps, ")
    result = found(command, "--against", "memory_offload=ON", code=0)
    assert any("memory_offload='ON' on cpu: refused" in note for note in result["notes"])


@pytest.mark.full
def test_the_first_operator_that_differs_is_named(command):
    result = found(command, "args.fault=of_process", "args.step=3", "args.steps=5")
    finding = result["finding"]
    where = {"kind": "operator", "operator": "planted::of_process", "module": "body.1", "direction": "forward", "step": 3}
    assert finding | where == finding
    assert finding["source"] == line("faults.get(self.fault")
    assert finding["values"]["output 0"].startswith("80 / 80 (100.0%) elements, by ")
    assert (result["steps"], result["operators"] > 60) == (3, True)
    assert "its input tensors agree and its outputs differ" in result["sentence"]
    assert found(command, "args.fault=of_process", "args.step=3", "args.steps=5", "--steps", "3", code=0)["steps"] == 3


FAULTS = {
    "scatter": ("operator", "planted::scatter", "body.1", "forward"),
    "dropout": ("random", "aten::bernoulli_", "body.2", "forward"),
    "generator": ("generator", "aten::uniform_", "", "forward"),
    "parameter": ("input", "aten::addmm", "head", "forward"),
    "backward": ("operator", "planted::of_process", "body.1", "backward"),
    "optimizer": ("input", "aten::add_", "", "optimizer"),
    "data": ("input", "aten::addmm", "first", "forward"),
}


@pytest.mark.full
@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_named(fault, command):
    finding = found(command, f"args.fault={fault}")["finding"]
    assert (finding["kind"], finding["operator"], finding["module"], finding["direction"]) == FAULTS[fault]
    if fault == "generator":
        assert finding["values"]["output 0"].startswith("1 / 1 (100.0%) elements, by 0.")
    if fault == "backward":
        assert (finding["node"], finding["source"]) == ("DoubledBackward", line("return of_process(gradient)"))
        assert finding["forward"] == line("faults.get(self.fault")
    if fault == "optimizer":
        assert (finding["inputs"], finding["values"].keys()) == (["alpha"], {"output 0", "alpha"})
        assert finding["source"] == line("optimizer.step()")


@pytest.mark.full
def test_an_operator_that_depends_on_threads(command):
    result = found(command, "args.fault=of_threads", "--against", "threads:3")
    assert (result["finding"]["operator"], result["names"]) == ("planted::of_threads", ["threads: 1", "threads: 3"])


@pytest.mark.full
@pytest.mark.parametrize("against", ["threads:2", "conv_fprop_algo=fft"])
def test_a_program_that_sets_what_was_to_differ(against, command):
    """In all operators, which is an error, or in some."""
    option, had = {"t": ("runtime_num_threads", "torch.num_threads=2"), "c": ("conv_fprop_algo", "native.convolution.cpu=")}[
        against[0]
    ]
    code, out, err = run(command, "--against", against, entry="guarded")
    assert (code, out) == (4, "")
    assert f"nothing was compared; {option}: all operators had {had}" in err
    (note,) = found(command, "args.before=true", "--against", against, code=0, entry="guarded")["notes"]
    assert note.startswith(f"{option}: some operators had {had}")


@pytest.mark.full
def test_what_did_nothing_or_was_set_by_the_program_beside_what_was_apart(command):
    code, out, err = run(command, "deterministic=ON", "--against", "matmul_algo_rules=nosuch.*: strict")
    assert (code, out) == (4, "")
    assert "nothing was compared; matmul_algo_rules: no product matched nosuch.*" in err
    against = ("--against", "runtime_num_threads=2", "--against", "memory_optimize_level=O1")
    assert run(command, *against, entry="guarded")[0] == 4
    notes = found(command, "--against", "runtime_num_threads=2", "--against", "seed=7", code=None, entry="guarded")["notes"]
    assert any(note.startswith("runtime_num_threads: all operators had torch.num_threads=2") for note in notes)


@pytest.mark.full
def test_runs_that_diverge(command):
    for words, text, step in (
        ("args.extra=true args.step=1", "args.extra=true args.step=1 calls aten::sigmoid in module (none)", 1),
        ("args.fails=true", "args.fails=true fails: ValueError: the data are gone", 0),
        ("args.steps=1", "args.steps=1 ends", 1),
    ):
        finding = found(command, *(part for word in words.split() for part in ("--against", word)))["finding"]
        assert (finding["kind"], finding["step"], text in finding["reason"]) == ("diverged", step, True)


@pytest.mark.full
def test_an_entry_that_raises_in_both_runs(command, tmp_path):
    code, _, err = run(command, "args.fails=true")
    assert (code, "the data are gone" in err) == (5, True)
    code, _, err = run(command, "args.code=3")
    assert (code, err.splitlines()[-1]) == (5, "error: the entry ended itself with 3")
    (tmp_path / "job.py").write_text("import sys; print(sys.argv[1:], file=sys.stderr); sys.exit(2)")
    _, _, err = command("verify", tmp_path / "job.py", "--", "--lr", "1")
    assert err.splitlines()[-2:] == ["error: the entry ended itself with 2", "['--lr', '1']"]


@pytest.mark.full
@pytest.mark.parametrize("entry", ["recurrent", "transformed"])
@pytest.mark.parametrize("against", ["run", "compiled"])
def test_programs_that_are_unusual(entry, against, command):
    assert found(command, "--against", against, code=0, entry=entry)["steps"] == 2


@pytest.mark.full
def test_the_compiler_runs_no_operators_of_the_program(command, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    assert found(command, "args.compiles=true", code=0)["steps"] == 2


@pytest.mark.full
@pytest.mark.parametrize(("fault", "place"), [("forward", ("Tanh", "body.0")), ("backward", ("Linear", "first"))])
def test_a_module_that_is_compiled_wrongly_is_named(fault, place, command):
    finding = found(command, f"args.fault={fault}", "--against", "compiled", entry="miscompiled")["finding"]
    assert (finding["kind"], finding["operator"], finding["module"]) == ("compiled", *place)
    assert all(name.startswith("gradient") for name in finding["values"]) is (fault == "backward")


@pytest.mark.full
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_code_that_is_compiled_well(dtype, command):
    result = found(command, f"args.dtype={dtype}", "--against", "compiled", code=0, entry="miscompiled")
    assert (result["steps"], result["operators"], result["unit"]) == (2, 2, "calls of modules")


def test_options_before_the_file(command):
    _, _, err = command("verify", "seed=0", f"{FILE}:train")
    assert "seed=0  no such file, and no shipped experiment of that name; options follow the file" in err


def test_torchrun_is_refused(command, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    code, _, err = run(command)
    assert (code, "without torchrun" in err) == (2, True)


@pytest.mark.full
def test_an_entry_that_runs_no_operator_is_not_equal(command):
    code, out, err = run(command, entry="nothing")
    assert (code, out) == (4, "")
    assert "nothing was compared; the entry's own process had no operators" in err
