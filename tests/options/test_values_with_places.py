"""Documents with places: JSON and line-based files as plain data, and the exact place of everything that is wrong.

What each format takes, and what is said of all else, is in ``data/values.txt``.
"""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import msctx
from msctx.options import OPTIONS, files_named_by_options
from msctx.options.files_named_by_options import Format
from msctx.options.kinds import BadValue
from msctx.options.values_with_places import Document, scalar
from msctx.options.yaml_json_ini import parse_ini, parse_json

FORMATS: dict[str, Format] = {o.content: getattr(files_named_by_options, o.content) for o in OPTIONS.values() if o.content}
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
NEAR_JSON = st.text(alphabet="{}[]\",:\\/*#'ntrue0123456789.-+eE \t\r\n\ufeffä\ud800")
NEAR_LINES = st.text(alphabet="[]=,#;: -\t\r\nab\ufeff")
TOKENS = """rdr mem_Reuse black-list to-add to-remove Switch GraphFusion ALL feature task_time on [ByOpType] [op_compiler_cache]
    a=keep_fp16 op_debug_config=oom,ccec_O0, op_debug_list=a::b max_op_cache_size=0 a::InputDtype:int8,OutputDtype: OpType::A:x:
    --opt_level=99999999999999999999 --path=/"""
WORDS = st.sampled_from(TOKENS.split())
NEAR = st.lists(WORDS | st.text(max_size=8)).map("\n".join) | st.dictionaries(
    WORDS, JSON_VALUES | st.dictionaries(WORDS, st.lists(WORDS | JSON_VALUES))
).map(json.dumps)


def at(parsed: Document, *path: str | int) -> str:
    """The place of a value, or with "" of a key, and what stands there."""
    mark = parsed.mark(path)
    assert mark is not None
    return f"{mark.line}:{mark.column} {mark.text[mark.column - 1 : mark.column - 1 + mark.width]}"


@settings(max_examples=60)
@given(st.text() | NEAR_JSON | NEAR_LINES | NEAR)
def test_no_content_makes_a_reader_raise_and_everything_has_a_place(text: str) -> None:
    for name, form in FORMATS.items():
        parsed = form.parse(text, "f")
        assert isinstance(parsed.data, dict), name
        marks = [p.mark for p in parsed.problems] + [parsed.mark(path) for key in parsed.data for path in ((key,), (key, ""))]
        for mark in marks:
            assert mark is not None, name
            assert min(mark.line, mark.column, mark.width) >= 1
        assert all(problem.text and str(problem) for problem in parsed.problems)


@settings(max_examples=50)
@given(JSON_VALUES, st.sampled_from([None, 2, "\t"]))
def test_what_json_writes_is_read_and_has_a_place(value: object, indent: int | str | None) -> None:
    parsed = parse_json(json.dumps({"x": value}, indent=indent), "f")
    assert (parsed.problems, parsed.data) == ([], {"x": value})
    mark = parsed.mark(("x", ""))
    assert mark is not None
    assert (mark.line, mark.column) == {None: (1, 2), 2: (2, 3), "\t": (2, 2)}[indent]


def test_places_in_json() -> None:
    parsed = parse_json('\ufeff{\r\n\t"a": "xyz",\r\n\t"b" : [10, {"c": true}],\r\n  "d": {\n}}', "f.json")
    assert parsed.problems == []
    assert at(parsed, "a") == '2:7 "xyz"'
    assert at(parsed, "b", 0) == "3:9 10"
    assert at(parsed, "b", 1, "c") == "3:19 true"
    assert at(parsed, "b", 1, "c", "") == '3:14 "c"'
    assert at(parsed, "d", "x", "y") == "4:8 {", "of what is not there: the nearest thing around it"


def test_comments_are_blanked_out_where_they_are_allowed() -> None:
    text = '{ // "one"\n "a": "// no # comment /* here", /* two,\n three */ "b": 1, # four\n"c": 2}// five'
    parsed = parse_json(text, "f", comments=True)
    assert (parsed.problems, parsed.data) == ([], {"a": "// no # comment /* here", "b": 1, "c": 2})
    assert at(parsed, "b") == "3:16 1"


def test_sections_keys_and_values() -> None:
    text = "\ufeff# comment\r\n; comment = too\r\n\r\n[One]\r\na = 1 \r\n\tb=x=y\r\n[ Two ]\nl= a, b,,c\ne="
    parsed = parse_ini(text, "f")
    assert (parsed.problems, parsed.data) == ([], {"One": {"a": "1", "b": "x=y"}, "Two": {"l": "a, b,,c", "e": ""}})
    assert at(parsed, "One", "") == "4:1 [One]"
    assert at(parsed, "One", "b") == "6:4 x=y"
    assert parse_ini("a=1\n[B]\nb=2\n[A]\nc=3", "f", first=("A",)).data == {"A": {"a": "1", "c": "3"}, "B": {"b": "2"}}
    assert parse_ini("a=1", "f", first=()).data == {"a": "1"}


EMPTY = {"fusion_switch_file": '{"Switch": {}}', "op_precision_mode": "", "modify_mixlist": "{}", "customize_dtypes": ""}


@pytest.mark.parametrize(("option", "text"), EMPTY.items())
def test_a_file_without_entries_is_inert(option: str, text: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text(text)
    options = {"precision_mode": "allow_mix_precision_fp16", option: str(tmp_path / "file")}
    (row,) = [row for row in msctx.explain(device="cpu", **options).rows if row.option == option]
    assert (row.status, row.reason) == ("inert", "the file has no entries")


def test_thousands_of_digits_are_no_number() -> None:
    with pytest.raises(BadValue, match="9… is too long for a number"):
        scalar("9" * 5000)
