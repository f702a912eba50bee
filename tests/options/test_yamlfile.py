"""YAML files: what plain words mean, YAML 1.1's traps, and the place of everything that is wrong."""

import math
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from msctx.errors import Diagnostic, FileError, OptionError
from msctx.options import Layer, make_layer
from msctx.options.kinds import YamlWord
from msctx.options.yamlfile import AmbiguousNumber, Document, load, parse, scalar


def read(text: str) -> Any:
    return parse(dedent(text), "file.yaml").data


def form_problems(text: str) -> tuple[Diagnostic, ...]:
    with pytest.raises(FileError) as error:
        read(text)
    return error.value.problems


def context(text: str) -> Layer:
    document = parse(dedent(text), "file.yaml")
    return make_layer(document.data["context"], "file.yaml", document.under("context"))


def context_problems(text: str) -> tuple[Diagnostic, ...]:
    with pytest.raises(OptionError) as error:
        context(text)
    return error.value.problems


def places(problems: tuple[Diagnostic, ...]) -> list[str]:
    return [str(p.mark) for p in problems]


# --- what plain scalars mean ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        ("False", False),
        ("TRUE", True),
        ("null", None),
        ("~", None),
        ("", None),
        ("0", 0),
        ("-12", -12),
        ("+5", 5),
        ("1_000", 1000),
        ("0x1F", 31),
        ("0o17", 15),
        ("1e-3", 0.001),
        ("1E5", 100000.0),
        ("1.5", 1.5),
        (".5", 0.5),
        ("-2.", -2.0),
        ("0.5", 0.5),
        (".inf", math.inf),
        ("-.INF", -math.inf),
        ("12:30", "12:30"),
        ("190:20:30", "190:20:30"),
        ("2026-11-21", "2026-11-21"),
        ("y", "y"),
        ("1e", "1e"),
        ("4GB", "4GB"),
        ("tRue", "tRue"),
        ("inf", "inf"),
    ],
)
def test_plain_scalars(text: str, value: object) -> None:
    for found in (scalar(text), read(f"a: {text}")["a"]):
        assert (type(found), found) == (type(value), value)


def test_not_a_number_is_a_float() -> None:
    assert math.isnan(scalar(".nan"))


@pytest.mark.parametrize("word", ["on", "ON", "On", "off", "OFF", "yes", "No"])
def test_on_and_off_stay_words_whose_truth_is_known(word: str) -> None:
    found = read(f"a: {word}")["a"]
    assert isinstance(found, YamlWord)
    assert found == word
    assert found.truth is (word.lower() in ("on", "yes"))


def test_quotes_make_text() -> None:
    assert read("""{a: "ON", b: '1', c: "true", d: "010", e: "", f: "~"}""") == {
        "a": "ON",
        "b": "1",
        "c": "true",
        "d": "010",
        "e": "",
        "f": "~",
    }
    assert not isinstance(read('a: "ON"')["a"], YamlWord)


def test_a_tag_that_says_text_makes_text() -> None:
    assert read("{a: !!str 5, b: !!str on, c: !!str 010, d: !!str text}") == {"a": "5", "b": "on", "c": "010", "d": "text"}


def test_keys_are_always_text() -> None:
    assert read("{1: a, on: b, null: c, 010: d}") == {"1": "a", "on": "b", "null": "c", "010": "d"}


def test_blocks_and_nesting() -> None:
    text = """
    context:
      seed: 0   # a comment
      list: [1, "2", on]
    text: |
      two
      lines
    """
    assert read(text) == {"context": {"seed": 0, "list": [1, "2", "on"]}, "text": "two\nlines\n"}


@pytest.mark.parametrize("text", ["", "   \n", "# only a comment\n", "---\n"])
def test_an_empty_file_holds_nothing(text: str) -> None:
    assert not read(text)
    assert not read(text.replace("\n", "\r\n"))


