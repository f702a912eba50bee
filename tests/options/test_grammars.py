"""Options whose text has a grammar: what each takes, the one form it takes it in, and which part it says is wrong."""

import re
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from msctx.options import grammars
from msctx.options.grammars import DigitsKind, MegabytesKind, NameOrTypeKind
from msctx.options.kinds import BadValue, Kind, YamlWord

NAMES = (
    *("DumpStep", "InputShape", "DynamicDims", "StreamParallel", "DeviceList"),
    *("AccelerateTrainMode", "ShapeRange", "InOutPair"),
)


def kind(name: str) -> Kind:
    found: Kind = get_args(getattr(grammars, name))[1]
    return found


def outcome(single: Kind, value: Any) -> str | BadValue:
    try:
        return str(single.parse(value))
    except BadValue as bad:
        return bad


GOOD = [
    ("DumpStep", "0|3-5|10", "0|3-5|10"),
    ("DumpStep", " 0 | 3 - 5|007 ", "0|3-5|7"),
    ("DumpStep", 5, "5"),
    ("DumpStep", [0, "3-5", 10], "0|3-5|10"),
    ("DumpStep", ["0|1", 2], "0|1|2"),
    ("DumpStep", "|".join("1" * 100), "|".join("1" * 100)),
    ("InputShape", "data:1,1,40,-1;label:1,-1;mask:-1,-1", "data:1,1,40,-1;label:1,-1;mask:-1,-1"),
    ("InputShape", " data : 1, -1 ; scale:0", "data:1,-1;scale:0"),
    ("InputShape", "import/x:0:3", "import/x:0:3"),
    ("InputShape", ["data:1,-1", "mask:3"], "data:1,-1;mask:3"),
    ("DynamicDims", "20,20,1,1;40,40,2,2", "20,20,1,1;40,40,2,2"),
    ("DynamicDims", " 1; 02 ", "1;2"),
    ("DynamicDims", ["20,20", "40,40"], "20,20;40,40"),
    ("DynamicDims", [1, 2], "1;2"),
    ("DynamicDims", ";".join("1" * 100), ";".join("1" * 100)),
    ("StreamParallel", "DNN_VM_AICPU:2,AIcoreEngine:4", "DNN_VM_AICPU:2,AIcoreEngine:4"),
    ("StreamParallel", "AIcoreEngine : 04", "AIcoreEngine:4"),
    ("StreamParallel", ["DNN_VM_AICPU:10"], "DNN_VM_AICPU:10"),
    ("DeviceList", "0,1", "0,1"),
    ("DeviceList", " 1, 0", "1,0"),
    ("DeviceList", [0, 1], "0,1"),
    ("DeviceList", 3, "3"),
    ("AccelerateTrainMode", "fast|step|0.9", "fast|step|0.9"),
    ("AccelerateTrainMode", "fast1|step", "fast1|step|0.9"),
    ("AccelerateTrainMode", "fast|loss", "fast|loss|1.05"),
    ("AccelerateTrainMode", "fast | step | 0.20", "fast|step|0.2"),
    ("AccelerateTrainMode", "fast|loss|1.5", "fast|loss|1.5"),
    ("AccelerateTrainMode", "fast1|loss|1.010", "fast1|loss|1.01"),
    (
        "ShapeRange",
        "getnext:[128,3~5,2~128,-1],[64,-1];data:[128,-1]",
        "getnext:[128,3~5,2~128,-1],[64,-1];data:[128,-1]",
    ),
    ("ShapeRange", "data: [-1,-1,-1, 3] , [ ]", "data:[-1,-1,-1,3],[]"),
    ("ShapeRange", "data:[2 ~ 2]", "data:[2~2]"),
    ("ShapeRange", ["getnext:[1]", "data:[]"], "getnext:[1];data:[]"),
    ("InOutPair", "[['conv1'],['relu3']]", "[['conv1'], ['relu3']]"),
    ("InOutPair", ' [["a/b:0" , "c"],["d",]] ', "[['a/b:0', 'c'], ['d']]"),
    ("InOutPair", [["conv1"], ["relu3", "relu4"]], "[['conv1'], ['relu3', 'relu4']]"),
    ("InOutPair", [[YamlWord("on")], ["b"]], "[['on'], ['b']]"),
    ("InOutPair", "[[['a'], ['b']]]", "[['a'], ['b']]"),  # how CANN's own samples write it
    ("InOutPair", [[["a"], ["b"]]], "[['a'], ['b']]"),
]


