"""Options whose text has a grammar: what each takes, the one form it takes it in, and what it says of everything else."""

import re
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from msctx.options import grammars
from msctx.options.formats import DigitsKind, MegabytesKind, NameOrTypeKind
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


# fmt: off
GOOD = [
    ("DumpStep", "0|3-5|10", "0|3-5|10"),
    ("DumpStep", 5, "5"),
    ("DumpStep", [0, '3-5', 10], "0|3-5|10"),
    ("DumpStep", ['0|1', 2], "0|1|2"),
    ("InputShape", "data:1,1,40,-1;label:1,-1;mask:-1,-1", "data:1,1,40,-1;label:1,-1;mask:-1,-1"),
    ("InputShape", " data : 1, -1 ; scale:0", "data:1,-1;scale:0"),
    ("InputShape", "import/x:0:3", "import/x:0:3"),
    ("InputShape", ['data:1,-1', 'mask:3'], "data:1,-1;mask:3"),
    ("DynamicDims", "20,20,1,1;40,40,2,2", "20,20,1,1;40,40,2,2"),
    ("DynamicDims", ['20,20', '40,40'], "20,20;40,40"),
    ("DynamicDims", [1, 2], "1;2"),
    ("StreamParallel", "DNN_VM_AICPU:2,AIcoreEngine:4", "DNN_VM_AICPU:2,AIcoreEngine:4"),
    ("StreamParallel", ['DNN_VM_AICPU:10'], "DNN_VM_AICPU:10"),
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
    ("ShapeRange", "getnext:[128,3~5,2~128,-1],[64,-1];data:[128,-1]", "getnext:[128,3~5,2~128,-1],[64,-1];data:[128,-1]"),
    ("ShapeRange", "data: [-1,-1,-1, 3] , [ ]", "data:[-1,-1,-1,3],[]"),
    ("ShapeRange", "data:[2 ~ 2]", "data:[2~2]"),
    ("ShapeRange", ['getnext:[1]', 'data:[]'], "getnext:[1];data:[]"),
    ("InOutPair", ' [["a/b:0" , "c"],["d",]] ', "[['a/b:0', 'c'], ['d']]"),
    ("InOutPair", "[[['a'], ['b']]]", "[['a'], ['b']]"),
    ("InOutPair", [[['a'], ['b']]], "[['a'], ['b']]"),
    ("DumpStep", " 0 | 3 - 5|7 ", "0|3-5|7"),
    ("InOutPair", [[YamlWord("on")], ["b"]], "[['on'], ['b']]"),
]
# fmt: on
# fmt: off
BAD = [
    ("DumpStep", "", "the text is empty", ""),
    ("DumpStep", [], "the text is empty", ""),
    ("DumpStep", "0||5", "a part of it is empty", "0|5"),
    ("DumpStep", "1|x|3", "'x' is not a step or a range of steps", ""),
    ("DumpStep", "1,2", "'1,2' is not a step or a range of steps", ""),
    ("DumpStep", "5-3", "the range '5-3' does not ascend", "3-5"),
    ("DumpStep", "0|4-4", "the range '4-4' does not ascend", "4"),
    ("DumpStep", -1, "'-1' is not a step or a range of steps", ""),
    ("DumpStep", "٣", "'٣' is not a step or a range of steps", ""),
    ("DumpStep", "1111111111111111111", "'1111111111111111111' is not a step or a range of steps", ""),
    ("DumpStep", True, "True is not text", ""),
    ("DumpStep", [True], "[True] is not text", ""),
    ("DumpStep", None, "None is not text", ""),
    ("DumpStep", {'a': 1}, "{'a': 1} is not text", ""),
    ("InputShape", "data", "'data' is not name:sizes", ""),
    ("InputShape", ":1", "':1' is not name:sizes", ""),
    ("InputShape", "data:1,x", "'data:1,x' is not name:sizes", ""),
    ("InputShape", "data:1,", "'data:1,' is not name:sizes", ""),
    ("InputShape", "data:1,-2", "'data:1,-2' is not name:sizes", ""),
    ("InputShape", "a:1;b:0,3", "'b:0,3' is not name:sizes", ""),
    ("InputShape", "a:1;b:2;a:3", "'a' is given twice", ""),
    ("InputShape", "a:1;", "a part of it is empty", "a:1"),
    ("InputShape", 5, "5 is not text", ""),
    ("DynamicDims", "20,20", "there are too few parts (1)", ""),
    ("DynamicDims", 20, "there are too few parts (1)", ""),
    ("DynamicDims", "20,20;40", "the gear '40' has not as many sizes as '20,20'", ""),
    ("DynamicDims", "1,0;2,2", "'1,0' is not a gear of sizes", ""),
    ("DynamicDims", "1;-1", "'-1' is not a gear of sizes", ""),
    ("DynamicDims", "1;2;", "a part of it is empty", "1;2"),
    ("StreamParallel", "AICoreEngine:4", "'AICoreEngine:4' is not an engine with a number", "AIcoreEngine"),
    ("StreamParallel", "DNN_VM_CPU:4", "'DNN_VM_CPU:4' is not an engine with a number", "DNN_VM_AICPU"),
    ("StreamParallel", "AIcoreEngine", "'AIcoreEngine' is not an engine with a number", ""),
    ("StreamParallel", "AIcoreEngine:0", "'AIcoreEngine:0' is not an engine with a number", ""),
    ("StreamParallel", "AIcoreEngine:1,AIcoreEngine:2", "'AIcoreEngine' is given twice", ""),
    ("DeviceList", "0,a", "'a' is not the number of a device", ""),
    ("DeviceList", [0, -1], "'-1' is not the number of a device", ""),
    ("DeviceList", "0,1,00", "'0' is given twice", ""),
    ("DeviceList", "0,,1", "a part of it is empty", "0,1"),
    ("DeviceList", [0.5], "[0.5] is not text", ""),
    ("AccelerateTrainMode", "fast", "'fast' is no such mode", ""),
    ("AccelerateTrainMode", "fast|step|0.9|1", "'fast|step|0.9|1' is no such mode", ""),
    ("AccelerateTrainMode", "Fast1|step", "'Fast1|step' is no such mode", ""),
    ("AccelerateTrainMode", "fast|steps", "'fast|steps' is no such mode", ""),
    ("AccelerateTrainMode", "fast|step|0.95", "0.95 is not a ratio for step", "fast|step|0.9"),
    ("AccelerateTrainMode", "fast|loss|1", "1 is not a ratio for loss", "fast|loss|1.05"),
    ("AccelerateTrainMode", "fast|loss|1.51", "1.51 is not a ratio for loss", "fast|loss|1.05"),
    ("AccelerateTrainMode", "fast|step|nan", "'fast|step|nan' is no such mode", ""),
    ("AccelerateTrainMode", "fast|step|", "'fast|step|' is no such mode", ""),
    ("AccelerateTrainMode", 0.9, "0.9 is no such mode", ""),
    ("ShapeRange", "getnext", "'getnext' is not a group of inputs with its shapes", ""),
    ("ShapeRange", "Data:[1]", "'Data:[1]' is not a group of inputs with its shapes", "data"),
    ("ShapeRange", "data:1,2", "'data:1,2' is not a group of inputs with its shapes", ""),
    ("ShapeRange", "data:[1][2]", "'data:[1][2]' is not a group of inputs with its shapes", ""),
    ("ShapeRange", "data:[[1]]", "'data:[[1]]' is not a group of inputs with its shapes", ""),
    ("ShapeRange", "data:[1,x]", "'data:[1,x]' is not a group of inputs with its shapes", ""),
    ("ShapeRange", "data:[1,,2]", "'data:[1,,2]' is not a group of inputs with its shapes", ""),
    ("ShapeRange", "data:[5~3]", "the range '5~3' does not ascend", "3~5"),
    ("ShapeRange", "data:[1~-1]", "'data:[1~-1]' is not a group of inputs with its shapes", ""),
    ("ShapeRange", "data:[1];data:[2]", "'data' is given twice", ""),
    ("ShapeRange", "data:[1];", "a part of it is empty", "data:[1]"),
    ("InOutPair", " ", "' ' is not one pair of lists with quoted names", ""),
    ("InOutPair", "[[conv1],[relu/3]]", "'[[conv1],[relu/3]]' is not one pair of lists with quoted names", ""),
    ("InOutPair", "__import__('os')", '"__import__(\'os\')" is not one pair of lists with quoted names', ""),
    ("InOutPair", "[['a'],['b']", '"[[\'a\'],[\'b\']" is not one pair of lists with quoted names', ""),
    ("InOutPair", "[['a']]", '"[[\'a\']]" is not one pair of lists with quoted names', ""),
    ("InOutPair", "['a', 'b']", '"[\'a\', \'b\']" is not one pair of lists with quoted names', ""),
    ("InOutPair", "[['a'],['b'],['c']]", '"[[\'a\'],[\'b\'],[\'c\']]" is not one pair of lists with quoted names', ""),
    ("InOutPair", [[['a'], ['b']], [['c'], ['d']]],
     "[[['a'], ['b']], [['c'], ['d']]] is not one pair of lists with quoted names", ""),
    ("InOutPair", [['a'], []], "[['a'], []] is not one pair of lists with quoted names", ""),
    ("InOutPair", [['a'], [5]], "[['a'], [5]] is not one pair of lists with quoted names", ""),
    ("InOutPair", [['a'], ['b c']], "[['a'], ['b c']] is not one pair of lists with quoted names", ""),
    ("InOutPair", [['a'], ['b\\c']], "[['a'], ['b\\\\c']] is not one pair of lists with quoted names", ""),
    ("InOutPair", [['a'], ['\u202e']], "[['a'], ['\\u202e']] is not one pair of lists with quoted names", ""),
    ("InOutPair", 5, "5 is not one pair of lists with quoted names", ""),
]
# fmt: on


