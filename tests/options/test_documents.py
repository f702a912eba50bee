"""Documents with places: JSON and line-based files as plain data, and the exact place of everything that is wrong."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from msctx.errors import Mark
from msctx.options.documents import Parsed, parse_ini, parse_json

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
NEAR_JSON = st.text(alphabet="{}[]\",:\\/*#'ntrue0123456789.-+eE \t\r\n\ufeffä\ud800")


def only(parsed: Parsed) -> tuple[str, str, str]:
    """The place, the text and the suggestion of the one problem."""
    (problem,) = parsed.problems
    return str(problem.mark), problem.text, problem.suggestion


def at(parsed: Parsed, *path: str | int) -> str:
    """The place of a value, or with "" of a key, and what stands there."""
    mark = parsed.mark(path)
    assert mark is not None
    return f"{mark.line}:{mark.column} {mark.text[mark.column - 1 : mark.column - 1 + mark.width]}"


# --- JSON -------------------------------------------------------------------------------------------------------------


@settings(max_examples=50)
@given(JSON_VALUES, st.sampled_from([None, 2, "\t"]))
def test_what_json_writes_is_read_and_has_a_place(value: object, indent: int | str | None) -> None:
    parsed = parse_json(json.dumps({"x": value}, indent=indent), "f")
    assert parsed.problems == []
    assert parsed.data == {"x": value}
    mark = parsed.mark(("x", ""))
    assert mark is not None
    assert (mark.line, mark.column) == {None: (1, 2), 2: (2, 3), "\t": (2, 2)}[indent]


@settings(max_examples=50)
@given(st.text() | NEAR_JSON)
def test_no_text_makes_it_raise(text: str) -> None:
    for comments in (False, True):
        parsed = parse_json(text, "f", comments=comments)
        for mark in (parsed.mark(()), parsed.mark(("a", "")), *(p.mark for p in parsed.problems)):
            assert mark is not None
            assert min(mark.line, mark.column, mark.width) >= 1


def test_places() -> None:
    parsed = parse_json('\ufeff{\r\n\t"a": "xyz",\r\n\t"b" : [10, {"c": true}],\r\n  "d": {\n}}', "f.json")
    assert parsed.problems == []
    assert at(parsed, "a") == '2:7 "xyz"'
    assert at(parsed, "b", 0) == "3:9 10"
    assert at(parsed, "b", 1, "c") == "3:19 true"
    assert at(parsed, "b", 1, "c", "") == '3:14 "c"'
    assert at(parsed, "d") == "4:8 {"  # more than a line: its beginning
    assert at(parsed, "d", "x", "y") == "4:8 {", "of what is not there: the nearest thing around it"
    assert parsed.mark(("a",)) == Mark("f.json", 2, 7, '\t"a": "xyz",', 5)


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("", "1:1", "Expecting value"),
        ('{\n "a": 1\n "b": 2}', "3:2", "Expecting ',' delimiter"),
        ('{"a": on}', "1:7", "Expecting value"),
        ('{"a": NaN}', "1:1", "NaN is not a number"),
        ('{"a": 1e999}', "1:1", "1e999 is too large a number"),
    ],
)
def test_what_is_not_json(text: str, place: str, words: str) -> None:
    parsed = parse_json(text, "f.json")
    assert only(parsed)[:2] == (f"f.json:{place}", f"this is not JSON: {words}")
    assert parsed.data == {}


def test_the_first_of_two_keys_holds() -> None:
    parsed = parse_json('{"a": {"x": 1},\n "b": 2, "a": {"y": 2}}', "f")
    assert parsed.data == {"a": {"x": 1}, "b": 2}
    assert only(parsed)[:2] == ("f:2:10", "is given twice; first on line 1")
    assert at(parsed, "a") == '1:7 {"x": 1}'


def test_comments_are_blanked_out_where_they_are_allowed() -> None:
    text = '{ // "one"\n "a": "// no # comment /* here", /* two,\n three */ "b": 1, # four\n"c": 2}// five'
    parsed = parse_json(text, "f", comments=True)
    assert parsed.problems == []
    assert parsed.data == {"a": "// no # comment /* here", "b": 1, "c": 2}
    assert at(parsed, "b") == "3:16 1"


def test_a_message_shows_no_line_of_megabytes_and_nothing_that_moves_the_cursor() -> None:
    parsed = parse_json('{"x": [%s 1]}' % ("1," * 1000), "f")
    assert parsed.mark(("x", 999)) == Mark("f", 1, 7 + 1 + 2 * 999, "", 1)
    for text in ('{"x": "%s" 1}', '{"x": %s}'):
        assert len(str(parse_json(text % ("y" * 100_000), "f").problems[0])) < 250
    (problem,) = parse_json('{"a":\t"\x1b[2J\u202e" 1}', "f").problems
    assert not {"\x1b", "\u202e"} & set(str(problem))


# --- lines of key=value -----------------------------------------------------------------------------------------------

INI = "\ufeff# comment\r\n; comment = too\r\n\r\n[One]\r\na = 1 \r\n\tb=x=y\r\n[ Two ]\nl= a, b,,c\ne="


def test_sections_keys_and_values() -> None:
    parsed = parse_ini(INI, "f", lists=("l",))
    assert parsed.problems == []
    assert parsed.data == {"One": {"a": "1", "b": "x=y"}, "Two": {"l": ["a", "b", "", "c"], "e": ""}}
    for path, place in {
        ("One", ""): "4:1 [One]",
        ("One", "a"): "5:5 1",
        ("One", "a", ""): "5:1 a",
        ("One", "b"): "6:4 x=y",
        ("Two", "l"): "8:4 a, b,,c",
        ("Two", "l", 1): "8:7 b",
        ("Two", "l", 3): "8:10 c",
        ("Two", "nothing"): "7:1 [ Two ]",
    }.items():
        assert at(parsed, *path) == place


def test_lines_before_the_first_heading() -> None:
    found = parse_ini("a=1\n[B]\nb=2\n[A]\nc=3", "f", sections=("A", "C")).data
    assert found == {"A": {"a": "1", "c": "3"}, "B": {"b": "2"}, "C": {}}
    assert parse_ini("a=1", "f", flat=True).data == {"a": "1"}
    parsed = parse_ini("a=1\n[B]\nb=2", "f")
    assert parsed.data == {"B": {"b": "2"}}
    assert only(parsed) == ("f:1:1", "stands before the first [section]", "")


def test_what_is_not_key_and_value() -> None:
    for text, place, words, suggestion in (
        ("[A]\na=1\n b = 2\na=3", "f:4:1", "is given twice; first on line 2", ""),
        ("[A]\na=1\n[B]\n[A]\na=3", "f:5:1", "is given twice; first on line 2", ""),
        ("[A]\n  on", "f:2:3", "'on' is not key=value", ""),
        ("[A]\n=5", "f:2:1", "'=5' is not key=value", ""),
        ("[A \na=1", "f:1:1", "the heading has no closing ]", "[A]"),
    ):
        assert only(parse_ini(text, "f")) == (place, words, suggestion)
    assert only(parse_ini("[A]\na=1", "f", flat=True))[:2] == ("f:1:1", "'[A]' is not key=value")
    assert [p.mark.line for p in parse_ini("x=1\n[A]\nfoo\na=1\na=2\n[B", "f").problems if p.mark] == [1, 3, 5, 6]


@settings(max_examples=50)
@given(st.text() | st.text(alphabet="[]=,#; \t\r\nab\ufeff"), st.sampled_from([(), ("A",)]), st.booleans())
def test_no_lines_make_it_raise(text: str, sections: tuple[str, ...], flat: bool) -> None:
    parsed = parse_ini(text, "f", sections=() if flat else sections, flat=flat, lists=("a",))
    for section, found in parsed.data.items():
        for key, value in found.items() if isinstance(found, dict) else ():
            mark = parsed.mark((section, key))
            assert mark is not None
            assert not isinstance(value, str) or mark.text[mark.column - 1 :].startswith(value) or not value.isprintable()