@pytest.mark.parametrize(("name", "value", "canonical"), GOOD)
def test_good_values_have_one_form(name: str, value: Any, canonical: str) -> None:
    parsed = kind(name).parse(value)
    assert type(parsed) is str
    assert parsed == canonical
    assert kind(name).parse(parsed) == parsed


BAD = [
    ("DumpStep", "", "the text is empty", ""),
    ("DumpStep", [], "the text is empty", ""),
    ("DumpStep", "0||5", "a part of '0||5' is empty", "0|5"),
    ("DumpStep", "1|x|3", "'x' is neither a step nor a range of steps", ""),
    ("DumpStep", "1,2", "'1,2' is neither a step nor a range of steps", ""),
    ("DumpStep", "5-3", "the range '5-3' does not end after it begins", "3-5"),
    ("DumpStep", "0|4-4", "the range '4-4' does not end after it begins", "4"),
    ("DumpStep", "|".join("1" * 101), "101 parts are too many", ""),
    ("DumpStep", -1, "'-1' is neither a step nor a range of steps", ""),
    ("DumpStep", "٣", "'٣' is neither a step nor a range of steps", ""),
    ("DumpStep", "1" * 19, f"'{'1' * 19}' is neither a step nor a range of steps", ""),
    ("DumpStep", True, "True is not text", ""),
    ("DumpStep", [True], "[True] is not text", ""),
    ("DumpStep", None, "None is not text", ""),
    ("DumpStep", {"a": 1}, "{'a': 1} is not text", ""),
    ("InputShape", "data", "'data' is not name:sizes", ""),
    ("InputShape", ":1", "':1' is not name:sizes", ""),
    ("InputShape", "data:1,x", "'x' in 'data:1,x' is not a size", ""),
    ("InputShape", "data:1,", "'' in 'data:1,' is not a size", ""),
    ("InputShape", "data:1,-2", "'-2' in 'data:1,-2' is not a size", ""),
    ("InputShape", "a:1;b:0,3", "the size 0 in 'b:0,3' must stand alone: it means a scalar", ""),
    ("InputShape", "a:1;b:2;a:3", "'a' stands twice", ""),
    ("InputShape", "a:1;", "a part of 'a:1;' is empty", "a:1"),
    ("InputShape", 5, "5 is not text", ""),
    ("DynamicDims", "20,20", "'20,20' is a single gear; one shape alone is not dynamic", ""),
    ("DynamicDims", 20, "'20' is a single gear; one shape alone is not dynamic", ""),
    ("DynamicDims", "20,20;40", "the gear '40' has not as many sizes as '20,20'", ""),
    ("DynamicDims", "1,0;2,2", "'0' in the gear '1,0' is not a size", ""),
    ("DynamicDims", "1;-1", "'-1' in the gear '-1' is not a size", ""),
    ("DynamicDims", "1;2;", "a part of '1;2;' is empty", "1;2"),
    ("DynamicDims", ";".join("1" * 101), "101 parts are too many", ""),
    ("DynamicDims", "0" * 5000 + "1;2", None, ""),
    ("StreamParallel", "AICoreEngine:4", "'AICoreEngine' is not an engine", "AIcoreEngine"),
    ("StreamParallel", "DNN_VM_CPU:4", "'DNN_VM_CPU' is not an engine", "DNN_VM_AICPU"),
    ("StreamParallel", "AIcoreEngine", "'AIcoreEngine' is not engine:number", "AIcoreEngine:1"),
    ("StreamParallel", "AIcoreEngine:0", "'0' in 'AIcoreEngine:0' is not a number from 1 on", ""),
    ("StreamParallel", "AIcoreEngine:1,AIcoreEngine:2", "'AIcoreEngine' stands twice", ""),
    ("DeviceList", "0,a", "'a' is not the number of a device", ""),
    ("DeviceList", [0, -1], "'-1' is not the number of a device", ""),
    ("DeviceList", "0,1,00", "'0' stands twice", ""),
    ("DeviceList", "0,,1", "a part of '0,,1' is empty", "0,1"),
    ("DeviceList", [0.5], "[0.5] is not text", ""),
    ("AccelerateTrainMode", "fast", "'fast' has not two or three fields", ""),
    ("AccelerateTrainMode", "fast|step|0.9|1", "'fast|step|0.9|1' has not two or three fields", ""),
    ("AccelerateTrainMode", "Fast1|step", "'Fast1' in 'Fast1|step' is unknown", "fast1"),
    ("AccelerateTrainMode", "fast|steps", "'steps' in 'fast|steps' is unknown", "step"),
    ("AccelerateTrainMode", "fast|step|0.95", "'0.95' is not a ratio for step", "fast|step|0.9"),
    ("AccelerateTrainMode", "fast|loss|1", "'1' is not a ratio for loss", "fast|loss|1.05"),
    ("AccelerateTrainMode", "fast|loss|1.51", "'1.51' is not a ratio for loss", "fast|loss|1.05"),
    ("AccelerateTrainMode", "fast|step|nan", "'nan' is not a ratio for step", "fast|step|0.9"),
    ("AccelerateTrainMode", "fast|step|", "'' is not a ratio for step", "fast|step|0.9"),
    ("AccelerateTrainMode", 0.9, "0.9 is not text", ""),
    ("ShapeRange", "getnext", "'getnext' is not group:shapes", ""),
    ("ShapeRange", "Data:[1]", "'Data' is not a group of inputs", "data"),
    ("ShapeRange", "data:1,2", "'1,2' is not a list of shapes in brackets, separated by commas", ""),
    ("ShapeRange", "data:[1][2]", "'[1][2]' is not a list of shapes in brackets, separated by commas", ""),
    ("ShapeRange", "data:[[1]]", "'[[1]]' is not a list of shapes in brackets, separated by commas", ""),
    ("ShapeRange", "data:[1,x]", "'x' in [1,x] is neither a size, a range nor -1", ""),
    ("ShapeRange", "data:[1,,2]", "'' in [1,,2] is neither a size, a range nor -1", ""),
    ("ShapeRange", "data:[5~3]", "the range '5~3' runs backwards", "3~5"),
    ("ShapeRange", "data:[1~-1]", "'1~-1' in [1~-1] is neither a size, a range nor -1", ""),
    ("ShapeRange", "data:[1];data:[2]", "'data' stands twice", ""),
    ("ShapeRange", "data:[1];", "a part of 'data:[1];' is empty", "data:[1]"),
    ("InOutPair", " ", "the text is empty", ""),
    ("InOutPair", "[[conv1],[relu/3]]", "'[[conv1],[relu/3]]' is not lists of quoted names", "[['conv1'],['relu/3']]"),
    ("InOutPair", "__import__('os')", "\"__import__('os')\" is not lists of quoted names", ""),
    ("InOutPair", "[['a'],['b']", "the brackets and commas of \"[['a'],['b']\" do not fit", ""),
    ("InOutPair", "[['a']]", "\"[['a']]\" is not exactly one pair", ""),
    ("InOutPair", "['a', 'b']", "\"['a', 'b']\" is not a pair of lists", ""),
    ("InOutPair", "[['a'],['b'],['c']]", "\"[['a'],['b'],['c']]\" is not exactly one pair", ""),
    ("InOutPair", [[["a"], ["b"]], [["c"], ["d"]]], "[[['a'], ['b']], [['c'], ['d']]] is not exactly one pair", ""),
    ("InOutPair", [["a"], []], "a list of [['a'], []] names no operator", ""),
    ("InOutPair", [["a"], [5]], "5 is not the name of an operator", ""),
    ("InOutPair", [["a"], ["b c"]], "'b c' is not the name of an operator", ""),
    ("InOutPair", [["a"], ["b\\c"]], "'b\\\\c' is not the name of an operator", ""),
    ("InOutPair", [["a"], ["\u202e"]], "'\\u202e' is not the name of an operator", ""),
    ("InOutPair", 5, "5 is not a pair of lists", ""),
    ("InOutPair", "[" * 5000, None, ""),
    ("InOutPair", "[" * 100 + "]" * 100, None, ""),
]