def pattern(name: str) -> str:
    """The pattern of a text in the schema."""
    schema = kind(name).schema()
    (found,) = [form["pattern"] for form in schema.get("anyOf", [schema]) if "pattern" in form]
    return str(found)


@pytest.mark.parametrize(("name", "value", "canonical"), GOOD)
def test_good_values_have_one_form_and_fit_the_schema(name: str, value: Any, canonical: str) -> None:
    parsed = kind(name).parse(value)
    assert (type(parsed), parsed) == (str, canonical)
    assert kind(name).parse(parsed) == parsed
    assert re.search(pattern(name), canonical)
    assert not isinstance(value, str) or re.search(pattern(name), value)


@pytest.mark.parametrize(("name", "value", "text", "suggestion"), BAD)
def test_bad_values_name_the_part_that_is_wrong(name: str, value: Any, text: str, suggestion: str) -> None:
    with pytest.raises(BadValue) as error:
        kind(name).parse(value)
    assert (error.value.text, error.value.suggestion) == (text, suggestion)
    assert error.value.allowed


def test_what_no_machine_can_hold() -> None:
    many = [10**5000, [10**5000], [[10**5000]], "0" * 5000 + "1;2", "[" * 5000, "|".join("1" * 101), ";".join("1" * 101)]
    for name in NAMES:
        for value in many:
            assert isinstance(outcome(kind(name), value), BadValue), name


