"""msctx compare and msctx capture as a user types them."""

import json
from typing import Any

import pytest
from comparisons import WORKLOAD, model_file

from msctx.compare import comparison

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def command(command, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.yaml").write_text(WORKLOAD)
    return command


FAST = ("--seconds", "0.001")
AXIS = ("--axis", "deterministic=OFF,ON")


def test_all_files_are_written(command, tmp_path):
    words = ("compare", "one.yaml", *AXIS, *FAST, "--out", "compared")
    (tmp_path / "one.yaml").write_text("workload: {layers: [{name: product, a: 8x16, b: 16x4}]}\n")
    code, out, _ = command(*words)
    assert code == 0
    assert "product forward" in out
    found = json.loads((tmp_path / "compared" / "result.json").read_text())
    assert [row["name"] for row in found["rows"]] == ["product"]
    assert (tmp_path / "compared" / "result.csv").read_text().count("\n") == 3
    assert "<h1>one</h1>" in (tmp_path / "compared" / "report.html").read_text()
    code, _, err = command(*words)
    assert (code, "a record never overwrites another" in err) == (3, True)
    code, _, err = command("compare", "one.yaml", *AXIS, *FAST, "--fail-below", "50")
    assert (code, "below 50: deterministic=OFF: " in err) == (1, True)


def test_capture_and_compare_what_was_captured(command, tmp_path):
    entry = f"{model_file(tmp_path)}:make"
    code, out, _ = command("capture", entry)
    assert code == 0
    (tmp_path / "mine.yaml").write_text(out)
    assert json.loads(command("capture", entry, "--json")[1])["layers"] == 3
    code, out, _ = command("compare", "mine.yaml", *AXIS, *FAST, "--json")
    assert [row["count"] for row in json.loads(out)["rows"]] == [1, 1, 1, 2, 2, 2, 1]


def test_ctrl_c_writes_what_there_is(command, tmp_path, monkeypatch):
    real = comparison._Measuring.row

    def row(self: Any) -> Any:
        if self._case.name == "<b>second</b>":
            raise KeyboardInterrupt
        return real(self)

    monkeypatch.setattr(comparison._Measuring, "row", row)
    code, out, err = command("compare", "small.yaml", *AXIS, *FAST, "--out", "x[/b]y")
    assert code == 130
    assert "partial: interrupted" in out
    assert "x[/b]y/report.html" in out.replace("\n", "")
    assert "marked as partial" in err
    found = json.loads((tmp_path / "x[/b]y" / "result.json").read_text())
    assert (found["partial"], len(found["rows"])) == ("interrupted", 3)


def test_a_models_mistakes(command, tmp_path):
    code, _, err = command("compare", f"{model_file(tmp_path)}:raising")
    assert (code, "out of paper" in err) == (5, True)
    code, _, err = command("capture", f"{model_file(tmp_path)}:nothing")
    assert (code, "it returns int" in err) == (4, True)
