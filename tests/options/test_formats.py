"""What files and texts hold that options name: what each format takes, and what it says of everything else, and where."""

import json
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from msctx.options import formats
from msctx.options.documents import Format, Parsed

NAMES = (
    *("ENV_CONFIG", "SPEED_UP", "GRAPH_KERNEL_FLAGS", "OP_PRECISION_MODE", "MIXLIST", "CUSTOMIZE_DTYPES"),
    *("OP_DEBUG", "FUSION_SWITCH", "AOE", "OP_CACHE", "PROFILING"),
)


def read(name: str, text: str) -> Parsed:
    form: Format = getattr(formats, name)
    return form.parse(dedent(text), "f")


def at(parsed: Parsed, *path: str | int) -> str:
    """The place of a value, or with "" of a key, and what stands there."""
    mark = parsed.mark(path)
    assert mark is not None
    return f"{mark.line}:{mark.column} {mark.text[mark.column - 1 : mark.column - 1 + mark.width]}"


GOOD: list[tuple[str, str, Any]] = [
    ("ENV_CONFIG", "{}", {}),
    (
        "ENV_CONFIG",
        '{"rdr": {"enable": true, "mode": 1, "path": "/tmp"}, "sys": {"mem_Reuse": false}}',
        {"rdr": {"enable": True, "mode": 1, "path": "/tmp"}, "sys": {"mem_reuse": False}},
    ),
    ("ENV_CONFIG", '{"rdr": {"x": null}, "new": [1]}', {"rdr": {"x": None}, "new": [1]}),  # its values are options
    ("SPEED_UP", '{"enable_task_opt": true, "level": 3}', {"enable_task_opt": True, "level": 3}),
    ("GRAPH_KERNEL_FLAGS", "", {}),
    ("GRAPH_KERNEL_FLAGS", " --opt_level=2  --dump_as_text\n", {"opt_level": 2, "dump_as_text": True}),
    ("GRAPH_KERNEL_FLAGS", "--opt_level=-1 --dump_as_text=off", {"opt_level": -1, "dump_as_text": False}),
    ("GRAPH_KERNEL_FLAGS", "--opt_level --dump_as_text=True", {"opt_level": True, "dump_as_text": True}),
    ("GRAPH_KERNEL_FLAGS", "--other=1=2 --more", {"other": "1=2", "more": True}),
    (
        "OP_PRECISION_MODE",
        "Exp=super_performance\n[ByOpType]\nMatMul = high_precision\n[ByNodeName]\na/b:0=keep_fp16",
        {"ByOpType": {"Exp": "super_performance", "MatMul": "high_precision"}, "ByNodeName": {"a/b:0": "keep_fp16"}},
    ),
    ("OP_PRECISION_MODE", "", {"ByOpType": {}, "ByNodeName": {}}),
    (
        "MIXLIST",
        """
        {
          "black-list": {                  // black
             "to-remove": ["Xlog1py"],     /* becomes
                                              grey */
             "to-add": ["MatMul", "Cast"]
          },
          # white
          "white-list": {"to-add": ["Xlog1py"]}
        }
        """,
        {"black-list": {"to-remove": ["Xlog1py"], "to-add": ["MatMul", "Cast"]}, "white-list": {"to-add": ["Xlog1py"]}},
    ),
    (
        "MIXLIST",
        '{"black-list": {"to-remove": ["mm"]}, "white-list": {"to-remove": ["mm"]}}',
        {"black-list": {"to-remove": ["mm"]}, "white-list": {"to-remove": ["mm"]}},
    ),
    (
        "MIXLIST",  # types of CANN's may share an operator
        '{"black-list": {"to-add": ["MatMul"]}, "white-list": {"to-add": ["BatchMatMul"]}}',
        {"black-list": {"to-add": ["MatMul"]}, "white-list": {"to-add": ["BatchMatMul"]}},
    ),
    ("MIXLIST", '{"gray-list": {"to-add": []}}', {"gray-list": {"to-add": []}}),
    (
        "CUSTOMIZE_DTYPES",
        """
        # by name
        net/Relu:0::InputDtype:float16,int8,OutputDtype:float, double
        OpType::Relu:OutputDtype:bool
        opType::Add : InputDtype : int64
        """,
        {
            "ByOpType": {"Relu": {"output": ["bool"]}, "Add": {"input": ["int64"]}},
            "ByNodeName": {"net/Relu:0": {"input": ["float16", "int8"], "output": ["float32", "float64"]}},
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
    (
        "AOE",
        '{"tune_ops_name": ["a/b"], "tune_ops_type": ["Add"], "tune_optimization_level": "O1", "feature": ["deeper_opat"]}',
        {"tune_ops_name": ["a/b"], "tune_ops_type": ["Add"], "tune_optimization_level": "O1", "feature": ["deeper_opat"]},
    ),
    (
        "OP_CACHE",
        "[op_compiler_cache]\nadk_version=1\nmax_op_cache_size=-1\nremain_cache_size_ratio=80\n",
        {"op_compiler_cache": {"adk_version": "1", "max_op_cache_size": -1, "remain_cache_size_ratio": 80}},
    ),
    (
        "PROFILING",
        '{"output":"./","training_trace":"on","task_time":"on","hccl":true,"aic_metrics":"PipeUtilization","msproftx":false}',
        {
            "output": "./",
            "training_trace": "on",
            "task_trace": "on",
            "hccl": "on",
            "aic_metrics": "PipeUtilization",
            "msproftx": "off",
        },
    ),
    ("PROFILING", '{"storage_limit": "200MB", "task_trace": "l0"}', {"storage_limit": "200MB", "task_trace": "l0"}),
    ("PROFILING", '{"fp_point": "", "bp_point": "a"}', {"fp_point": "", "bp_point": "a"}),
]


@pytest.mark.parametrize(("name", "text", "data"), GOOD)
def test_good_content(name: str, text: str, data: Any) -> None:
    for written in (dedent(text), "\ufeff" + dedent(text).replace("\n", "\r\n")):
        parsed = getattr(formats, name).parse(written, "f")
        assert parsed.problems == []
        assert json.dumps(parsed.data) == json.dumps(data)  # also tells 1 from true


FILES = {name: name not in ("GRAPH_KERNEL_FLAGS", "PROFILING") for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_whether_the_value_is_a_file(name: str) -> None:
    assert getattr(formats, name).is_file is FILES[name]


OPERATOR = "PyTorch's name of an operator (mm, conv2d, softmax …) or CANN's type (MatMul, Conv2D, SoftmaxV2 …)"
MODES = (
    "high_precision, high_performance, support_out_of_bound_index, enable_float_32_execution, "
    "enable_hi_float_32_execution, keep_fp16, super_performance"
)
LINE = "name::InputDtype:float16,…,OutputDtype:float16,… or OpType::Type:InputDtype:…,OutputDtype:…"

BAD = [
    # the form of files whose keys are options
    ("ENV_CONFIG", "[1]", "1:1", "", "[1] is not a dictionary", '{"key": value}', ""),
    ("ENV_CONFIG", '{"rdr": 5}', "1:9", "rdr", "5 is not a dictionary", '{"key": value}', ""),
    ("ENV_CONFIG", '{"sys": "x"}', "1:9", "sys", "'x' is not a dictionary", '{"key": value}', ""),
    (
        *("ENV_CONFIG", '{"sys": {"mem_reuse": true,\n"mem_Reuse": true}}', "2:1", "sys.mem_Reuse"),
        *("mem_reuse and mem_Reuse are one key; it is set twice", "", ""),
    ),
    ("ENV_CONFIG", '{"rdr": {"mode": 1e999}}', "1:18", "rdr.mode", "the number is too large", "", ""),
    ("SPEED_UP", '{"a": 1, "a": 2}', "1:10", "a", "stands twice; first on line 1", "", ""),
    ("SPEED_UP", "nothing", "1:1", "", "this is not JSON: nothing is neither a number nor quoted text", "", '"nothing"'),
    # flags
    ("GRAPH_KERNEL_FLAGS", "opt_level=2", "1:1", "", "'opt_level=2' is not a flag", "--name or --name=value", "--opt_level=2"),
    ("GRAPH_KERNEL_FLAGS", "-opt_level", "1:1", "", "'-opt_level' is not a flag", "--name or --name=value", "--opt_level"),
    ("GRAPH_KERNEL_FLAGS", "--a --", "1:5", "", "'--' is not a flag", "--name or --name=value", ""),
    ("GRAPH_KERNEL_FLAGS", "--=3", "1:1", "", "'--=3' is not a flag", "--name or --name=value", ""),
    ("GRAPH_KERNEL_FLAGS", "--a --b --a=1", "1:9", "a", "stands twice; first at f:1:1", "", ""),
    ("GRAPH_KERNEL_FLAGS", "--a\n --opt_level=x", "2:14", "opt_level", "'x' is not a whole number", "", ""),
    (
        *("GRAPH_KERNEL_FLAGS", "--dump_as_text=TRUE", "1:16", "dump_as_text", "'TRUE' is not a boolean"),
        *("true, True, on, 1, false, False, off, 0", "true"),
    ),
    (
        *("GRAPH_KERNEL_FLAGS", "--path=/nowhere.json", "1:8", "path"),
        *("'/nowhere.json' cannot be read: No such file or directory", "", ""),
    ),
    (
        *("GRAPH_KERNEL_FLAGS", "--path=/dev/zero", "1:8", "path"),
        *("'/dev/zero' cannot be read: it is a device or a pipe, which may never end", "", ""),
    ),
    ("GRAPH_KERNEL_FLAGS", "--path", "1:1", "path", "'' cannot be read: no file is named", "", ""),
    # modes of single operators
    (
        *("OP_PRECISION_MODE", "[ByOpType]\nExp = high_precison", "2:7", "ByOpType.Exp"),
        *("'high_precison' is not one of the values", MODES, "high_precision"),
    ),
    ("OP_PRECISION_MODE", "Exp=", "1:5", "ByOpType.Exp", "'' is not one of the values", MODES, ""),
    ("OP_PRECISION_MODE", "[ByNodeNames]", "1:1", "ByNodeNames", "there is no such key", "ByOpType, ByNodeName", "ByNodeName"),
    ("OP_PRECISION_MODE", "Exp", "1:1", "ByOpType", "'Exp' is not key=value", "key=value, one to a line", ""),
    (
        "OP_PRECISION_MODE",
        "mm=keep_fp16\n[ByOpType]\nmm=keep_fp16",
        "3:1",
        "ByOpType.mm",
        "stands twice; first on line 1",
        "",
        "",
    ),
    (
        "OP_PRECISION_MODE",
        "Sofmax=keep_fp16",
        "1:1",
        "ByOpType.Sofmax",
        "'Sofmax' is no operator that policies govern",
        OPERATOR,
        "softmax or _softmax or SoftmaxV2",
    ),
    (
        *("OP_PRECISION_MODE", "mm=high_precision\nMatMul=high_performance", "2:8", "ByOpType.MatMul"),
        *("MatMul and mm are one operator: high_performance and high_precision exclude each other", "", ""),
    ),
    (
        *("CUSTOMIZE_DTYPES", "OpType::mm:InputDtype:float16\nOpType::MatMul:InputDtype:float32", "2:16", "ByOpType.MatMul"),
        *("MatMul and mm are one operator, and have other dtypes", "", ""),
    ),
    # lists of operators
    (
        *("MIXLIST", '{"black-list": {"to-add": ["mm"]}, "white-list": {"to-add": ["MatMul"]}}', "1:62"),
        *("white-list.to-add.0", "MatMul stands in black-list.to-add already as mm", "", ""),
    ),
    (
        *("MIXLIST", '{ // x\n"blak-list": {}}', "2:1", "blak-list", "there is no such key"),
        *("black-list, white-list, gray-list", "black-list"),
    ),
    (
        *("MIXLIST", '{"black-list": {"to_add": []}}', "1:17", "black-list.to_add", "there is no such key"),
        *("to-add, to-remove", "to-add"),
    ),
    ("MIXLIST", '{"black-list": ["A"]}', "1:16", "black-list", "['A'] is not a dictionary", '{"key": value}', ""),
    (
        *("MIXLIST", '{"black-list": {"to-add": "A"}}', "1:27", "black-list.to-add", "'A' is not a list"),
        *('["a", "b"]', '["A"]'),
    ),
    (
        *("MIXLIST", '{"black-list": {"to-add": ["mm", 5]}}', "1:34", "black-list.to-add.1", "5 is not text"),
        *(OPERATOR, "5"),
    ),
    (
        *("MIXLIST", '{"black-list": {"to-add": ["mm"]},\n"white-list": {"to-add": ["mv", "mm"]}}', "2:33"),
        *("white-list.to-add.1", "mm stands in black-list.to-add already", "", ""),
    ),
    (
        *("MIXLIST", '{"black-list": {"to-add": ["mm"], "to-remove": ["mm"]}}', "1:49"),
        *("black-list.to-remove.0", "mm stands in black-list.to-add already", "", ""),
    ),
    (
        *("MIXLIST", '{"black-list": {"to-add": ["mm", "mm"]}}', "1:34"),
        *("black-list.to-add.1", "mm stands in black-list.to-add already", "", ""),
    ),
    # dtypes of operators
    ("CUSTOMIZE_DTYPES", "Relu:InputDtype:int8", "1:1", "", "the line does not begin with name::", LINE, ""),
    ("CUSTOMIZE_DTYPES", "::InputDtype:int8", "1:1", "", "the line does not begin with name::", LINE, ""),
    ("CUSTOMIZE_DTYPES", "OpType::Relu", "1:1", "", "the line does not begin with OpType::Type:", LINE, ""),
    ("CUSTOMIZE_DTYPES", "# x\na::int8", "2:4", "ByNodeName.a", "neither InputDtype: nor OutputDtype: follows", LINE, ""),
    ("CUSTOMIZE_DTYPES", "a::", "1:4", "ByNodeName.a", "neither InputDtype: nor OutputDtype: follows", LINE, ""),
    (
        "CUSTOMIZE_DTYPES",
        "a::x,InputDtype:int8",
        "1:4",
        "ByNodeName.a",
        "neither InputDtype: nor OutputDtype: follows",
        LINE,
        "",
    ),
    (
        *("CUSTOMIZE_DTYPES", "OpType::mm:InputDtypes:int8", "1:12", "ByOpType.mm", "'InputDtypes' is unknown"),
        *("InputDtype, OutputDtype", "InputDtype"),
    ),
    (
        *("CUSTOMIZE_DTYPES", "a::InputDtype:int8,InputDtype:int8", "1:20", "ByNodeName.a.input"),
        *("stands twice; first on line 1", "", ""),
    ),
    (
        *("CUSTOMIZE_DTYPES", "a::InputDtype:int8\n\na::InputDtype:int8", "3:1", "ByNodeName.a"),
        *("stands twice; first on line 1", "", ""),
    ),
    (
        *("CUSTOMIZE_DTYPES", "a::InputDtype:int8, flot16,OutputDtype:int8", "1:21", "ByNodeName.a.input.1"),
        *("'flot16' is not a dtype", None, "float16"),
    ),
    ("CUSTOMIZE_DTYPES", "a::InputDtype:,int8", "1:15", "ByNodeName.a.input.0", "a dtype is missing", None, ""),
    ("CUSTOMIZE_DTYPES", "a::OutputDtype:int8,", "1:21", "ByNodeName.a.output.1", "a dtype is missing", None, ""),
    # debugging
    ("OP_DEBUG", "", "1:1", "", "op_debug_config is missing", "", ""),
    (
        *("OP_DEBUG", "op_debug_config=oom, dump_ccee", "1:22", "op_debug_config.1", "'dump_ccee' is not one of the values"),
        *("oom, dump_cce, dump_loc, ccec_O0, ccec_g, check_flag", "dump_cce"),
    ),
    (
        *("OP_DEBUG", "op_debug_config=oom,ccec_O0", "1:17", "op_debug_config"),
        *("ccec_O0 and oom exclude each other", "", "leave one of the two out"),
    ),
    (
        *("OP_DEBUG", "op_debug_config=oom\nop_debug_lists=A", "2:1", "op_debug_lists", "there is no such key"),
        *("op_debug_config, op_debug_list", "op_debug_list"),
    ),
    (
        *("OP_DEBUG", "op_debug_config=oom\nop_debug_list=A,,B", "2:17", "op_debug_list.1", "'' names no operator"),
        *("the name of an operator, or OpType::Type", ""),
    ),
    ("OP_DEBUG", "op_debug_config=oom\n[x]", "2:1", "", "'[x]' is not key=value", "key=value, one to a line", ""),
    # fusion
    ("FUSION_SWITCH", "{}", "1:1", "", "Switch is missing", "", ""),
    (
        *("FUSION_SWITCH", '{"Switch": {"GraphFusion": {"ALL": "Off"}}}', "1:36", "Switch.GraphFusion.ALL"),
        *("'Off' is not one of the values", "on (also true), off (also false)", "off"),
    ),
    (
        *("FUSION_SWITCH", '{"Switch": {"Graphfusion": {}}}', "1:13", "Switch.Graphfusion", "there is no such key"),
        *("GraphFusion, UBFusion", "GraphFusion"),
    ),
    # tuning
    (
        *("AOE", '{"tune_optimization_level": "O3"}', "1:29", "tune_optimization_level"),
        *("'O3' is not one of the values", "O1, O2", ""),
    ),
    (
        *("AOE", '{"feature": ["deeper"]}', "1:14", "feature.0", "'deeper' is not one of the values"),
        *("deeper_opat, nonhomo_split", "deeper_opat"),
    ),
    ("AOE", '{"tune_ops_name": [""]}', "1:20", "tune_ops_name.0", "the text is empty", "the name of an operator", ""),
    # the cache of operators
    ("OP_CACHE", "", "1:1", "", "op_compiler_cache is missing", "", ""),
    (
        *("OP_CACHE", "[op_compiler_cache]\nmax_op_cache_size=5", "1:1", "op_compiler_cache"),
        *("remain_cache_size_ratio is missing", "", ""),
    ),
    (
        *("OP_CACHE", "[op_compiler_cache]\nmax_op_cache_size=0\nremain_cache_size_ratio=1", "2:19"),
        *("op_compiler_cache.max_op_cache_size", "0 has no meaning"),
        *("a whole number from -1 to 2147483646, but not 0", ""),
    ),
    (
        *("OP_CACHE", "[op_compiler_cache]\nmax_op_cache_size=1\nremain_cache_size_ratio=101", "3:25"),
        *("op_compiler_cache.remain_cache_size_ratio", "101 is out of range", "a whole number from 1 to 100", ""),
    ),
    # profiling
    ("PROFILING", "on", "1:1", "", "this is not JSON: on is neither a number nor quoted text", "", '"on"'),
    (
        *("PROFILING", '{"storage_limit": "100MB"}', "1:19", "storage_limit", "'100MB' is out of range"),
        *('"<n>MB" with n from 200 to 4294967295', ""),
    ),
    (
        *("PROFILING", '{"training_trace": "ture"}', "1:20", "training_trace", "'ture' is not one of the values"),
        *("on (also true), off (also false)", "true"),
    ),
    (
        *("PROFILING", '{"task_time": "l2"}', "1:15", "task_time", "'l2' is not one of the values"),
        *("on (also true), off (also false), l0, l1", ""),
    ),
    (
        *("PROFILING", '{"task_trace": "l0", "task_time": "l0"}', "1:22", "task_time"),
        *("task_trace and task_time are one key; it is set twice", "", ""),
    ),
    (
        *("PROFILING", '{"task_time": "on"}', "1:15", "task_trace", "on needs training_trace"),
        *("", '"training_trace": "on" must stand beside it'),
    ),
    ("PROFILING", '{"outputs": ""}', "1:2", "outputs", "there is no such key", None, "output"),
]


@pytest.mark.parametrize(("name", "text", "place", "path", "words", "allowed", "suggestion"), BAD)
def test_bad_content(name: str, text: str, place: str, path: str, words: str, allowed: str | None, suggestion: str) -> None:
    (problem,) = read(name, text).problems
    assert (str(problem.mark), problem.path, problem.text) == (f"f:{place}", path, words)
    assert problem.suggestion == suggestion
    assert problem.allowed if allowed is None else problem.allowed == allowed


def test_every_problem_is_told_at_once_in_the_order_of_the_file() -> None:
    text = """
    [ByOpType]
    mm=x
    B
    mm=keep_fp16
    [Other]
    C=keep_fp16
    """
    problems = read("OP_PRECISION_MODE", text).problems
    assert [(p.mark.line, p.path) for p in problems if p.mark] == [
        (3, "ByOpType.mm"),
        (4, "ByOpType"),
        (5, "ByOpType.mm"),
        (6, "Other"),
    ]


def test_a_bad_value_hides_no_rule_message_behind_it() -> None:
    (problem,) = read("OP_CACHE", "[op_compiler_cache]\nmax_op_cache_size=x\nremain_cache_size_ratio=1").problems
    assert problem.text == "'x' is not a whole number"  # and not that the key is missing


def test_a_file_that_is_no_json_has_no_data() -> None:
    parsed = read("FUSION_SWITCH", '{"Switch": ')
    assert len(parsed.problems) == 1
    assert parsed.data == {}


# --- places -----------------------------------------------------------------------------------------------------------


def test_places_of_keys_that_are_options() -> None:
    parsed = read("ENV_CONFIG", '{\n"rdr": {"mode": 2},\n"sys": {\t"mem_Reuse": false}}')
    assert at(parsed, "rdr", "mode") == "2:17 2"
    assert at(parsed, "rdr", "mode", "") == '2:9 "mode"'
    assert at(parsed, "sys", "mem_reuse") == "3:23 false"
    assert at(parsed, "sys", "mem_reuse", "") == '3:10 "mem_Reuse"'


def test_places_of_flags() -> None:
    parsed = read("GRAPH_KERNEL_FLAGS", "--opt_level=20 --dump_as_text")
    assert at(parsed, "opt_level") == "1:13 20"
    assert at(parsed, "opt_level", "") == "1:1 --opt_level"
    assert at(parsed, "dump_as_text") == at(parsed, "dump_as_text", "") == "1:16 --dump_as_text"
    assert parsed.mark(("nothing",)) == parsed.mark(())


def test_places_of_dtypes() -> None:
    parsed = read("CUSTOMIZE_DTYPES", "# x\n  net/a::InputDtype: int8,bool ,OutputDtype:int8")
    path = ("ByNodeName", "net/a")
    assert at(parsed, *path, "") == "2:3 net/a::"
    assert at(parsed, *path) == "2:10 InputDtype: int8,bool ,OutputDtype:int8"
    assert at(parsed, *path, "input", "") == "2:10 InputDtype"
    assert at(parsed, *path, "input", 1) == "2:27 bool"
    assert at(parsed, *path, "output", 0) == "2:45 int8"


# --- flags in a file --------------------------------------------------------------------------------------------------


def flags_file(folder: Path, content: str) -> tuple[str, Parsed]:
    file = folder / "flags.json"
    file.write_text(content)
    return str(file), read("GRAPH_KERNEL_FLAGS", f"--a=1 --path={file} --b")


def test_flags_are_read_from_a_file(tmp_path: Path) -> None:
    file, parsed = flags_file(tmp_path, '{"opt_level": 3,\n"dump_as_text": "on", "c": "3"}')
    assert parsed.problems == []
    assert parsed.data == {"a": "1", "opt_level": 3, "dump_as_text": True, "c": "3", "b": True}
    assert str(parsed.mark(("opt_level",))) == f"{file}:1:15"
    assert str(parsed.mark(("dump_as_text", ""))) == f"{file}:2:1"
    assert str(parsed.mark(("b",))).startswith("f:1:")


@pytest.mark.parametrize(
    ("content", "place", "words"),
    [
        ('{"a": 2}', "1:2", "stands twice; first at f:1:1"),
        ('{"path": "x"}', "1:2", "a file of flags cannot name another"),
        ('{"opt_level": "x"}', "1:15", "'x' is not a whole number"),
        ("[1]", "1:1", "the file holds no dictionary of flags"),
        ("{", "1:2", 'this is not JSON: a key in "double quotes" is missing'),
    ],
)
def test_what_is_wrong_in_a_file_of_flags(tmp_path: Path, content: str, place: str, words: str) -> None:
    file, parsed = flags_file(tmp_path, content)
    (problem,) = parsed.problems
    assert (str(problem.mark), problem.text) == (f"{file}:{place}", words)
    assert parsed.data == {"a": "1", "b": True}


def test_files_of_flags_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff\xfe{")
    for path, words in {
        str(tmp_path): "Is a directory",
        f"{tmp_path}/bytes": "it is not UTF-8 text (byte 0)",
        "~nobody-of-that-name/x": "Could not determine home directory.",
        "a\0b": "no system takes such a path",
    }.items():
        (problem,) = read("GRAPH_KERNEL_FLAGS", f"--path={path}").problems
        assert problem.text == f"{path!r} cannot be read: {words}"
        assert str(problem.mark) == "f:1:8"


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


@pytest.mark.parametrize("name", NAMES)
@given(text=JSON.map(json.dumps) | LINES | st.text())
def test_no_content_makes_it_raise(name: str, text: str) -> None:
    parsed = getattr(formats, name).parse(text, "f")
    assert isinstance(parsed.data, dict)
    assert "unreadable" not in repr(parsed.data) or "unreadable" in text
    for problem in parsed.problems:
        assert problem.text
        assert problem.mark is not None
        assert str(problem)
    for key in parsed.data:
        assert parsed.mark((key,)) is not None
        assert parsed.mark((key, "")) is not None


@pytest.mark.parametrize("name", NAMES)
def test_huge_nesting(name: str) -> None:
    for text in ("[" * 100_000, '{"Switch":' * 100_000, "{" * 100_000 + "}" * 100_000):
        assert getattr(formats, name).parse(text, "f").problems
