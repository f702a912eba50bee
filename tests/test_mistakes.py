"""Typical mistakes and what msctx answers: a golden file that a person has read, message by message.

``UPDATE_GOLDEN=1 pytest tests/test_mistakes.py`` writes ``data/mistakes.txt`` anew; read the difference before you commit it.
A line of ``data/mistakes.jsonl`` is a title, the words after ``msctx``, and files with their content.
"""

import json
import os
import re
import shlex
from pathlib import Path

import pytest

import msctx
from msctx.cli import main

DATA = Path(__file__).parent / "data"
GOLDEN = DATA / "mistakes.txt"
MISTAKES = {title: rest for title, *rest in map(json.loads, (DATA / "mistakes.jsonl").read_text().splitlines())}
"""Title → a command, and the files beside it."""


def answer(command: str, files: dict[str, str], folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    for name, text in files.items():
        (folder / name).write_text(text)
    with pytest.raises(SystemExit) as end:
        main(shlex.split(command))
    told = capsys.readouterr()
    assert end.value.code, "a mistake ends with an exit code of its own"
    text = told.err.replace(str(folder), "/home/me")
    return f"$ msctx {command}\n{text.rstrip()}\n(exit {end.value.code})\n"


@pytest.mark.parametrize("title", MISTAKES)
def test_a_mistake_is_answered_as_it_was_read(
    title: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setattr("sys.argv", ["msctx"])
    before = msctx.get_context(), msctx.state()
    found = answer(*MISTAKES[title], tmp_path, capsys)
    assert (msctx.get_context(), msctx.state()) == before, "nothing was changed"
    assert "Traceback" not in found
    assert {path.name for path in tmp_path.rglob("*") if "__pycache__" not in str(path)} == {*MISTAKES[title][1]}, (
        "nothing was made"
    )
    golden = sections()
    if os.environ.get("UPDATE_GOLDEN"):
        golden[title] = found
        parts = [f"## {t}\n\n{golden[t]}" for t in MISTAKES if t in golden]
        GOLDEN.write_text("\n".join(parts))
    assert found == golden.get(title)


def sections() -> dict[str, str]:
    text = GOLDEN.read_text() if GOLDEN.exists() else ""
    parts = re.split(r"^## (.*)\n\n", text, flags=re.MULTILINE)[1:]
    return {title: part.rstrip("\n") + "\n" for title, part in zip(parts[::2], parts[1::2], strict=True)}


def test_the_golden_file_holds_these_mistakes_and_no_others() -> None:
    assert list(sections()) == list(MISTAKES)
