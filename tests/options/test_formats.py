"""What files and texts hold that options name: what each format takes, and what it says of everything else, and where."""

import json
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from msctx.options import OPTIONS, formats
from msctx.options.documents import Parsed
from msctx.options.formats import Format

FORMATS: dict[str, Format] = {o.content: getattr(formats, o.content) for o in OPTIONS.values() if o.content}


def read(name: str, text: str) -> Parsed:
    return FORMATS[name].parse(dedent(text), "f")


def at(parsed: Parsed, *path: str | int) -> str:
    """The place of a value, or with "" of a key, and what stands there."""
    mark = parsed.mark(path)
    assert mark is not None
    return f"{mark.line}:{mark.column} {mark.text[mark.column - 1 : mark.column - 1 + mark.width]}"


MIXED = """
{
  // black
  "black-list": { /* both */
     "to-remove": ["Xlog1py"],
     "to-add": ["MatMul", "Cast"]
  },
  # white
  "white-list": {"to-add": ["Xlog1py"]}
}
"""
DTYPES = """
# by name
net/Relu:0::InputDtype:float16,int8,OutputDtype:float, double
OpType::Relu:OutputDtype:bool
opType::Add : InputDtype : int64
"""
GOOD: list[tuple[str, str, Any]] = [
    ("ENV_CONFIG", "{}", {}),
    ("ENV_CONFIG", '{"rdr": {"x": null}, "new": [1]}', {"rdr": {"x": None}, "new": [1]}),  # its values are options
    ("SPEED_UP", '{"enable_task_opt": true, "level": 3}', {"enable_task_opt": True, "level": 3}),
    ("GRAPH_KERNEL_FLAGS", "", {}),
    ("GRAPH_KERNEL_FLAGS", " --opt_level=2  --dump_as_text\n", {"opt_level": "2", "dump_as_text": True}),
    ("GRAPH_KERNEL_FLAGS", "--other=1,2 --more", {"other": "1,2", "more": True}),
    (
        "OP_PRECISION_MODE",
        "Exp=super_performance\n[ByOpType]\nMatMul = high_precision\n[ByNodeName]\na/b:0=keep_fp16",
        {"ByOpType": {"Exp": "super_performance", "MatMul": "high_precision"}, "ByNodeName": {"a/b:0": "keep_fp16"}},
    ),
    ("OP_PRECISION_MODE", "", {"ByOpType": {}, "ByNodeName": {}}),
    (
        "MIXLIST",
        MIXED,
        {"black-list": {"to-remove": ["Xlog1py"], "to-add": ["MatMul", "Cast"]}, "white-list": {"to-add": ["Xlog1py"]}},
    ),
    *(
        ("MIXLIST", json.dumps(lists), lists)
        for lists in (
            {"black-list": {"to-remove": ["mm"]}, "white-list": {"to-remove": ["mm"]}},
            {
                "black-list": {"to-add": ["MatMul"]},
                "white-list": {"to-add": ["BatchMatMul"]},
            },  # CANN's types may share an operator
            {"gray-list": {"to-add": []}},
        )
    ),
    (
        "CUSTOMIZE_DTYPES",
        DTYPES,
        {
            "ByOpType": {"Relu": {"OutputDtype": ["bool"]}, "Add": {"InputDtype": ["int64"]}},
            "ByNodeName": {"net/Relu:0": {"InputDtype": ["float16", "int8"], "OutputDtype": ["float32", "float64"]}},
        },
    ),
    ("CUSTOMIZE_DTYPES", "", {"ByOpType": {}, "ByNodeName": {}}),
    ("OP_DEBUG", "op_debug_config=oom, dump_cce\n", {"op_debug_config": ["oom", "dump_cce"]}),
    (
        "OP_DEBUG",
        "op_debug_config = ccec_g\n# only these\nop_debug_list=GatherV2,opType::ReduceSum",
        {"op_debug_config": ["ccec_g"], "op_debug_list": ["GatherV2", "OpType::ReduceSum"]},
    ),
    (
        "FUSION_SWITCH",
        '{"Switch": {"GraphFusion": {"ALL": "off", "SoftmaxFusionPass": true}, "UBFusion": {"X": "on"}}}',
        {"Switch": {"GraphFusion": {"ALL": "off", "SoftmaxFusionPass": "on"}, "UBFusion": {"X": "on"}}},
    ),
    ("AOE", '{"tune_ops_name": ["a"], "feature": ["deeper_opat"]}', {"tune_ops_name": ["a"], "feature": ["deeper_opat"]}),
    (
        "OP_CACHE",
        "[op_compiler_cache]\nadk_version=1\nmax_op_cache_size=-1\nremain_cache_size_ratio=80\n",
        {"op_compiler_cache": {"adk_version": "1", "max_op_cache_size": -1, "remain_cache_size_ratio": 80}},
    ),
    (
        "PROFILING",
        '{"output":"./","training_trace":"on","task_time":"on","hccl":true,"fp_point":"","storage_limit":"200MB"}',
        {"output": "./", "training_trace": "on", "task_time": "on", "hccl": "on", "fp_point": "", "storage_limit": "200MB"},
    ),
]