def test_on_and_off_serve_every_kind() -> None:
    layer = context(
        """
        context:
          deterministic: ON
          memory_offload: off
          conv_allow_tf32: ON
          check_bprop: no
          save_graphs: on
          jit_compile: off
          atomic_clean_policy: yes
          ac_parallel_enable: ON
          dump_path: on
        """
    )
    assert {k: s.value for k, s in layer.settings.items()} == {
        "deterministic": "ON",
        "memory_offload": "OFF",
        "conv_allow_tf32": True,
        "check_bprop": False,
        "save_graphs": 2,
        "jit_compile": "false",
        "atomic_clean_policy": 1,
        "ac_parallel_enable": "1",
        "dump_path": "on",
    }


# --- traps ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "readings"),
    [("010", ("8", "10")), ("0777", ("511", "777")), ("-010", ("-8", "-10")), ("09", ("9",)), ("0_12", ("10", "12"))],
)
def test_a_leading_zero_is_refused_with_what_it_could_mean(text: str, readings: tuple[str, ...]) -> None:
    with pytest.raises(AmbiguousNumber) as error:
        scalar(text)
    assert all(f" {reading} in YAML" in str(error.value) for reading in readings)
    (problem,) = form_problems(f"a:\n  b: {text}")
    assert problem.text == str(error.value)
    assert problem.path == "a.b"
    assert str(problem.mark) == "file.yaml:2:6"


def test_a_base_60_number_stays_text_and_is_explained_where_a_number_is_needed() -> None:
    (problem,) = context_problems("context:\n  op_timeout: 12:30")
    assert "'12:30'" in problem.text
    assert "base-60" in problem.suggestion
    assert context("context:\n  dump_path: 12:30").settings["dump_path"].value == "12:30"


def test_1e_3_is_a_number_where_text_would_be_wrong() -> None:
    (problem,) = context_problems("context:\n  seed: 1e3")
    assert problem.text == "1000.0 is not a whole number"
    assert "1000" in problem.suggestion


def test_a_key_that_stands_twice_is_told_with_both_places() -> None:
    problems = form_problems(
        """\
        a: 1
        b:
          c: 1
          d: 2
          "c": 3
        a: 4
        a: 5
        """
    )
    assert places(problems) == ["file.yaml:5:3", "file.yaml:6:1", "file.yaml:7:1"]
    assert [p.path for p in problems] == ["b.c", "a", "a"]
    assert "first on line 3" in problems[0].text
    assert all("first on line 1" in p.text for p in problems[1:])


def test_the_same_key_in_two_dictionaries_is_fine() -> None:
    assert read("a: {x: 1}\nb: {x: 2}") == {"a": {"x": 1}, "b": {"x": 2}}


@pytest.mark.parametrize(
    "value",
    [
        "!!python/object:os.system {}",
        "!!python/object/apply:os.system ['echo']",
        "!!python/name:os.system ''",
        "!!python/name:os.system",
        "!!python/tuple [1, 2]",
        "!mine text",
        "!mine {a: 1}",
        "!mine [1]",
        "!!set {a, b}",
        "!!omap [a: 1]",
        "!!binary aGk=",
    ],
)
def test_tags_are_refused(value: str) -> None:
    (problem,) = form_problems(f"one: 1\nkey: {value}")
    assert problem.path == "key"
    assert "tag" in problem.text
    assert str(problem.mark) == "file.yaml:2:6"


def test_aliases_and_merge_keys() -> None:
    text = """
    base: &base {seed: 1, mode: 0}
    more: &more {seed: 2, debug_level: 1}
    list: &list [1, 2]
    one: {<<: *base, mode: 1}
    two: {<<: [*more, *base]}
    after: {mode: 1, <<: *base}
    three: *list
    """
    found = read(text)
    assert isinstance(found, dict)
    assert found["one"] == {"seed": 1, "mode": 1}
    assert found["two"] == {"seed": 2, "mode": 0, "debug_level": 1}, "the earlier of two merged ones wins"
    assert found["after"] == {"seed": 1, "mode": 1}, "a key of its own wins, wherever the merge stands"
    assert found["three"] == [1, 2]


