"""Documents with places: JSON and line-based files as plain data, and the exact place of everything that is wrong."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from msctx.errors import Mark
from msctx.options.documents import Parsed, parse_ini, parse_json, pieces
from msctx.options.kinds import INVALID

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
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


@given(JSON_VALUES, st.sampled_from([None, 2, "\t"]))
def test_what_json_writes_is_read(value: object, indent: int | str | None) -> None:
    parsed = parse_json(json.dumps(value, indent=indent), "f")
    assert parsed.problems == []
    assert parsed.data == value


@given(st.text() | NEAR_JSON)
def test_no_text_makes_it_raise(text: str) -> None:
    for comments in (False, True):
        parsed = parse_json(text, "f", comments=comments)
        for mark in (parsed.mark(()), parsed.mark(("a", "")), *(p.mark for p in parsed.problems)):
            assert mark is not None
            assert mark.line >= 1
            assert mark.column >= 1
            assert mark.width >= 1


def no_number(word: str) -> object:
    raise json.JSONDecodeError(word, word, 0)


@given(st.text() | NEAR_JSON)
def test_all_else_than_json_is_refused(text: str) -> None:
    parsed = parse_json(text, "f")
    try:
        expected = json.loads(text.removeprefix("\ufeff"), parse_constant=no_number)
    except json.JSONDecodeError:
        assert parsed.problems
    else:
        assert parsed.problems or parsed.data == expected


def test_places() -> None:
    parsed = parse_json('\ufeff{\r\n\t"a": "xyz",\r\n\t"b" : [10, {"c": true}],\r\n  "d": {\n}}', "f.json")
    assert parsed.problems == []
    assert at(parsed, "a") == '2:7 "xyz"'
    assert at(parsed, "a", "") == '2:2 "a"'
    assert at(parsed, "b", 0) == "3:9 10"
    assert at(parsed, "b", 1, "c") == "3:19 true"
    assert at(parsed, "b", 1, "c", "") == '3:14 "c"'
    assert at(parsed, "d") == "4:8 {"  # more than a line: its beginning
    assert at(parsed) == "1:1 {"
    assert parsed.mark(("a",)) == Mark("f.json", 2, 7, ' "a": "xyz",', 5)


def test_the_place_of_what_is_not_there_is_that_of_what_is_around_it() -> None:
    parsed = parse_json('{\n"a": {"b": 1}}', "f")
    assert at(parsed, "a", "x") == '2:6 {"b": 1}'
    assert at(parsed, "a", "x", "") == '2:6 {"b": 1}'
    assert at(parsed, "x", "y") == "1:1 {"


@pytest.mark.parametrize(
    ("text", "place", "words", "suggestion"),
    [
        ("", "1:1", "there is nothing in it", ""),
        (" \n\n", "1:1", "there is nothing in it", ""),
        ('{\n "a": 1\n "b": 2}', "3:2", "a comma or } is missing", ""),
        ('{"a" 1}', "1:6", "a colon is missing after the key", ""),
        ('{"a": [1,\n2,\n]}', "2:2", "no comma may stand before ]", "remove the comma"),
        ('{"a": 1,}', "1:8", "no comma may stand before }", "remove the comma"),
        ("{'a': 1}", "1:2", 'a key in "double quotes" is missing', "JSON knows double quotes only"),
        ("{\"a\": 'x'}", "1:7", "a value is missing", "JSON knows double quotes only"),
        ("{a: 1}", "1:2", 'a key in "double quotes" is missing', ""),
        ('{"a": True}', "1:7", "True is neither a number nor quoted text", "true"),
        ('{"a": on}', "1:7", "on is neither a number nor quoted text", '"on"'),
        ('{"a": NaN}', "1:7", "NaN is neither a number nor quoted text", '"NaN"'),
        ('{"a": -Infinity}', "1:7", "-Infinity is neither a number nor quoted text", '"-Infinity"'),
        ('{"a": 01}', "1:7", "01 is neither a number nor quoted text", '"01"'),
        ('{"a": 1} x', "1:10", "nothing may follow the value", ""),
        ('{"a": 1 // x\n}', "1:9", "a comma or } is missing", "JSON has no comments"),
        ('{"a":\n', "1:6", "a value is missing", ""),
        ('{\n"a": "x', "2:6", "unterminated string", ""),
        ('{"a": "x\ty"}', "1:9", "invalid control character", ""),
        ('{"a": "\\q"}', "1:8", "invalid \\escape", ""),
        ("[" * 100_000, "1:52", "nested more than 50 levels deep", ""),
        ('{"a":' * 100_000, "1:256", "nested more than 50 levels deep", ""),
    ],
)
def test_what_is_not_json(text: str, place: str, words: str, suggestion: str) -> None:
    parsed = parse_json(text, "f.json")
    assert only(parsed) == (f"f.json:{place}", f"this is not JSON: {words}", suggestion)
    assert parsed.data == {}


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ('{"a": 1,\n "b": 2, "a": 3}', "f:2:10", "stands twice; first on line 1"),
        ('{"a": "\\ud800"}', "f:1:7", "half of a surrogate pair is not a character"),
        ('{"\\ud800": 1}', "f:1:2", "half of a surrogate pair is not a character"),
        ('{"a": 1e999}', "f:1:7", "the number is too large"),
        ('{"a": %s}' % ("9" * 5000), "f:1:7", "the number is too large"),
    ],
)
def test_what_json_allows_and_nobody_can_mean(text: str, place: str, words: str) -> None:
    assert only(parse_json(text, "f"))[:2] == (place, words)


def test_the_first_of_two_keys_holds_and_both_are_checked() -> None:
    parsed = parse_json('{"a": {"x": 1}, "a": {"y": 1e999}}', "f")
    assert parsed.data == {"a": {"x": 1}}
    assert [p.path for p in parsed.problems] == ["a", "a.y"]
    assert at(parsed, "a") == '1:7 {"x": 1}'


def test_unreadable_values_are_marked_in_the_data() -> None:
    assert parse_json("[1, 1e999]", "f").data == [1, INVALID]


def test_comments_are_blanked_out_where_they_are_allowed() -> None:
    text = '{ // "one"\n "a": "// no # comment /* here", /* two,\n three */ "b": 1, # four\n"c": 2}// five'
    parsed = parse_json(text, "f", comments=True)
    assert parsed.problems == []
    assert parsed.data == {"a": "// no # comment /* here", "b": 1, "c": 2}
    assert at(parsed, "b") == "3:16 1"
    mark = parsed.mark(("b",))
    assert mark is not None
    assert mark.text == ' three */ "b": 1, # four'


def test_a_comment_without_an_end() -> None:
    assert only(parse_json('{"a": 1 /* x }', "f", comments=True)) == (
        "f:1:9",
        "this is not JSON: a comma or } is missing",
        "/* is never closed",
    )


def test_a_message_shows_no_line_of_megabytes() -> None:
    parsed = parse_json('{"x": [%s 1]}' % ("1," * 500_000), "f")
    assert parsed.data == {"x": [1] * 500_001}
    assert parsed.mark(("x", 499_999)) == Mark("f", 1, 7 + 1 + 2 * 499_999, "", 1)
    assert len(str(parse_json('{"x": "%s" 1}' % ("y" * 100_000), "f").problems[0])) < 200
    assert len(str(parse_json('{"x": %s}' % ("y" * 100_000), "f").problems[0])) < 200


def test_a_message_shows_nothing_that_moves_the_cursor() -> None:
    (problem,) = parse_json('{"a":\t"\x1b[2J\u202e" 1}', "f").problems
    assert "\x1b" not in str(problem)
    assert "\u202e" not in str(problem)


# --- lines of key=value -----------------------------------------------------------------------------------------------

INI = "\ufeff# comment\r\n; comment = too\r\n\r\n[One]\r\na = 1 \r\n\tb=x=y\r\n[ Two ]\nl= a, b,,c\ne="


def test_sections_keys_and_values() -> None:
    parsed = parse_ini(INI, "f", lists=("l",))
    assert parsed.problems == []
    assert parsed.data == {"One": {"a": "1", "b": "x=y"}, "Two": {"l": ["a", "b", "", "c"], "e": ""}}
    assert at(parsed, "One", "") == at(parsed, "One") == "4:1 [One]"
    assert at(parsed, "One", "a") == "5:5 1"
    assert at(parsed, "One", "a", "") == "5:1 a"
    assert at(parsed, "One", "b") == "6:4 x=y"
    assert at(parsed, "Two", "l") == "8:4 a, b,,c"
    assert at(parsed, "Two", "l", 1) == "8:7 b"
    assert at(parsed, "Two", "l", 3) == "8:10 c"
    assert at(parsed, "Two", "nothing") == "7:1 [ Two ]"


def test_lines_before_the_first_heading() -> None:
    assert parse_ini("a=1\n[B]\nb=2\n[A]\nc=3", "f", first="A").data == {"A": {"a": "1", "c": "3"}, "B": {"b": "2"}}
    assert parse_ini("a=1", "f", flat=True).data == {"a": "1"}
    parsed = parse_ini("a=1\n[B]\nb=2", "f")
    assert parsed.data == {"B": {"b": "2"}}
    assert only(parsed) == ("f:1:1", "stands before the first [section]", "")


@pytest.mark.parametrize(
    ("text", "place", "words", "suggestion"),
    [
        ("[A]\na=1\n b = 2\na=3", "f:4:1", "stands twice; first on line 2", ""),
        ("[A]\na=1\n[B]\n[A]\na=3", "f:5:1", "stands twice; first on line 2", ""),
        ("[A]\n  on", "f:2:3", "'on' is not key=value", ""),
        ("[A]\n=5", "f:2:1", "'=5' is not key=value", ""),
        ("[A \na=1", "f:1:1", "the heading has no closing ]", "[A]"),
    ],
)
def test_what_is_not_key_and_value(text: str, place: str, words: str, suggestion: str) -> None:
    assert only(parse_ini(text, "f")) == (place, words, suggestion)


def test_a_flat_file_has_no_headings() -> None:
    parsed = parse_ini("[A]\na=1", "f", flat=True)
    assert parsed.data == {"a": "1"}
    assert only(parsed)[:2] == ("f:1:1", "'[A]' is not key=value")


def test_every_problem_is_told_in_the_order_of_the_file() -> None:
    parsed = parse_ini("x=1\n[A]\nfoo\na=1\na=2\n[B", "f")
    assert [p.mark.line for p in parsed.problems if p.mark] == [1, 3, 5, 6]


@given(st.text() | st.text(alphabet="[]=,#; \t\r\nab\ufeff"), st.sampled_from([None, "A"]), st.booleans())
def test_no_lines_make_it_raise(text: str, first: str | None, flat: bool) -> None:
    parsed = parse_ini(text, "f", first=first, flat=flat, lists=("a",))
    for section, found in parsed.data.items():
        for key, value in found.items() if isinstance(found, dict) else ():
            mark = parsed.mark((section, key))
            assert mark is not None
            assert not isinstance(value, str) or mark.text[mark.column - 1 :].startswith(value) or not value.isprintable()


def test_pieces() -> None:
    assert list(pieces(" a,, b c ", 10, ",")) == [("a", 11), ("", 13), ("b c", 15)]