@pytest.mark.parametrize(("name", "text", "data"), GOOD)
def test_good_content(name: str, text: str, data: Any) -> None:
    for written in (dedent(text), "\ufeff" + dedent(text).replace("\n", "\r\n")):
        parsed = FORMATS[name].parse(written, "f")
        assert parsed.problems == []
        assert json.dumps(parsed.data, sort_keys=True) == json.dumps(data, sort_keys=True)  # also tells 1 from true


def test_whether_the_value_is_a_file() -> None:
    assert {name for name, form in FORMATS.items() if not form.is_file} == {"GRAPH_KERNEL_FLAGS", "PROFILING"}


# fmt: off
BAD = [
    ("ENV_CONFIG", "[1]", "1:1 : [1] is not a dictionary", ""),
    ("SPEED_UP", '{"a": 1, "a": 2}', "1:10 a: is given twice; first on line 1", ""),
    ("SPEED_UP", "nothing", "1:1 : this is not JSON: Expecting value", ""),
    ("GRAPH_KERNEL_FLAGS", "opt_level=2", "1:1 : 'opt_level=2' is not a flag", "--opt_level=2"),
    ("GRAPH_KERNEL_FLAGS", "-opt_level", "1:1 : '-opt_level' is not a flag", "--opt_level"),
    ("GRAPH_KERNEL_FLAGS", "--a=b=c", "1:1 : '--a=b=c' is not a flag", ""),
    ("GRAPH_KERNEL_FLAGS", "--a --", "1:5 : '--' is not a flag", ""),
    ("GRAPH_KERNEL_FLAGS", "--=3", "1:1 : '--=3' is not a flag", ""),
    ("GRAPH_KERNEL_FLAGS", "--a --b --a=1", "1:9 a: is given twice; first on line 1", ""),
    ("GRAPH_KERNEL_FLAGS", "--path=/nowhere.json", "1:8 path: '/nowhere.json' cannot be read: No such file or directory", ""),
    ("GRAPH_KERNEL_FLAGS", "--path=/dev/zero",
     "1:8 path: '/dev/zero' cannot be read: it is a device or a pipe, which may never end", ""),
    ("GRAPH_KERNEL_FLAGS", "--path", "1:1 path: '' cannot be read: no file is named", ""),
    ("OP_PRECISION_MODE", "[ByOpType]\nExp = high_precison", "2:7 ByOpType.Exp: 'high_precison' is not one of the values",
     "high_precision"),
    ("OP_PRECISION_MODE", "Exp=", "1:5 ByOpType.Exp: '' is not one of the values", ""),
    ("OP_PRECISION_MODE", "[ByNodeNames]", "1:1 ByNodeNames: unknown key", "ByNodeName"),
    ("OP_PRECISION_MODE", "Exp", "1:1 ByOpType: 'Exp' is not key=value", ""),
    ("OP_PRECISION_MODE", "mm=keep_fp16\n[ByOpType]\nmm=keep_fp16", "3:1 ByOpType.mm: is given twice; first on line 1", ""),
    ("OP_PRECISION_MODE", "Sofmax=keep_fp16", "1:1 ByOpType.Sofmax: 'Sofmax' is no operator that policies govern",
     "softmax or _softmax or SoftmaxV2"),
    ("OP_PRECISION_MODE", "mm=high_precision\nMatMul=high_performance",
     "2:8 ByOpType.MatMul: MatMul and mm are one operator, and their values differ: high_performance and high_precision", ""),
    ("CUSTOMIZE_DTYPES", "OpType::mm:InputDtype:float16\nOpType::MatMul:InputDtype:float32",
     "2:16 ByOpType.MatMul: MatMul and mm are one operator, and their values differ: InputDtype:float32 and InputDtype:float16",
     ""),
    ("MIXLIST", '{"black-list": {"to-add": ["mm"]}, "white-list": {"to-add": ["MatMul"]}}',
     "1:62 white-list.to-add.0: MatMul stands in black-list.to-add already as mm", ""),
    ("MIXLIST", '{ // x\n"blak-list": {}}', "2:1 blak-list: unknown key", "black-list"),
    ("MIXLIST", '{"black-list": {"to_add": []}}', "1:17 black-list.to_add: unknown key", "to-add"),
    ("MIXLIST", '{"black-list": ["A"]}', "1:16 black-list: ['A'] is not a dictionary", ""),
    ("MIXLIST", '{"black-list": {"to-add": "A"}}', "1:27 black-list.to-add: 'A' is not a list", '["A"]'),
    ("MIXLIST", '{"black-list": {"to-add": ["mm", 5]}}', "1:34 black-list.to-add.1: 5 is not text", "5"),
    ("MIXLIST", '{"black-list": {"to-add": ["mm"]},\n"white-list": {"to-add": ["mv", "mm"]}}',
     "2:33 white-list.to-add.1: mm stands in black-list.to-add already", ""),
    ("MIXLIST", '{"black-list": {"to-add": ["mm"], "to-remove": ["mm"]}}',
     "1:49 black-list.to-remove.0: mm stands in black-list.to-add already", ""),
    ("MIXLIST", '{"black-list": {"to-add": ["mm", "mm"]}}', "1:34 black-list.to-add.1: mm stands in black-list.to-add already",
     ""),
    ("CUSTOMIZE_DTYPES", "Relu:InputDtype:int8", "1:1 : the line does not begin with name:: or OpType::Type:", ""),
    ("CUSTOMIZE_DTYPES", "::InputDtype:int8", "1:1 : the line does not begin with name:: or OpType::Type:", ""),
    ("CUSTOMIZE_DTYPES", "OpType::Relu", "1:1 : the line does not begin with name:: or OpType::Type:", ""),
    ("CUSTOMIZE_DTYPES", "# x\na::int8", "2:4 ByNodeName.a: neither InputDtype: nor OutputDtype: follows", ""),
    ("CUSTOMIZE_DTYPES", "a::", "1:4 ByNodeName.a: neither InputDtype: nor OutputDtype: follows", ""),
    ("CUSTOMIZE_DTYPES", "a::x,InputDtype:int8", "1:4 ByNodeName.a: neither InputDtype: nor OutputDtype: follows", ""),
    ("CUSTOMIZE_DTYPES", "OpType::mm:InputDtypes:int8", "1:12 ByOpType.mm.InputDtypes: unknown key", "InputDtype"),
    ("CUSTOMIZE_DTYPES", "a::InputDtype:int8,InputDtype:int8", "1:20 ByNodeName.a.InputDtype: is given twice; first on line 1",
     ""),
    ("CUSTOMIZE_DTYPES", "a::InputDtype:int8\n\na::InputDtype:int8", "3:1 ByNodeName.a: is given twice; first on line 1", ""),
    ("CUSTOMIZE_DTYPES", "a::InputDtype:int8, flot16,OutputDtype:int8",
     "1:21 ByNodeName.a.InputDtype.1: 'flot16' is not one of the values", "float16"),
    ("CUSTOMIZE_DTYPES", "a::InputDtype:,int8", "1:15 ByNodeName.a.InputDtype.0: '' is not one of the values", ""),
    ("CUSTOMIZE_DTYPES", "a::OutputDtype:int8,", "1:21 ByNodeName.a.OutputDtype.1: '' is not one of the values", ""),
    ("OP_DEBUG", "", "1:1 : op_debug_config is missing", ""),
    ("OP_DEBUG", "op_debug_config=oom, dump_ccee", "1:22 op_debug_config.1: 'dump_ccee' is not one of the values", "dump_cce"),
    ("OP_DEBUG", "op_debug_config=oom,ccec_O0", "1:17 op_debug_config: ccec_O0 and oom exclude each other",
     "leave one of the two out"),
    ("OP_DEBUG", "op_debug_config=oom\nop_debug_lists=A", "2:1 op_debug_lists: unknown key", "op_debug_list"),
    ("OP_DEBUG", "op_debug_config=oom\nop_debug_list=A,,B", "2:17 op_debug_list.1: '' names no operator", ""),
    ("OP_DEBUG", "op_debug_config=oom\n[x]", "2:1 : '[x]' is not key=value", ""),
    ("FUSION_SWITCH", "{}", "1:1 : Switch is missing", ""),
    ("FUSION_SWITCH", '{"Switch": {"GraphFusion": {"ALL": "Off"}}}',
     "1:36 Switch.GraphFusion.ALL: 'Off' is not one of the values", "off"),
    ("FUSION_SWITCH", '{"Switch": {"Graphfusion": {}}}', "1:13 Switch.Graphfusion: unknown key", "GraphFusion"),
    ("AOE", '{"tune_optimization_level": "O3"}', "1:29 tune_optimization_level: 'O3' is not one of the values", ""),
    ("AOE", '{"feature": ["deeper"]}', "1:14 feature.0: 'deeper' is not one of the values", "deeper_opat"),
    ("AOE", '{"tune_ops_name": [""]}', "1:20 tune_ops_name.0: the text is empty", ""),
    ("OP_CACHE", "", "1:1 : op_compiler_cache is missing", ""),
    ("OP_CACHE", "[op_compiler_cache]\nmax_op_cache_size=5", "1:1 op_compiler_cache: remain_cache_size_ratio is missing", ""),
    ("OP_CACHE", "[op_compiler_cache]\nmax_op_cache_size=0\nremain_cache_size_ratio=1",
     "2:19 op_compiler_cache.max_op_cache_size: 0 is out of range", ""),
    ("OP_CACHE", "[op_compiler_cache]\nmax_op_cache_size=1\nremain_cache_size_ratio=101",
     "3:25 op_compiler_cache.remain_cache_size_ratio: 101 is out of range", ""),
    ("PROFILING", "on", "1:1 : this is not JSON: Expecting value", ""),
    ("PROFILING", '{"storage_limit": "10"}', "1:19 storage_limit: '10' is not an amount", ""),
    ("PROFILING", '{"storage_limit": "100MB"}', "1:19 storage_limit: '100MB' is out of range", ""),
    ("PROFILING", '{"training_trace": "ture"}', "1:20 training_trace: 'ture' is not one of the values", "true"),
    ("PROFILING", '{"task_time": "l2"}', "1:15 task_time: 'l2' is not one of the values", ""),
    ("PROFILING", '{"task_trace": "l0", "task_time": "l0"}',
     "1:22 task_time: task_trace and task_time are one key; it is set twice", ""),
    ("PROFILING", '{"task_time": "on"}', "1:15 task_time: on needs training_trace",
     '"training_trace": "on" must stand beside it'),
    ("PROFILING", '{"outputs": ""}', "1:2 outputs: unknown key", "output"),
]
# fmt: on