def test_a_merged_value_is_told_where_it_is_written() -> None:
    problems = context_problems(
        """\
        base: &base
          seed: bad
        context:
          mode: bad
          <<: *base
        """
    )
    assert sorted(places(problems)) == ["file.yaml:2:9", "file.yaml:4:9"]


def test_a_value_that_beats_a_merged_one_is_told_where_it_is_written() -> None:
    for lines in (["  seed: bad", "  <<: *base"], ["  <<: *base", "  seed: bad"]):
        text = "\n".join(["base: &base", "  seed: 1", "context:", *lines])
        (problem,) = context_problems(text)
        assert problem.mark is not None
        assert problem.mark.text == "  seed: bad"


@pytest.mark.parametrize("value", ["5", "text", "[1]", "[{a: 1}, 5]"])
def test_only_dictionaries_can_be_merged(value: str) -> None:
    (problem,) = form_problems(f"a: 1\n<<: {value}")
    assert problem.mark is not None
    assert problem.mark.line == 2


@pytest.mark.parametrize("text", ["a: &x [*x]", "a: &x {b: *x}", "a: &x {b: [1, {c: *x}]}", "a: &x {<<: *x}", "&x [*x]"])
def test_an_alias_that_contains_itself(text: str) -> None:
    (problem,) = form_problems(text)
    assert "contains itself" in problem.text
    assert problem.mark is not None


def test_keys_must_be_words() -> None:
    (problem,) = form_problems("? [a, b]\n: 1")
    assert str(problem.mark) == "file.yaml:1:3"


def test_all_problems_of_form_at_once() -> None:
    problems = form_problems("a: 010\nb: 1\nb: 2\nc: !mine 3\nd: [020, &x [*x]]")
    assert [p.mark.line for p in problems if p.mark] == [1, 3, 4, 5, 5]


# --- not YAML, not a file ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "place", "word"),
    [
        ("a:\n\tb: 1", "file.yaml:2:1", r"\t"),
        ("a: [1", "file.yaml:1:6", "expected ',' or ']'"),
        ("a: 'b", "file.yaml:1:6", "end of stream"),
        ("a: 1\n  b: 2", "file.yaml:2:4", "mapping values are not allowed"),
        ("a: *nope", "file.yaml:1:4", "undefined alias 'nope'"),
        ("a: 1\n---\nb: 2", "file.yaml:2:1", "single document"),
        ("a: @b", "file.yaml:1:4", "'@'"),
        ("a: %b", "file.yaml:1:4", "'%'"),
    ],
)
def test_what_is_not_yaml(text: str, place: str, word: str) -> None:
    (problem,) = form_problems(text)
    assert str(problem.mark) == place
    assert word in problem.text
    assert problem.mark is not None
    assert problem.mark.text == text.splitlines()[problem.mark.line - 1]


def test_a_tab_is_shown_where_it_stands() -> None:
    with pytest.raises(FileError) as error:
        parse("context:\n\tseed: 1\n", "file.yaml")
    first, source, caret, _ = str(error.value).splitlines()
    assert first.startswith("file.yaml:2:1  this is not YAML: ")
    assert source == "    2 | \tseed: 1"
    assert caret == "      | ^"


@pytest.mark.parametrize("text", ["a: \0", "a: \x07b", "\ufffe"])
def test_characters_that_yaml_does_not_have(text: str) -> None:
    (problem,) = form_problems(text)
    assert "file.yaml" in str(problem)
    assert "not YAML" in problem.text


@pytest.mark.parametrize("depth", [300, 100_000])
@pytest.mark.parametrize("form", ["[{}]", "{{a: {}}}", "- {}"], ids=["list", "dictionary", "block"])
def test_nesting_too_deep_to_read(form: str, depth: int) -> None:
    """A parser in C would take the process down, and PyYAML's own take minutes."""
    before, after = form.format("|").split("|")
    with pytest.raises(FileError, match="nested more than 200 levels deep"):
        parse(before * depth + after * depth, "file.yaml")
    assert parse(before * 20 + after * 20, "file.yaml").data


