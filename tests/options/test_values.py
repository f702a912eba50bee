"""What values, files and texts come to, and what is said of wrong ones: a golden file that a person has read.

``UPDATE_GOLDEN=1 pytest tests/options/test_values.py`` writes ``data/values.txt`` anew; read the difference before you commit it.
A case of ``data/values.jsonl`` is options; options and the content of the file ``x`` that one of them names; or a YAML file.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest

import msctx
from msctx.errors import FileError, OptionError
from msctx.options import make_layer
from msctx.options.yaml_json_ini import parse

DATA = Path(__file__).parents[1] / "data"
CASES = [json.loads(line) for line in (DATA / "values.jsonl").read_text().splitlines()]


def taken(case: Any) -> list[str]:
    """What a case sets; or, of a YAML file without options, what is in it."""
    if isinstance(case, str):
        document = parse(case, "x.yaml")
        if "context" not in document.data:
            return [json.dumps(document.data, ensure_ascii=False)]
        layer = make_layer(document.data["context"], "x.yaml", document.under("context"))
    else:
        if isinstance(case, list):
            Path("x").write_text(case[1])
        layer = make_layer(case[0] if isinstance(case, list) else case, "test")
    settings = layer.settings.items()
    again = make_layer({name: s.value for name, s in settings if not s.via}, "test").settings
    assert {name: s.value for name, s in again.items()} == {name: s.value for name, s in settings}, "a value in its final form"
    return [
        f"{name} = {json.dumps(s.value, ensure_ascii=False)}" + f" | {json.dumps(s.content)}" * (s.content is not None)
        for name, s in settings
    ]


def outcome(case: Any) -> str:
    """As text: what it sets, or every problem, without the list of what is allowed."""
    try:
        found = taken(case)
    except (FileError, OptionError) as error:
        found = [line for line in str(error).splitlines()[:-1] if not line.startswith("      allowed: ")]
    return "\n".join([f"> {json.dumps(case, ensure_ascii=False)}", *found]).replace(os.getcwd(), "HERE")


def test_values_come_to_what_was_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    before = msctx.get_context()
    found = [outcome(case) for case in CASES]
    golden = DATA / "values.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text("\n\n".join(found) + "\n")
    expected = golden.read_text().removesuffix("\n").split("\n\n")
    assert found == expected
    assert msctx.get_context() == before
