"""The README is true: its Python runs, its commands exist, and the output it shows is what the command prints."""

from __future__ import annotations

import io
import os
import re
import shlex
from collections import Counter
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from msctx.cli import app, main
from msctx.effects.unbuilt import UNBUILT
from msctx.options import DEVICES, OPTIONS, Option
from msctx.options.operators import CLASSES
from msctx.options.precision_rules import DTYPES, LEAVE, MODES, V2, Rule
from msctx.plan import DONE
from msctx.reference import is_partial, on_device

README = Path(__file__).parents[1] / "README.md"
BEGIN, END = "<!-- explain: written by a test, see tests/test_readme.py -->", "<!-- /explain -->"
TABLE, END_TABLE = "<!-- options: written by a test, see tests/test_readme.py -->", "<!-- /options -->"
PRECISION, END_PRECISION = "<!-- precision: written by a test, see tests/test_readme.py -->", "<!-- /precision -->"
CELLS = {"honoured": "yes", "approximated": "roughly", "not_built": "later", "inert": "", "refused": "no"}


def blocks(language: str) -> list[str]:
    """The code blocks marked as *language*; the fences are taken in order, an opening and a closing one each."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", README.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    return [text for name, text in found if name == language]


@pytest.mark.parametrize("block", blocks("python"))
def test_python_runs(block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
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
    assert holds(BEGIN, f"\n```\n{shown}\n```\n", END, update)


def holds(begin: str, text: str, end: str, update: str | None) -> bool:
    """Whether the README has *text* between two marks; or it is written there."""
    readme = README.read_text(encoding="utf-8")
    head, _, rest = readme.partition(begin)
    inside, _, tail = rest.partition(end)
    if update:
        README.write_text(f"{head}{begin}{text}{end}{tail}", encoding="utf-8")
    return bool(update) or inside == text


def carried_out(option: Option) -> bool:
    return any(on_device(option, device).status in DONE for device in DEVICES)


def cell(option: Option, device: str) -> str:
    return "partly" if is_partial(option, device) else CELLS[on_device(option, device).status]


def test_the_options_shown_are_those_that_are_declared():
    """With UPDATE_README=1 in the environment the README is written anew instead."""
    lines = ["| option | what it does | CPU | NVIDIA | Ascend |", "|---|---|---|---|---|"]
    for option in sorted(filter(carried_out, OPTIONS.values()), key=lambda o: o.source == "msctx"):
        cells = " | ".join(cell(option, device) for device in DEVICES)
        ours = " (ours)" * (option.source == "msctx")
        lines.append(f"| `{option.name}`{ours} | {re.split(r'(?<=[a-z)])[.:;] ', option.help)[0].rstrip('.')} | {cells} |")
    later = [o for o in OPTIONS.values() if not carried_out(o) and not o.replaced_by]
    inert = ", ".join(f"`{o.name}` ({o.replaced_by})" for o in OPTIONS.values() if o.replaced_by)
    lines += ["", f"Deprecated, and without effect (what to use instead): {inert}.", ""]
    lines += ["<details>", f"<summary>{len(later)} more are known, checked and explained, and come later</summary>", ""]
    for phrase, names in UNBUILT.items():
        keys = Counter(whole for name in names for whole in names if name.startswith(f"{whole}."))
        wholes = [name for name in names if not any(name.startswith(f"{whole}.") for whole in keys)]
        said = [f"`{name}`" + (f" and {keys[name]} keys in it" if keys[name] else "") for name in wholes]
        lines += [f"- with {phrase}: {', '.join(said)}"]
    lines += ["", "</details>"]
    text = "\n" + "\n".join(lines) + "\n"
    assert holds(TABLE, text, END_TABLE, os.environ.get("UPDATE_README"))


def said(rule: Rule) -> str:
    """What the table says of a rule: in which dtype each is computed, and what comes out where that is another one."""
    if rule.widest:
        return "widest"
    computed = {dtype: rule.computes_in(dtype) for dtype in DTYPES}
    if len(set(computed.values())) == 1:
        return computed["float32"] + f", of inputs rounded to {rule.through}" * bool(rule.through)
    cells = []
    for dtype, compute in computed.items():
        if compute != dtype:
            cells.append(f"{dtype} in {compute}" + (f", gives {rule.gives(dtype)}" if rule.gives(dtype) != compute else ""))
    return "; ".join(cells) or "as given"


def test_the_precision_modes_shown_are_those_that_are_carried_out():
    """With UPDATE_README=1 in the environment the README is written anew instead."""
    lines = ["| `precision_mode` | `_v2` | " + " | ".join(CLASSES) + " |", "|---" * (2 + len(CLASSES)) + "|"]
    for mode, by_class in MODES.items():
        v2 = ", ".join(f"`{name}`" for name, same in V2.items() if same == mode)
        cells = " | ".join(said(by_class.get(kind, LEAVE)) for kind in CLASSES)
        lines.append(f"| `{mode}` | {v2} | {cells} |")
    text = "\n" + "\n".join(lines) + "\n"
    assert holds(PRECISION, text, END_PRECISION, os.environ.get("UPDATE_README"))


def test_the_mistake_shown_is_what_is_printed(tmp_path, monkeypatch, capsys):
    block = next(b for b in blocks("") if b.startswith("error: x.yaml"))
    monkeypatch.chdir(tmp_path)
    Path("x.yaml").write_text("context:\n  determinstic: ON\n")
    with pytest.raises(SystemExit):
        main(["explain", "x.yaml"])
    assert capsys.readouterr().err == block
