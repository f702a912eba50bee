"""msctx compare and msctx capture as a user types them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from comparisons import WORKLOAD, model_file
from jsonschema import Draft202012Validator

from msctx.cli import main
from msctx.cli.compare import _bar
from msctx.compare.comparison import Runner
from msctx.compare.result import schema

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def msctx(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.yaml").write_text(WORKLOAD)

    def run(*argv: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            main(list(argv))
        out, err = capsys.readouterr()
        assert "/msctx/compare" not in err, "no traceback of ours"
        return int(end.value.code or 0), out, err

    return run


FAST = ("--seconds", "0.001")
AXIS = ("--axis", "deterministic=OFF,ON")


def test_all_files_are_written(msctx: Any, tmp_path: Path) -> None:
    code, out, _ = msctx("compare", "matmul", "--workload", "small.yaml", *AXIS, *FAST, "--out", "compared")
    assert code == 0
    assert "product forward" in out
    found = json.loads((tmp_path / "compared" / "result.json").read_text())
    Draft202012Validator(schema()).validate(found)
    assert found["costs"][0]["option"] == "deterministic"
    assert (tmp_path / "compared" / "result.csv").read_text().count("\n") == 3
    assert "<h1>small</h1>" in (tmp_path / "compared" / "report.html").read_text()
    code, _, err = msctx("compare", "matmul", "--workload", "small.yaml", *AXIS, *FAST, "--out", "compared")
    assert code == 3
    assert "a result never overwrites another" in err


def test_json_and_an_earlier_result(msctx: Any, tmp_path: Path) -> None:
    words = ("compare", "matmul", "--shape", "8x8x8", *AXIS, *FAST)
    code, out, _ = msctx(*words, "--json")
    found = json.loads(out)
    assert (code, found["subject"]) == (0, {"workload": "matmul"})
    for row in found["rows"]:
        for cell in row["cells"]:
            cell["ratio"] *= 1e6
    (tmp_path / "earlier.json").write_text(json.dumps(found))
    code, _, err = msctx(*words, "--baseline", "earlier.json", "--fail-below", "0.5")
    assert code == 1
    assert "below 0.5: 8x8x8 forward, deterministic=OFF: 0.00 of the earlier ratio" in err
    assert msctx(*words, "--fail-below", "0.001")[0] == 0


def test_a_model_from_its_function(msctx: Any, tmp_path: Path) -> None:
    code, out, _ = msctx("compare", f"{model_file(tmp_path)}:make", *AXIS, *FAST, "--json")
    assert code == 0
    assert [row["direction"] for row in json.loads(out)["rows"]] == ["inference", "training"]


def test_capture_and_compare_what_was_captured(msctx: Any, tmp_path: Path) -> None:
    entry = f"{model_file(tmp_path)}:make"
    code, out, _ = msctx("capture", entry, "--out", "mine.yaml")
    assert code == 0
    assert "3 kinds of layers, 4 in all; next: msctx compare mine.yaml" in out
    assert msctx("capture", entry)[1] == (tmp_path / "mine.yaml").read_text()
    assert json.loads(msctx("capture", entry, "--json")[1])["layers"] == 3
    code, _, err = msctx("capture", entry, "--out", "mine.yaml")
    assert (code, "exists already" in err) == (3, True)
    code, out, _ = msctx("compare", "mine.yaml", *AXIS, *FAST, "--json")
    assert [row["count"] for row in json.loads(out)["rows"]] == [1, 1, 1, 2, 2, 2, 1]


def test_ctrl_c_writes_what_there_is(msctx: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Runner.row

    def row(self: Any, case: Any) -> Any:
        if case.name == "<b>second</b>":
            raise KeyboardInterrupt
        return real(self, case)

    monkeypatch.setattr(Runner, "row", row)
    code, out, err = msctx("compare", "small.yaml", *AXIS, *FAST, "--out", "x[/b]y")
    assert code == 130
    assert "partial: interrupted" in out
    assert "x[/b]y/report.html" in out.replace("\n", "")
    assert "marked as partial" in err
    found = json.loads((tmp_path / "x[/b]y" / "result.json").read_text())
    Draft202012Validator(schema()).validate(found)
    assert (found["partial"], len(found["rows"])) == ("interrupted", 3)


def test_where_nothing_can_be_measured_that_is_a_failure(msctx: Any, tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_text("import torch\ndef make(): return torch.nn.Linear(3, 3), torch.ones(2, 5)\n")
    code, out, err = msctx("compare", "odd.py:make", *AXIS, *FAST)
    assert (code, "nothing could be measured" in err, "it cannot run" in out) == (1, True, True)


def test_the_bar_takes_any_name(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    with _bar() as watch:
        watch.begin(2)
        watch.row("a[/b]c")
        watch.end_row()
    assert "a[/b]c" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["resnet5"], 3, "did you mean resnet50"),
        (["conv"], 2, "NAME is a YAML file; convnext_t"),
        (["matmul"], 2, "--workload NAME or --shape MxKxN"),
        (["conf.yaml"], 3, "No such file"),
        ([""], 3, "cannot compare"),
        (["conv", "--workload", "vgg"], 2, "did you mean vgg16?"),
        (["matmul", "--shape", "8x8"], 2, "'8x8' is not the shape of a product"),
        (["vgg16", "--axis", "conv_fprop_algo=gem"], 2, "did you mean 'gemm'?"),
        (["vgg16", "--axis", "conv_algo=gemm"], 2, "is not an option"),
        (["vgg16", "--fail-below", "0"], 2, "is not a ratio"),
        (["vgg16", "--baseline", "nowhere.json"], 3, "No such file"),
        (["vgg16", "--out", "small.yaml"], 3, "cannot be made"),
        (["vgg16", "determinstic=ON"], 2, "did you mean deterministic?"),
        (["nowhere:make"], 4, "no module named 'nowhere'"),
        (["matmul", "--shape", "8x8x8", "--axis", "deterministic=ON,ON"], 2, "two choices are named 'deterministic=ON'"),
        (["vgg16", "--axis", "deterministic=ON", "--axis", "deterministic=OFF"], 2, "deterministic is named twice"),
        (["vgg16", "--axis", "runtime_num_threads=01"], 2, "write the number without the leading zero"),
        (["vgg16", "--axis", "deterministic=[]"], 2, "is not KEY=VALUE,VALUE"),
        (["matmul", "--shape", "1" * 5000 + "x1x1"], 2, "is not the shape of a product"),
        (["conv", "--workload", "transformer"], 2, "has no convolutions to compare"),
        (["small.py"], 3, "name the function that makes the model: small.py:FUNCTION"),
        (["vgg16", "args.n=3"], 2, "does not apply to a workload"),
        (["resnet50", "--shape", "8x8x8"], 2, "give one thing to compare, not workload and --shape"),
        (["vgg16", "--quick", "--seconds", "3"], 2, "--quick sets how long a row takes, too"),
        (["vgg16", "--workload", "resnet50"], 2, "vgg16 is a workload, too"),
        (["conv", "--workload", "vgg16", "--shape", "8x8x8"], 2, "is of a product of matrices"),
        (["vgg16", "--axis", "deterministic=ON", "--axis", "session.deterministic=0"], 2, "is named twice"),
        (["vgg16", "--axis", "args.n=3"], 2, "arguments are for msctx run --sweep"),
        (["vgg16", "--axis", "deterministic=ON,,OFF"], 2, "empty"),
        (["digits", "--seconds", "3"], 2, "--seconds: does not apply to an experiment"),
    ],
)
def test_mistakes(msctx: Any, words: list[str], code: int, told: str) -> None:
    found, _, err = msctx("compare", *words)
    assert (found, told in err) == (code, True), err


def test_a_models_mistakes(msctx: Any, tmp_path: Path) -> None:
    code, _, err = msctx("compare", f"{model_file(tmp_path)}:raising")
    assert (code, "out of paper" in err) == (5, True)
    code, _, err = msctx("capture", f"{model_file(tmp_path)}:nothing")
    assert (code, "it returns int" in err) == (4, True)
