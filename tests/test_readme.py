"""The README is true: its Python runs, its commands exist, and the output it shows is what the command prints."""

from __future__ import annotations

import io
import os
import re
import shlex
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from msctx.cli import app, main

README = Path(__file__).parents[1] / "README.md"
BEGIN, END = "<!-- explain: written by a test, see tests/test_readme.py -->", "<!-- /explain -->"


def blocks(language: str) -> list[str]:
    """The code blocks marked as *language*; the fences are taken in order, an opening and a closing one each."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", README.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    return [text for name, text in found if name == language]


@pytest.mark.parametrize("block", blocks("python"))
def test_python_runs(block):
    exec(compile(block, "README.md", "exec"), {})


def test_commands_exist():
    names = {command.callback.__name__ for command in app.registered_commands}
    used = set(re.findall(r"^(?:\$ )?msctx (\w+)", "\n".join(blocks("")), re.MULTILINE))
    assert used
    assert used <= names


def test_dry_runs_of_the_commands_shown(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(README.parent)
    runs = [line.split("#")[0] for line in "\n".join(blocks("")).splitlines() if line.startswith("msctx run")]
    assert len(runs) >= 3
    for line in runs:
        with pytest.raises(SystemExit) as end:
            main([*shlex.split(line)[1:], "--dry-run"])
        assert not end.value.code, line


def test_the_explanation_shown_is_what_is_printed(monkeypatch):
    """With UPDATE_README=1 in the environment the README is written anew instead."""
    update = os.environ.get("UPDATE_README")
    monkeypatch.delenv("UPDATE_README", raising=False)
    command = next(line for line in "\n".join(blocks("")).splitlines() if line.startswith("$ msctx explain"))
    monkeypatch.setenv("COLUMNS", "128")
    out = io.StringIO()
    with redirect_stdout(out), pytest.raises(SystemExit):
        main(shlex.split(command)[2:])
    shown = "\n".join(line.rstrip() for line in out.getvalue().splitlines())
    text = README.read_text(encoding="utf-8")
    head, _, rest = text.partition(BEGIN)
    inside, _, tail = rest.partition(END)
    if update:
        README.write_text(f"{head}{BEGIN}\n```\n{shown}\n```\n{END}{tail}", encoding="utf-8")
    assert update or inside == f"\n```\n{shown}\n```\n"


def test_the_mistake_shown_is_what_is_printed(tmp_path, monkeypatch, capsys):
    block = next(b for b in blocks("") if b.startswith("error: x.yaml"))
    monkeypatch.chdir(tmp_path)
    Path("x.yaml").write_text("context:\n  determinstic: ON\n")
    with pytest.raises(SystemExit):
        main(["explain", "x.yaml"])
    assert capsys.readouterr().err == block
