"""The list of implementations that is written to start from is one that op_precision_mode takes."""

from __future__ import annotations

import json

import pytest

import msctx
from msctx.cli import main
from msctx.options.precision_rules import CHOOSABLE, precision_of, text_of


def run(*words):
    with pytest.raises(SystemExit) as end:
        main(list(words))
    return end.value.code


def test_the_list_is_what_op_select_implmode_means(tmp_path, capsys):
    file = tmp_path / "mine.ini"
    assert not run("options", "op_select_implmode", "--write-ini", str(file))
    assert "wrote" in capsys.readouterr().out
    content = msctx.context(op_precision_mode=str(file)).settings.get("op_precision_mode").content
    assert set(content["ByOpType"]) == set(CHOOSABLE)
    mine = precision_of(text_of({"op_precision_mode": content})).rules
    theirs = precision_of(text_of({"op_select_implmode": "high_precision"})).rules
    assert {op for op, rule in mine.items() if rule.float16} == set(theirs)


def test_a_line_that_is_changed_alters_that_operator_alone(tmp_path):
    file, other = tmp_path / "mine.ini", tmp_path / "other.ini"
    run("options", "op_select_implmode", "--write-ini", str(file), "--json")
    other.write_text(file.read_text().replace("\nsoftmax=high_precision", "\nsoftmax=high_performance"))
    rules = []
    for path in (file, other):
        content = msctx.context(op_precision_mode=str(path)).settings.get("op_precision_mode").content
        rules.append({op: rule.float16 for op, rule in precision_of(text_of({"op_precision_mode": content})).rules.items()})
    assert {op for op in rules[0] if rules[0][op] != rules[1][op]} == {"softmax"}


def test_a_file_that_is_there_is_left_alone(tmp_path, capsys):
    file = tmp_path / "mine.ini"
    file.write_text("mine")
    assert run("options", "op_select_implmode", "--write-ini", str(file)) == 3
    assert "exists already" in capsys.readouterr().err
    assert file.read_text() == "mine"


def test_as_json(tmp_path, capsys):
    file = tmp_path / "mine.ini"
    assert not run("options", "op_precision_mode", "--write-ini", str(file), "--json")
    assert json.loads(capsys.readouterr().out) == {"written": [str(file)]}


@pytest.mark.parametrize("name", ["deterministic", "no_such_option"])
def test_other_options_have_none(tmp_path, name, capsys):
    assert run("options", name, "--write-ini", str(tmp_path / "a.ini")) == 2
    assert not list(tmp_path.iterdir())
    assert "Traceback" not in capsys.readouterr().err