@pytest.mark.parametrize(("name", "value", "text", "suggestion"), BAD)
def test_bad_values_name_the_part_that_is_wrong(name: str, value: Any, text: str | None, suggestion: str) -> None:
    with pytest.raises(BadValue) as error:
        kind(name).parse(value)
    assert text is None or error.value.text == text
    assert error.value.suggestion == suggestion
    assert error.value.allowed


@pytest.mark.parametrize("name", NAMES)
def test_numbers_of_thousands_of_digits(name: str) -> None:
    for value in (10**5000, [10**5000], [[10**5000]]):
        assert isinstance(outcome(kind(name), value), BadValue)


def test_the_ratio_that_is_wrong_tells_its_limits() -> None:
    with pytest.raises(BadValue) as error:
        kind("AccelerateTrainMode").parse("fast|loss|0.9")
    assert error.value.allowed == "1.01 to 1.5"


# --- everything that anybody could write ------------------------------------------------------------------------------

NEAR = st.text(alphabet="0123456789|-,;:~[]'\" \tx.fastepslogndatxDNN_VM_AICPU\x00\ud800", max_size=30)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | NEAR,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=6,
)


@pytest.mark.parametrize("name", NAMES)
@given(value=ANYTHING)
def test_nothing_raises_but_a_bad_value(name: str, value: Any) -> None:
    parsed = outcome(kind(name), value)
    if isinstance(parsed, BadValue):
        assert parsed.text
        assert parsed.allowed
    else:
        assert kind(name).parse(parsed) == parsed