@pytest.mark.parametrize(("name", "text", "words", "suggestion"), BAD)
def test_bad_content(name: str, text: str, words: str, suggestion: str) -> None:
    (problem,) = read(name, text).problems
    assert (f"{problem.mark} {problem.path}: {problem.text}", problem.suggestion) == (f"f:{words}", suggestion)


def test_what_is_allowed_is_shown() -> None:
    for name, text, allowed in (
        ("MIXLIST", '{"blak-list": {}}', "black-list, white-list, gray-list"),
        ("MIXLIST", '{"black-list": {"to-ad": []}}', "to-add, to-remove"),
        ("MIXLIST", '{"black-list": []}', '{"key": value}'),
        ("CUSTOMIZE_DTYPES", "OpType::mm:Input:int8", "InputDtype, OutputDtype"),
        ("FUSION_SWITCH", '{"Switch": {"UBFusion": {"A": "x"}}}', "on (also true), off (also false)"),
        ("OP_CACHE", "[op_compiler_cache]\nmax_op_cache_size=x\nremain_cache_size_ratio=1", "from -1 to 2147483646, not 0"),
    ):
        (problem,) = read(name, text).problems
        assert problem.allowed.endswith(allowed)


def test_every_problem_is_reported_at_once_in_the_order_of_the_file() -> None:
    problems = read("OP_PRECISION_MODE", "[ByOpType]\nmm=x\nB\nmm=keep_fp16\n[Other]\nC=keep_fp16\n").problems
    assert [(p.mark.line, p.path) for p in problems if p.mark] == [
        *((2, "ByOpType.mm"), (3, "ByOpType"), (4, "ByOpType.mm"), (5, "Other"))
    ]


