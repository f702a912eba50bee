"""YAML files: aliases, depth, places and files. What words mean, YAML 1.1's traps and messages are in ``data/values.txt``."""

from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from msctx.errors import FileError
from msctx.options.values_with_places import Document
from msctx.options.yaml_json_ini import load, parse


@pytest.mark.parametrize("text", ["", "   \n", "# only a comment\n", "---\n"])
def test_an_empty_file_holds_nothing(text: str) -> None:
    assert not parse(text, "file.yaml").data
    assert not parse(text.replace("\n", "\r\n"), "file.yaml").data


@pytest.mark.parametrize("depth", [1000, 10_000])
@pytest.mark.parametrize("form", ["[{}]", "{{a: {}}}", "- {}"], ids=["list", "dictionary", "block"])
def test_nesting_too_deep_to_read(form: str, depth: int) -> None:
    """A parser in C would take the process down."""
    before, after = form.format("|").split("|")
    with pytest.raises(FileError, match="nested too deeply"):
        parse(before * depth + after * depth, "file.yaml")
    assert parse(before * 20 + after * 20, "file.yaml").data


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    latin = tmp_path / "latin.yaml"
    latin.write_bytes("name: Grüße".encode("latin-1"))
    for path, word in (
        (tmp_path / "missing.yaml", "No such file"),
        (tmp_path, "directory"),
        (latin, "not UTF-8 text (byte 8)"),
        ("nul\0.yaml", ""),
    ):
        with pytest.raises(FileError) as error:
            load(path)
        (problem,) = error.value.problems
        assert problem.where == str(path)
        assert word in problem.text
    latin.write_text("name: Grüße\n", encoding="utf-8-sig")
    assert load(latin).data == {"name": "Grüße"}


@settings(max_examples=300)
@given(st.text("ab:{}[]&*!<>|-?,#'\"% \n\t01.~", max_size=30) | st.text(max_size=20))
@example("a: &x *x")
@example("!!<tag:yaml.org,2002:int> a: 1")
def test_any_text_is_a_document_or_a_file_error_with_places(text: str) -> None:
    try:
        found: Document | FileError = parse(text, "file.yaml")
    except FileError as error:
        found = error
    if isinstance(found, FileError):
        assert found.problems
        assert "file.yaml" in str(found)
    else:
        lines = [mark.line for path in ((), ("a",), ("a", ""), ("a", 0)) if (mark := found.mark(path))]
        assert all(1 <= line <= text.count("\n") + text.count("\r") + 2 for line in lines)