def test_aliases_that_grow_without_end() -> None:
    text = "a0: &a0 [1, 1]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 9))
    with pytest.raises(FileError, match="more than 100,000 values, those behind aliases counted each time"):
        parse(text, "file.yaml")


def test_a_file(tmp_path: Path) -> None:
    path = tmp_path / "my file.yaml"
    path.write_text("name: Grüße\nseed: 010\n", encoding="utf-8")
    with pytest.raises(FileError) as error:
        load(path)
    assert str(error.value).startswith(f"{path}:2:7  seed: 010 is")
    path.write_text("name: Grüße\n", encoding="utf-8-sig")
    assert load(path).data == {"name": "Grüße"}


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    latin = tmp_path / "latin.yaml"
    latin.write_bytes("name: Grüße".encode("latin-1"))
    for path, word in (
        (tmp_path / "missing.yaml", "No such file"),
        (tmp_path, "directory"),
        (latin, "not UTF-8 text (byte 8)"),
        (latin / "below.yaml", "Not a directory"),
        ("/dev/zero", "more than 16,777,216 characters"),
        ("nul\0.yaml", ""),
    ):
        with pytest.raises(FileError) as error:
            load(path)
        (problem,) = error.value.problems
        assert problem.where == str(path)
        assert word in problem.text


@settings(max_examples=300)
@given(st.text("ab:{}[]&*!<>|-?,#'\"% \n\t01.~", max_size=30) | st.text(max_size=20))
@example("a: &x *x")
@example("!!<tag:yaml.org,2002:int> a: 1")
def test_any_text_is_a_document_or_a_file_error(text: str) -> None:
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


# --- places -----------------------------------------------------------------------------------------------------------

GOLDEN = """\
context:
  determinstic: "ON"      # a letter is missing
  max_device_memory: 4OGB
  gpu_config:
    conv_allow_tf23: true
    conv_fprop_algo: [winograd]
  op_timeout: 12:30
  session: 5
  session.deterministic: 2
"""

GOLDEN_MESSAGE = """\
digits.yaml:2:3  determinstic: unknown option
    2 |   determinstic: "ON"      # a letter is missing
      |   ^^^^^^^^^^^^ did you mean deterministic?
digits.yaml:3:22  max_device_memory: '4OGB' is not an amount of memory
    3 |   max_device_memory: 4OGB
      |                      ^^^^ did you mean '40GB'?
      allowed: a size such as "4GB", "512MB" or "1.5GiB" (GB = 2**30 bytes), or a number of bytes; more than zero
digits.yaml:5:5  gpu_config.conv_allow_tf23: gpu_config has no such key
    5 |     conv_allow_tf23: true
      |     ^^^^^^^^^^^^^^^ did you mean conv_allow_tf32?
      allowed: conv_fprop_algo, conv_dgrad_algo, conv_wgrad_algo, matmul_algo, conv_allow_tf32, matmul_allow_tf32
digits.yaml:6:22  gpu_config.conv_fprop_algo: ['winograd'] is not one of the values
    6 |     conv_fprop_algo: [winograd]
      |                      ^^^^^^^^^^ did you mean 'winograd'?
      allowed: normal, performance, implicit_gemm, implicit_precomp_gemm (also precomp_gemm), gemm, direct, fft, fft_tiling, \
winograd, winograd_nonfused, reference
digits.yaml:7:15  op_timeout: '12:30' is not a whole number
    7 |   op_timeout: 12:30
      |               ^^^^^ YAML 1.1 would read this as a base-60 number; write plain digits
      allowed: a whole number from 0 to 4294967295
digits.yaml:8:12  session: needs a dictionary of options
    8 |   session: 5
      |            ^
      allowed: {key: value}
digits.yaml:9:26  session.deterministic: 2 is not one of the values
    9 |   session.deterministic: 2
      |                          ^
      allowed: ON (also true, 1), OFF (also false, 0)
7 problems; nothing was changed."""