def test_places() -> None:
    parsed = read("ENV_CONFIG", '{\n"rdr": {"mode": 2},\n"sys": {\t"mem_Reuse": false}}')
    assert at(parsed, "rdr", "mode") == "2:17 2"
    assert at(parsed, "sys", "mem_Reuse", "") == '3:10 "mem_Reuse"'
    parsed = read("GRAPH_KERNEL_FLAGS", "--opt_level=20 --dump_as_text")
    assert at(parsed, "opt_level") == "1:13 20"
    assert at(parsed, "opt_level", "") == "1:1 --opt_level"
    assert at(parsed, "dump_as_text") == at(parsed, "dump_as_text", "") == "1:16 --dump_as_text"
    parsed = read("CUSTOMIZE_DTYPES", "# x\n  net/a::InputDtype: int8,bool ,OutputDtype:int8")
    path = ("ByNodeName", "net/a")
    assert at(parsed, *path, "") == "2:3 net/a"
    assert at(parsed, *path) == "2:10 InputDtype: int8,bool ,OutputDtype:int8"
    assert at(parsed, *path, "InputDtype", 1) == "2:27 bool"
    assert at(parsed, *path, "OutputDtype", 0) == "2:45 int8"


# --- flags in a file --------------------------------------------------------------------------------------------------


