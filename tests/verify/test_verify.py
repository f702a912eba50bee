"""The same training twice: planted faults are named with their operator, module, direction, step and line."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from msctx.cli import main
from msctx.native import core

FILE = str(Path(__file__).with_name("planted.py"))
ENTRY = f"{FILE}:train"
SOURCE = Path(__file__).with_name("planted.py").read_text(encoding="utf-8").splitlines()


def line(part: str) -> str:
    """The place of the first line of the entry that has this text."""
    return f"planted.py:{next(number for number, text in enumerate(SOURCE, 1) if part in text)}"


def run(capsys: pytest.CaptureFixture[str], *words: str, entry: str = "train") -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as end:
        main(["verify", f"{FILE}:{entry}", *words])
    out, err = capsys.readouterr()
    return int(end.value.code or 0), out, err


def found(capsys: pytest.CaptureFixture[str], *words: str, code: int = 1, entry: str = "train") -> dict[str, Any]:
    ended, out, err = run(capsys, *words, "--json", entry=entry)
    assert ended == code, err + out
    return dict(json.loads(out))


@pytest.mark.full
def test_an_operator_that_returns_other_bits_is_named(capsys: Any) -> None:
    result = found(capsys, "args.fault=of_process", "args.step=1")
    finding = result["finding"]
    where = {"operator": "planted::of_process", "module": "body.1", "direction": "forward", "step": 1}
    assert finding | where == finding
    assert finding["kind"] == "operator"
    assert finding["source"] == line("faults.get(self.fault")
    (values,) = finding["values"]
    assert values["differing"] > 0
    assert values["max_difference"] > 0
    assert (result["steps"], result["operators"] > 20) == (1, True)
    assert "its inputs agree and its outputs differ" in result["sentence"]


@pytest.mark.full
def test_operators_that_agree_in_the_step_that_differs_count(capsys: Any) -> None:
    code, out, err = run(capsys, "args.fault=of_process")
    assert code == 1, err
    assert re.search(r"agree +0 steps and [1-9]\d* operators before it", out), out


@pytest.mark.full
def test_runs_that_end_themselves_alike_are_no_difference(capsys: Any) -> None:
    """Each in a folder of its own."""
    code, _, err = run(capsys, "args.code=3", "args.step=1")
    assert code == 5, err
    assert err.splitlines()[-1] == "the entry ended itself with 3"


@pytest.mark.full
def test_equal_runs_make_a_certificate_that_a_run_is_held_against(capsys: Any, tmp_path: Path) -> None:
    file, page = str(tmp_path / "run.cert.json"), tmp_path / "page.html"
    code, out, _ = run(capsys, "--save", file, "--html", str(page))
    assert code == 0
    assert out.startswith("equal: first run and second run agree in 2 steps, ")
    assert "equal: first run" in page.read_text()
    certificate = json.loads(Path(file).read_text())
    assert {"torch", "msctx"} <= certificate["versions"].keys()
    result = found(capsys, "args.fault=nan", "args.poison=true", "args.step=1", "--against", file)
    assert result["finding"]["kind"] == "module"
    assert (result["finding"]["module"], result["finding"]["step"]) == ("body.1", 1)
    assert {"args.fault", "args.poison", "args.step"} == result["settings"].keys()
    code, out, _ = run(capsys, "args.steps=1", "seed=1", "--against", file)
    first, second, verdict, *_ = out.splitlines()
    assert (code, first.split(), second.split()) == (
        1,
        ["differs:", "args.steps", "given", "here", "alone"],
        ["differs:", "seed", "not", "set", "there,", "1", "here"],
    )
    assert verdict.startswith("the certificate and this run differ: ")
    code, _, err = run(capsys, "--save", file)
    assert (code, "exists already" in err) == (3, True)


FAULTS = {
    "scatter": ("operator", "planted::scatter", "body.1", "forward"),
    "dropout": ("random", "aten::bernoulli_", "body.2", "forward"),
    "parameter": ("parameter", "parameter", "head", "forward"),
    "backward": ("operator", "planted::of_process", "body.1", "backward"),
    "root": ("operator", "planted::of_process", "Net (root)", "forward"),
    "optimizer": ("operator", "aten::add_", "", "optimizer"),
    "data": ("input", "aten::addmm", "first", "forward"),
}


@pytest.mark.full
@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_named(fault: str, capsys: Any) -> None:
    finding = found(capsys, f"args.fault={fault}")["finding"]
    assert (finding["kind"], finding["operator"], finding["module"], finding["direction"]) == FAULTS[fault]
    if fault == "backward":
        assert finding["node"] == "DoubledBackward"
    if fault == "optimizer":
        assert finding["arguments"].keys() == {"alpha"}
        assert finding["source"] == line("optimizer.step()")


@pytest.mark.full
def test_a_dump_beside_it_has_what_it_asks_for_and_so_has_the_report(capsys: Any, tmp_path: Path) -> None:
    dump = {"enable_dump": "true", "dump_path": tmp_path, "dump_layer": "tanh", "dump_data": "stats"}
    words = [f"session.{name}={value}" for name, value in dump.items()]
    finding = found(capsys, "args.fault=of_process", "args.step=1", *words)["finding"]
    assert finding["operator"] == "planted::of_process"
    assert [one["tensor"] for one in finding["values"]] == ["output float32[5, 16]"]
    assert finding["values"][0]["differing"] > 0
    tables = [*tmp_path.rglob("statistic.csv")]
    assert tables
    assert {text.split(",")[0] for table in tables for text in table.read_text().splitlines()[1:]} == {"tanh", "tanh_backward"}


@pytest.mark.full
def test_programs_that_are_transformed_and_traced(capsys: Any) -> None:
    result = found(capsys, code=0, entry="transformed")
    assert (result["steps"], result["finding"], result["notes"]) == (2, None, [])
    finding = found(capsys, "args.fault=number", entry="transformed")["finding"]
    where = {"kind": "operator", "operator": "aten::add", "module": "body.1", "direction": "forward", "step": 1}
    assert finding | where == finding
    assert finding["source"] == line("alpha=os.getpid()")


@pytest.mark.full
def test_a_sum_that_depends_on_threads(capsys: Any) -> None:
    finding = found(capsys, "args.fault=of_threads", "--against", "threads:3")["finding"]
    assert (finding["operator"], finding["module"]) == ("planted::of_threads", "body.1")


@pytest.mark.full
def test_an_operator_that_depends_on_the_instruction_set(capsys: Any) -> None:
    if core.load().isa() == "generic":
        pytest.skip("this machine has one instruction set alone")
    result = found(capsys, "--against", "isa", entry="instruction_sets")
    finding = result["finding"]
    where = {"kind": "operator", "operator": "planted::of_isa", "module": "1.1", "direction": "forward", "step": 1}
    assert finding | where == finding
    assert result["names"] == ["instruction set generic", "best instruction set"]


@pytest.mark.full
def test_nan_in_one_run(capsys: Any) -> None:
    finding = found(capsys, "args.fault=nan", "--against", "args.poison=true")["finding"]
    assert (finding["kind"], finding["operator"], finding["module"]) == ("operator", "planted::nan", "body.1")
    assert finding["values"][0]["first"]["nan"] == 0 < finding["values"][0]["second"]["nan"]


@pytest.mark.full
def test_a_fault_late_in_the_run(capsys: Any) -> None:
    result = found(capsys, "args.fault=of_process", "args.step=7", "args.steps=10")
    assert (result["steps"], result["finding"]["step"], result["finding"]["module"]) == (7, 7, "body.1")
    assert found(capsys, "args.fault=of_process", "args.step=7", "args.steps=10", "--steps", "7", code=0)["steps"] == 7


@pytest.mark.full
def test_an_operator_that_one_run_alone_has(capsys: Any) -> None:
    finding = found(capsys, "args.step=1", "--against", "args.extra=true")["finding"]
    assert (finding["kind"], finding["operator"], finding["step"]) == ("parted", "aten::sigmoid", 1)
    assert finding["only_in"] == "args.extra=true"
    assert finding["source"] == line("loss.sigmoid()")


@pytest.mark.full
def test_a_backward_operator_is_shown_with_its_forward(capsys: Any) -> None:
    finding = found(capsys, "args.fault=backward")["finding"]
    assert finding["source"] == line("return of_process(gradient)")


@pytest.mark.full
def test_runs_that_end_otherwise(capsys: Any) -> None:
    finding = found(capsys, "--against", "args.fails=true")["finding"]
    assert (finding["kind"], "ValueError: the data are gone" in finding["reason"]) == ("ended", True)
    finding = found(capsys, "--against", "args.steps=1")["finding"]
    assert finding["kind"] == "ended"
    code, _, err = run(capsys, "args.fails=true")
    assert code == 5
    assert "the data are gone" in err


@pytest.mark.full
def test_what_a_compiler_runs_while_it_compiles_does_not_count(
    capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first run fills its cache, the second one reads it."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    assert found(capsys, "args.compiles=true", code=0)["steps"] == 2


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("--against", "thread"), 2, "did you mean threads?"),
        (("--against", "nothing.json"), 3, "nothing.json"),
        (("--against", "determinstic=ON"), 2, "did you mean deterministic?"),
        (("--against", "run", "--against", "isa"), 2, "only if all are options"),
    ],
)
def test_mistakes_are_reported_before_anything_runs(words: tuple[str, ...], code: int, text: str, capsys: Any) -> None:
    ended, out, err = run(capsys, *words)
    assert (ended, out) == (code, "")
    assert text in err
    assert "Traceback" not in err


def test_torchrun_is_refused(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    code, _, err = run(capsys)
    assert (code, "--against ranks:N" in err) == (2, True)


@pytest.mark.parametrize("what", ["ranks", "compiled"])
def test_no_certificate_of_ranks_or_compiled_code(what: str, capsys: Any, tmp_path: Path) -> None:
    code, _, err = run(capsys, "--against", what, "--save", str(tmp_path / "run.cert.json"))
    assert (code, f"no certificate is made against {what}" in err) == (2, True)


RANKS: dict[str, tuple[str, str, str, int]] = {
    "weight": ("parameter", "head", "optimizer", 1),
    "gradient": ("gradient", "head", "optimizer", 1),
    "unreduced": ("gradient", "first", "optimizer", 1),
    "rate": ("operator", "", "optimizer", 1),
    "alone": ("parameter", "first", "forward", 0),
}


@pytest.mark.full
@pytest.mark.parametrize("fault", RANKS)
def test_a_rank_that_goes_its_own_way(fault: str, capsys: Any) -> None:
    result = found(capsys, f"args.fault={fault}", "--against", "ranks:3" if fault == "weight" else "ranks", entry="replicas")
    finding = result["finding"]
    assert (finding["kind"], finding["module"], finding["direction"], finding["step"]) == RANKS[fault]
    assert result["names"] == ["rank 0", "rank 2" if fault == "weight" else "rank 1"]
    if finding["kind"] != "operator":
        assert finding["values"][0]["differing"] > 0


@pytest.mark.full
def test_ranks_that_agree(capsys: Any) -> None:
    result = found(capsys, "--against", "ranks", code=0, entry="replicas")
    assert (result["steps"], result["operators"] > 20) == (3, True)


@pytest.mark.full
@pytest.mark.parametrize("what", ["compiled", "ranks"])
def test_runs_of_which_nothing_is_compared_are_not_equal(what: str, capsys: Any) -> None:
    """Dynamo leaves an LSTM alone; ranks without an optimizer have nothing that must agree."""
    code, out, err = run(capsys, "--against", what, entry="recurrent" if what == "compiled" else "idle")
    assert (code, out) == (4, "")
    assert "nothing was compared" in err


def test_an_entry_that_runs_no_operator_is_not_equal(tmp_path: Path, capsys: Any) -> None:
    code, out, err = run(capsys, "--save", str(tmp_path / "run.cert.json"), entry="nothing")
    assert (code, out) == (4, "")
    assert "nothing was compared; no operator of PyTorch ran in the entry's own process" in " ".join(err.split())
    assert not [*tmp_path.iterdir()], "no certificate of nothing"


@pytest.mark.full
def test_a_workspace_is_no_result(capsys: Any) -> None:
    assert found(capsys, code=0, entry="recurrent")["steps"] == 2


@pytest.mark.full
def test_the_rank_that_died_is_named(capsys: Any) -> None:
    finding = found(capsys, "args.fault=dies", "--against", "ranks", entry="replicas")["finding"]
    assert finding["reason"] == "rank 1 failed: the process ended by SIGKILL"


@pytest.mark.full
@pytest.mark.parametrize(("fault", "reason"), [("stops", "rank 1 ended, and rank 0 goes on"), ("raises", "rank 1 failed")])
def test_a_rank_that_ends_early(fault: str, reason: str, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("msctx.verify.verify.GRACE", 3)
    finding = found(capsys, f"args.fault={fault}", "--against", "ranks", entry="replicas")["finding"]
    assert (finding["kind"], reason in finding["reason"]) == ("ended", True)


@pytest.mark.full
@pytest.mark.parametrize(
    ("fault", "place"), [("forward", ("tanh", "body.0", "forward")), ("backward", ("linear", "first", "backward"))]
)
def test_what_is_compiled_wrongly_is_named(fault: str, place: tuple[str, str, str], capsys: Any) -> None:
    result = found(capsys, f"args.fault={fault}", "--against", "compiled", entry="miscompiled")
    finding = result["finding"]
    assert (finding["kind"], finding["operator"], finding["module"], finding["direction"]) == ("compiled", *place)
    assert "the compiled result is inaccurate" in result["sentence"]


@pytest.mark.full
def test_code_that_is_compiled_well(capsys: Any) -> None:
    result = found(capsys, "--against", "compiled", code=0, entry="miscompiled")
    assert (result["steps"], result["operators"], result["unit"]) == (2, 2, "calls of compiled graphs")
    assert any(note.startswith("nearer to float64: eager in") for note in result["notes"])


@pytest.mark.full
def test_the_candidates_for_deterministic_except(capsys: Any) -> None:
    result = found(capsys, "--against", "deterministic", code=0, entry="deterministic")
    without, slower, *_ = result["candidates"]  # others only where the machine is disturbed
    assert without == {"operator": "max_unpool2d", "module": ""}
    assert slower["operator"] == "slow_if_deterministic"
    assert slower["on_us"] > 20_000 > slower["off_us"]
    slower, *_ = found(capsys, "args.unpools=false", "--against", "deterministic", code=0, entry="deterministic")["candidates"]
    assert slower["operator"] == "slow_if_deterministic"


@pytest.mark.full
def test_mistakes_that_the_run_finds(capsys: Any) -> None:
    code, _, err = run(capsys, "args.fult=x")
    assert (code, "did you mean fault?" in err) == (4, True)


@pytest.mark.full
def test_ctrl_c_ends_both_runs() -> None:
    command = [sys.executable, "-m", "msctx", "verify", ENTRY, "args.steps=100000000"]
    mark = {"TEST_OF_CTRL_C": str(os.getpid())}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **mark}
    ) as process:
        time.sleep(8)
        assert len(having(mark)) > 1
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (130, "")
    assert "interrupted" in err
    assert having(mark) == []


def having(mark: dict[str, str]) -> list[str]:
    """The processes that have these variables."""
    found, (text,) = [], [f"{name}={value}\0".encode() for name, value in mark.items()]
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            found += [path.parent.name] if text in path.read_bytes() else []
    return found