def patterns(schema: dict[str, Any]) -> list[str]:
    return [form["pattern"] for form in schema.get("anyOf", [schema]) if "pattern" in form]


@pytest.mark.parametrize(("name", "value", "canonical"), GOOD)
def test_the_schema_takes_what_is_good(name: str, value: Any, canonical: str) -> None:
    (pattern,) = patterns(kind(name).schema())
    assert re.search(pattern, canonical)
    assert not isinstance(value, str) or re.search(pattern, value)
    types = {form["type"] for form in kind(name).schema().get("anyOf", [kind(name).schema()])}
    assert {str: "string", list: "array", int: "integer"}[type(value)] in types


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DumpStep", "1,2"),
        ("DumpStep", "|".join("1" * 101)),
        ("InputShape", "data:1,x"),
        ("InputShape", "a:1;"),
        ("DynamicDims", "20,20"),
        ("DynamicDims", "0;1"),
        ("StreamParallel", "AICoreEngine:4"),
        ("StreamParallel", "AIcoreEngine:0"),
        ("DeviceList", "0,a"),
        ("AccelerateTrainMode", "fast"),
        ("AccelerateTrainMode", "slow|step"),
        ("ShapeRange", "data:1,2"),
        ("ShapeRange", "x:[1]"),
        ("InOutPair", "[[conv1],[relu3]]"),
    ],
)
def test_the_schema_refuses_what_a_pattern_can(name: str, value: str) -> None:
    (pattern,) = patterns(kind(name).schema())
    assert not re.search(pattern, value)


BEYOND_PATTERNS = "twice|too many|backwards|after it begins|as many|not a ratio|pair|do not fit|names no|is not the name"


@pytest.mark.full
@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=40)
@given(data=st.data())
def test_what_fits_the_pattern_is_taken_or_refused_for_more_than_its_form(name: str, data: st.DataObject) -> None:
    (pattern,) = patterns(kind(name).schema())
    parsed = outcome(kind(name), data.draw(st.from_regex(pattern)))
    if isinstance(parsed, BadValue):
        assert re.search(BEYOND_PATTERNS, parsed.text)
    else:
        assert re.search(pattern, parsed)
        assert kind(name).parse(parsed) == parsed


# --- values inside files ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("single", "value", "parsed"),
    [
        (DigitsKind(-1, 10, without=(0,)), "-1", -1),
        (DigitsKind(1, 100), "100", 100),
        (MegabytesKind(), "200MB", "200MB"),
        (MegabytesKind(), "4294967295MB", "4294967295MB"),
        (NameOrTypeKind(), "GatherV2", "GatherV2"),
        (NameOrTypeKind(), "opType::ReduceSum", "OpType::ReduceSum"),
    ],
)
def test_good_single_values(single: Kind, value: Any, parsed: Any) -> None:
    assert single.parse(value) == parsed


@pytest.mark.parametrize(
    ("single", "value", "text", "suggestion"),
    [
        (DigitsKind(-1, 10, without=(0,)), "0", "0 has no meaning", ""),
        (DigitsKind(-1, 10), "-2", "-2 is out of range", ""),
        (DigitsKind(1, 100), "5%", "'5%' is not a whole number", ""),
        (DigitsKind(1, 100), "9" * 30, f"'{'9' * 30}' is not a whole number", ""),
        (MegabytesKind(), "300 mb", "'300 mb' is not an amount", "300MB"),
        (MegabytesKind(), 300, "300 is not an amount", "300MB"),
        (MegabytesKind(), True, "True is not an amount", ""),
        (MegabytesKind(), "1GB", "'1GB' is not an amount", ""),
        (MegabytesKind(), "199MB", "'199MB' is out of range", ""),
        (MegabytesKind(), "4294967296MB", "'4294967296MB' is out of range", ""),
        (NameOrTypeKind(), "OpType::", "'OpType::' names no operator", ""),
        (NameOrTypeKind(), "", "'' names no operator", ""),
        (NameOrTypeKind(), "Type::Add", "'Type::Add' has no meaning", "OpType::Add"),
    ],
)
def test_bad_single_values(single: Kind, value: Any, text: str, suggestion: str) -> None:
    with pytest.raises(BadValue) as error:
        single.parse(value)
    assert (error.value.text, error.value.suggestion) == (text, suggestion)
    assert error.value.allowed