def test_a_ratio_that_is_wrong_shows_its_limits() -> None:
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


@given(value=ANYTHING)
def test_nothing_raises_but_a_bad_value(value: Any) -> None:
    for name in NAMES:
        parsed = outcome(kind(name), value)
        if isinstance(parsed, BadValue):
            assert parsed.text
            assert parsed.allowed
        else:
            assert kind(name).parse(parsed) == parsed


def test_the_schema_refuses_what_a_pattern_can() -> None:
    for name, value in (
        *(("DumpStep", "1,2"), ("DumpStep", "|".join("1" * 101)), ("InputShape", "data:1,x"), ("InputShape", "a:1;")),
        *(("DynamicDims", "20,20"), ("DynamicDims", "0;1"), ("StreamParallel", "AICoreEngine:4"), ("DeviceList", "0,a")),
        *(("AccelerateTrainMode", "slow|step"), ("ShapeRange", "data:1,2"), ("InOutPair", "[[conv1],[relu3]]")),
    ):
        assert not re.search(pattern(name), value), name


BEYOND_PATTERNS = "twice|too many|does not ascend|as many|not a ratio"


@pytest.mark.full
@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=40)
@given(data=st.data())
def test_what_fits_the_pattern_is_taken_or_refused_for_more_than_its_form(name: str, data: st.DataObject) -> None:
    text = data.draw(st.from_regex(pattern(name)))
    parsed = outcome(kind(name), text)
    if isinstance(parsed, BadValue):
        assert re.search(BEYOND_PATTERNS, parsed.text) or not text.isprintable()
    else:
        assert re.search(pattern(name), parsed)


# --- values inside files ----------------------------------------------------------------------------------------------


def test_single_values_in_files() -> None:
    good: list[tuple[Kind, Any, Any]] = [
        *((DigitsKind(-1, 10, zero=False), "-1", -1), (DigitsKind(1, 100), "100", 100)),
        *((MegabytesKind(), "200MB", "200MB"), (MegabytesKind(), "4294967295MB", "4294967295MB")),
        *((NameOrTypeKind(), "GatherV2", "GatherV2"), (NameOrTypeKind(), "opType::ReduceSum", "OpType::ReduceSum")),
    ]
    for single, value, parsed in good:
        assert single.parse(value) == parsed
    bad: list[tuple[Kind, Any, str]] = [
        *((DigitsKind(-1, 10, zero=False), "0", ""), (DigitsKind(-1, 10), "-2", ""), (DigitsKind(1, 100), "5%", "")),
        *((MegabytesKind(), 300, "300MB"), (MegabytesKind(), True, ""), (MegabytesKind(), "1GB", "")),
        *((MegabytesKind(), "199MB", ""), (MegabytesKind(), "4294967296MB", "")),
        *((NameOrTypeKind(), "OpType::", ""), (NameOrTypeKind(), "", ""), (NameOrTypeKind(), "Type::Add", "OpType::Add")),
    ]
    for single, value, suggestion in bad:
        with pytest.raises(BadValue) as error:
            single.parse(value)
        assert error.value.suggestion == suggestion