def test_the_text_of_an_error() -> None:
    document = parse(GOLDEN, "digits.yaml")
    with pytest.raises(OptionError) as error:
        make_layer(document.data["context"], "digits.yaml", document.under("context"))
    assert str(error.value) == GOLDEN_MESSAGE


def test_a_value_knows_where_it_was_written() -> None:
    layer = context(
        """\
        context:
          seed: 0
          gpu_config: {conv_allow_tf32: false}
          session.enable_dump: true
        """
    )
    assert {k: s.origin for k, s in layer.settings.items()} == {
        "seed": "file.yaml:2:9",
        "gpu_config.conv_allow_tf32": "file.yaml:3:33",
        "session.enable_dump": "file.yaml:4:24",
    }


@pytest.mark.parametrize(
    ("lines", "place"),
    [
        (['  deterministic: "ON"', "  session:", "    deterministic: 0"], "file.yaml:4:20"),
        (['  deterministic: "ON"', "  session.deterministic: 0"], "file.yaml:3:26"),
        (["  session.deterministic: 0", '  deterministic: "ON"'], "file.yaml:3:18"),
    ],
)
def test_a_contradiction_is_told_where_the_second_value_stands(lines: list[str], place: str) -> None:
    (problem,) = context_problems("\n".join(["context:", *lines]))
    assert "contradicts" in problem.text
    assert str(problem.mark) == place


def test_a_problem_inside_a_value_is_told_where_it_stands() -> None:
    problems = context_problems(
        """\
        context:
          ge_options:
            session:
              ge.a: 1
              ge.b: "2"
              ge.c: 3
        """
    )
    assert places(problems) == ["file.yaml:4:13", "file.yaml:6:13"]


def test_marks_of_what_is_not_there_are_those_of_what_is_around_it() -> None:
    document = parse("a:\n  b: [1, {c: 2}]\n", "file.yaml")
    assert str(document.mark(("a", "b", 1, "c"))) == "file.yaml:2:14"
    assert str(document.mark(("a", "b", ""))) == "file.yaml:2:3"
    assert str(document.mark(("a", "b", 1, "d"))) == "file.yaml:2:10"
    assert str(document.mark(("x", "y"))) == "file.yaml:1:1"
    assert parse("", "file.yaml").mark(("a",)) is None


@pytest.mark.parametrize(
    ("text", "width"), [("a: word", 4), ("a: 'two words'", 11), ("a: |\n  block\n", 1), ("a:", 1), ("a: [1,\n 2]", 1)]
)
def test_the_caret_underlines_what_stands_on_the_line(text: str, width: int) -> None:
    mark = parse(text, "file.yaml").mark(("a",))
    assert mark is not None
    assert mark.width == width


def test_an_escape_and_a_number_that_python_does_not_read() -> None:
    with pytest.raises(FileError, match=r"this is not YAML: an escape \(\\U…\) has a number that no character has"):
        parse('a: "\\U00110000"', "x.yaml")
    with pytest.raises(FileError, match="a number of thousands of digits"):
        parse(f"a: 0x{'f' * 9000}", "x.yaml")


def test_a_key_that_would_speak_to_the_terminal(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text('"\\e]0;title\\a": 1\n')
    document = load(file)
    with pytest.raises(OptionError) as error:
        make_layer(document.data, str(file), lambda path: document.mark(path))
    assert "\\x1b]0;title\\x07: unknown option" in str(error.value)
    assert str(error.value).replace("\n", "").isprintable()


def test_a_path_that_no_file_can_have(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(f"op_precision_mode: {'a' * 300}\n")
    document = load(file)
    with pytest.raises(OptionError, match=r"x.yaml:1:20  op_precision_mode: .* cannot be read"):
        make_layer(document.data, str(file), lambda path: document.mark(path))