def test_flags_are_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "flags.json"
    file.write_text('{"opt_level": "3",\n"dump_as_text": "on", "c": "3"}')
    parsed = read("GRAPH_KERNEL_FLAGS", f"--a=1 --path={file} --b")
    assert parsed.problems == []
    assert parsed.data == {"a": "1", "opt_level": "3", "dump_as_text": "on", "c": "3", "b": True}
    assert str(parsed.mark(("opt_level",))) == f"{file}:1:15"
    assert str(parsed.mark(("dump_as_text", ""))) == f"{file}:2:1"
    assert str(parsed.mark(("b",))).startswith("f:1:")


def test_a_flag_beside_the_file_that_has_it_is_given_twice(tmp_path: Path) -> None:
    file = tmp_path / "flags.json"
    file.write_text('{"opt_level": "3"}')
    (problem,) = read("GRAPH_KERNEL_FLAGS", f"--path={file} --opt_level=1").problems
    assert problem.text == f"is given twice; first in {file}:1:2"
    assert str(problem.mark) == f"f:1:{len(f'--path={file} ') + 1}"


def test_what_is_wrong_in_a_file_of_flags(tmp_path: Path) -> None:
    file = tmp_path / "flags.json"
    for content, place, words in (
        ('{"a": "2"}', f"{file}:1:2", "is given twice"),
        ('{"c": 2}', f"{file}:1:7", "2 is not text"),
        ('{"path": "x"}', f"{file}:1:2", "is given twice"),
        ("[1]", "f:1:14", "the file holds no dictionary of flags"),
        ("{", f"{file}:1:2", "this is not JSON"),
    ):
        file.write_text(content)
        (problem,) = read("GRAPH_KERNEL_FLAGS", f"--a=1 --path={file} --b").problems
        assert str(problem.mark) == place
        assert problem.text.startswith(words)


# --- everything that anybody could write ------------------------------------------------------------------------------

WORDS = st.sampled_from(
    [
        *("rdr", "sys", "mem_Reuse", "mem_reuse", "black-list", "to-add", "to-remove", "Switch", "GraphFusion", "ALL"),
        *("feature", "task_time", "task_trace", "training_trace", "storage_limit", "on", "A", ""),
    ]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | WORDS | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS | st.text(max_size=3), inner, max_size=4),
    max_leaves=12,
)
LINES = st.lists(
    st.sampled_from(
        [
            *("[ByOpType]", "[op_compiler_cache]", "[", "a=keep_fp16", "op_debug_config=oom,ccec_O0,", "op_debug_list=a::b"),
            *("max_op_cache_size=0", "a::InputDtype:int8,OutputDtype:", "OpType::A:x:", "OpType::", "a::::", "# x", "="),
            *("--opt_level=99999999999999999999", "--a --a", "--path=", "--path=/", "\t\ufeff", "\ud800"),
        ]
    )
    | st.text(max_size=8)
).map("\n".join)


@settings(max_examples=60)
@given(text=JSON.map(json.dumps) | LINES | st.text())
def test_no_content_makes_it_raise(text: str) -> None:
    for name, form in FORMATS.items():
        parsed = form.parse(text, "f")
        assert isinstance(parsed.data, dict), name
        for problem in parsed.problems:
            assert problem.text
            assert problem.mark is not None, name
            assert str(problem)
        for key in parsed.data:
            assert parsed.mark((key,)) is not None
            assert parsed.mark((key, "")) is not None


def test_huge_nesting() -> None:
    for text in ("[" * 100_000, '{"Switch":' * 100_000, "{" * 100_000 + "}" * 100_000):
        assert [name for name, form in FORMATS.items() if not form.parse(text, "f").problems] == []
