"""Graphs that torchair hands to CANN's engine: the options and paths that go with each and with the engine, and frozen weights."""

from collections.abc import Callable

import pytest

pytestmark = pytest.mark.full


def test_options_of_graphs_reach_the_graph_engine(compiling):
    compiling("""
with msctx.context(atomic_clean_policy=0, host_scheduling_max_threshold=20, ge_options={"session": {"ge.new": "x"}}):
    found = sent("AddGraph", compiled())
    assert found["ge.exec.atomicCleanPolicy"] == "0", "over what torchair has fixed"
    assert found["ge.exec.hostSchedulingMaxThreshold"] == "20"
    assert found["ge.new"] == "x"
found = sent("AddGraph", compiled())
assert found["ge.exec.atomicCleanPolicy"] == "1"
assert "ge.new" not in found
""")


def test_dumps_and_tuning_of_graphs(compiling):
    compiling("""
import json, os, tempfile
from pathlib import Path
folder = Path(tempfile.mkdtemp())
os.chdir(folder)  # torchair writes beside
from torchair._ge_concrete_graph.fx2ge_converter import GeConcreteGraph
tuned = []
GeConcreteGraph.auto_tune = lambda self, inputs: tuned.append(self)  # the recorder has no tuner
compiled()  # the engine is initialised with a graph that is not dumped
def dumped():
    (file,) = Path("ge_dump_data_json").glob("*.json")
    return json.loads(file.read_text())["dump"]
for place in ("first", "second"):
    with msctx.context(session={"enable_dump": True}, dump_path=str(folder / place), dump_mode="all"):
        found = compiled()
    assert not [call for call in found if "dump" in call.lower() and not call.startswith("aclmdl")], found
    assert (folder / place).is_dir()
    (file,) = Path("ge_dump_data_json").glob("*.json")
    given = [call.removeprefix("aclmdlSetDump(")[:-1] for call in found if call.startswith("aclmdlSetDump(")]
    assert [Path(path).resolve() for path in given] == [file.resolve()], (place, given)
    assert dumped()["dump_mode"] == "all"
    assert dumped()["dump_path"] == str(folder / place)
    assert len(dumped()["dump_list"]) == 1
more = dict(dump_data="stats", dump_layer="MatMul_9", dump_step="0|2-3", quant_dumpable="1")
with msctx.context(session={"enable_dump": True}, dump_path=str(folder / "third"), **more):
    compiled()
assert [dumped()[key] for key in ("dump_data", "dump_step", "quant_dumpable")] == ["stats", "0|2-3", "1"], dumped()
assert "MatMul_9" in dumped()["dump_list"][0]["layer"]
assert not [call for call in compiled() if "dump" in call.lower()]
with msctx.context(aoe_tune_mode="online"):
    found = sent("AddGraph", compiled())
assert found["aoe_mode"] == "2"
assert len(tuned) == 1
(folder / "aoe.json").write_text('{"tune_optimization_level": "O1"}')
with msctx.context(device_target="Ascend", aoe_tune_mode="online", aoe_config={"job_type": "1"}):
    assert "aoe_mode" not in sent("AddGraph", compiled()), "how operators are fused is not tuned by CANN"
    assert len(tuned) == 1
    with msctx.context(aoe_config={"job_type": "2"}):
        found = sent("AddGraph", compiled())
assert (found["aoe_mode"], found["work_path"]) == ("2", str(folder))
assert len(tuned) == 2
with msctx.context(aoe_mode="2", aoe_config_file="aoe.json", work_path=str(folder / "first")):
    found = sent("AddGraph", compiled())
assert {"2", str(folder / "first"), str(folder / "aoe.json")} <= {*found.values()}, found
assert len(tuned) == 3
config = torchair.CompilerConfig()
assert "aoe_mode" not in sent("AddGraph", compiled(config))
assert config.aoe_config.aoe_mode.value is None
assert len(tuned) == 3
""")


def test_graph_mode_goes_to_torchair(ascend):
    ascend("""
        import contextlib, os, pathlib, tempfile
        model = torch.nn.Linear(4, 4).npu()
        x = torch.ones(2, 4).npu()
        calls()
        with msctx.context(mode="GRAPH_MODE", jit_compile="false"):
            try:
                model(x)
            except Exception:
                found = calls()
                if found[-1:] != ["CompileGraph()"]:  # there the recorder fails; all that fails before is a fault
                    raise
            else:
                raise AssertionError("the recorder compiles nothing")
        assert "AddGraph(ge.jit_compile=0)" in found
        os.chdir(tempfile.mkdtemp())
        with msctx.context(mode="GRAPH_MODE", graph_kernel_flags="--opt_level=1 --dump_as_text=1"), contextlib.suppress(TypeError):
            model(x)
        assert {path.suffix for path in pathlib.Path("graph_kernel_dump").iterdir()} == {".txt"}
        calls()
        assert not [call for call in found if "aclnn" in call], "no operator ran by itself"
        with msctx.context(mode="GRAPH_MODE", enable_graph_kernel=False):
            model(x)
        found = calls()
        assert not [call for call in found if "Graph" in call], found
        assert [call for call in found if "aclnn" in call], found
    """)


WITH_GRAPHS = (
    ({"ac_parallel_enable": "1"}, {"ac_parallel_enable": "1"}),
    (
        {"stream_max_parallel_num": "DNN_VM_AICPU:2,AIcoreEngine:4"},
        {"ge.streamMaxParallelNum": "DNN_VM_AICPU:2,AIcoreEngine:4"},
    ),
    ({"buffer_optimize": "off_optimize"}, {"ge.bufferOptimize": "off_optimize"}),
    ({"input_fusion_size": 1000}, {"ge.exec.input_fusion_size": "1000"}),
    ({"enable_small_channel": 1}, {"ge.enableSmallChannel": "1"}),
    (
        {"op_compiler_cache_mode": "force", "op_compiler_cache_dir": "kernels"},
        {"ge.op_compiler_cache_mode": "force", "ge.op_compiler_cache_dir": "HERE/kernels"},
    ),
    ({"op_debug_level": 1, "debug_dir": "sources"}, {"ge.opDebugLevel": "1", "ge.debugDir": "HERE/sources"}),
)


def test_an_option_goes_with_each_graph_inside_and_with_none_afterwards(compiling):
    compiling(f"""
import os, tempfile
os.chdir(tempfile.mkdtemp())
first = compiled()
assert not [call for call in first if call.startswith("GEInitialize(ac_parallel")]
plain = sent("AddGraph", first)
for options, inside in {WITH_GRAPHS}:
    inside = {{key: value.replace("HERE", os.getcwd()) for key, value in inside.items()}}
    with msctx.context(device_target="Ascend", strict=True, **options):
        assert sent("AddGraph", compiled()) == plain | inside, options
        with msctx.context(atomic_clean_policy=0):
            assert sent("AddGraph", compiled()) == plain | inside | {{"ge.exec.atomicCleanPolicy": "0"}}, options
    assert sent("AddGraph", compiled()) == plain, options
""")


def test_hf32_goes_with_each_graph(compiling):
    """torchair sends it to the engine alone, as it is with the first graph."""
    compiling("""
KEY = "ge.exec.allow_hf32"  # convolutions, products
with msctx.context(device_target="Ascend", strict=True, matmul_allow_hf32=True):
    found = compiled()
assert sent("GEInitialize", found)[KEY] == sent("AddGraph", found)[KEY] == "11"
assert sent("AddGraph", compiled())[KEY] == "10", "the engine still has 11"
with msctx.context(matmul_allow_hf32=True, conv_allow_hf32=False):
    assert sent("AddGraph", compiled())[KEY] == "01"
    with msctx.context(matmul_allow_hf32=False, ge_options={"session": {KEY: "11"}}):
        assert sent("AddGraph", compiled())[KEY] == "11"
torch.npu.matmul.allow_hf32 = True
with msctx.context(conv_allow_hf32=False):
    assert sent("AddGraph", compiled())[KEY] == "01", "what no option names is as the program has it"
""")


def test_the_engine_gets_its_options_with_the_first_graph_and_keeps_them(compiling, tmp_path):
    compiling(f"""
import warnings
from pathlib import Path
file, other = (Path({str(tmp_path)!r}) / name for name in ("a.json", "b.json"))
for one in (file, other):
    one.write_text('{{"Switch": {{"GraphFusion": {{"ALL": "off"}}}}}}')
def told(**options):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        with msctx.context(device_target="Ascend", **options):
            first = compiled()
    return first, [str(one.message) for one in found]
first, messages = told(fusion_switch_file=str(file))
for kind in ("GEInitialize", "Session"):
    assert sent(kind, first)["ge.fusionSwitchFile"] == str(file)
assert any("stays after this with-block" in text for text in messages), messages
later, messages = told(fusion_switch_file=str(other))
assert any("torchair has initialised the graph engine" in text for text in messages), messages
assert not sent("GEInitialize", later)
try:
    msctx.context(fusion_switch_file=str(other), strict=True).__enter__()
except msctx.StrictError as error:
    assert "comes too late" in str(error)
else:
    raise AssertionError("strict takes nothing that comes too late")
same, messages = told(fusion_switch_file=str(file))
assert not any("too late" in text for text in messages), messages
""")


def test_the_engine_counts_what_it_fuses_as_the_option_has_it(compiling):
    compiling("""
msctx.set_context(ge_options={"global": {"ge.exportCompileStat": "0"}})
found = compiled()
for kind in ("GEInitialize", "Session"):
    assert sent(kind, found)["ge.exportCompileStat"] == "0", kind
try:
    msctx.context(device_target="Ascend", export_compile_stat=1, strict=True).__enter__()
except msctx.StrictError as error:
    assert "ge.exportCompileStat=1 comes too late" in str(error), error
else:
    raise AssertionError("the engine keeps 0")
""")


MODULES = """
import os, tempfile, warnings
os.chdir(tempfile.mkdtemp())
warnings.simplefilter("ignore")
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2)).npu().eval()
def sent(rows=2, **options):
    calls()
    with msctx.context(device_target="Ascend", mode="GRAPH_MODE", graph_run_mode=0, **options), torch.inference_mode():
        try:
            model(torch.ones(rows, 4).npu())
        except Exception as error:
            found = calls()
            if found[-1:] != ["CompileGraph()"]:  # there the recorder fails; all that fails before is a fault
                raise
    pairs = [call.removeprefix("AddGraph(")[:-1].partition("=") for call in found if call.startswith("AddGraph(")]
    return {key: value for key, _, value in pairs}
"""


def test_frozen_weights_are_named_to_the_engine(graphs):
    graphs(
        MODULES
        + """
def frozen(**options):
    found = sent(**options)
    return found["frozen_parameter"], sorted(found["frozenInput"].split(","))
assert frozen() == ("0", ["0"] * 5)
assert frozen(frozen_variable=True) == ("1", ["0"] + ["1"] * 4), "two weights and two biases, and the input"
assert frozen() == ("0", ["0"] * 5)
"""
    )


def test_each_gear_is_a_graph_and_other_shapes_reach_no_engine(graphs):
    graphs(
        MODULES
        + """
gears = dict(input_shape="input:-1,4", dynamic_dims="2;8", dynamic_node_type=1)
for rows in (2, 8):
    assert f"[{rows}, 4]" in sent(rows, **gears)["ge.inputHintShape"]
try:
    sent(3, **gears)
except msctx.errors.GraphError as error:
    assert "input:3,4, which dynamic_dims does not list" in str(error)
else:
    raise AssertionError("3 is no gear")
assert not [call for call in calls() if "Graph" in call]
other = {**gears, "input_shape": "other:-1,4"}
try:
    sent(2, **other)
except msctx.errors.GraphError as error:
    assert "names other" in str(error), error
else:
    raise AssertionError("the argument has another name")
assert "[2, 4]" in sent(2, **{**other, "dynamic_node_type": 0})["ge.inputHintShape"], "inputs have their order"
assert "[3, 4]" in sent(3)["ge.inputHintShape"]
"""
    )


def test_torchs_cache_of_graphs_sends_nothing_to_cann(compiling):
    """enable_compile_cache keeps what inductor makes; the caches of CANN stay as the options of that name have them."""
    compiling("""
import os, tempfile
from torch_npu import _C
os.chdir(tempfile.mkdtemp())
kept = lambda: (_C._npu_getOption("ACL_OP_COMPILER_CACHE_MODE"), _C._npu_getOption("ACL_OP_COMPILER_CACHE_DIR"))
found, plain = kept(), sent("AddGraph", compiled())
with msctx.context(device_target="Ascend", enable_compile_cache=True, compile_cache_path="graphs") as ctx:
    assert msctx.state()["torch.compiler.cache"]["path"] == "graphs"
    assert kept() == found and sent("AddGraph", compiled()) == plain
    assert any("not for torchair's graphs" in row.reason for row in ctx.plan.rows if row.device == "ascend")
kernels = os.path.abspath("kernels").encode()
with msctx.context(device_target="Ascend", op_compiler_cache_mode="force", op_compiler_cache_dir="kernels"):
    with msctx.context(enable_compile_cache=True):
        assert kept() == (b"force", kernels) and msctx.state()["torch.compiler.cache"]["path"] == "."
    assert kept() == (b"force", kernels) and msctx.state()["torch.compiler.cache"]["path"] == "kernels"
assert kept()[0] == b"enable" and msctx.state()["torch.compiler.cache"] is None
""")


Run = Callable[..., str]
FOLDERS = """
import os, warnings
from pathlib import Path
first, second = (Path({!r}) / name for name in ("first", "second"))
for folder in (first, second):
    folder.mkdir()
    for name in ("a.json", "b.json"):
        (folder / name).write_text('{{"Switch": {{"GraphFusion": {{"ALL": "off"}}}}}}')
"""


@pytest.fixture
def compiling_in_folders(compiling, tmp_path):
    """Run a case with two folders, in which there are the files of fusion switches a.json and b.json."""
    return lambda code: compiling(FOLDERS.format(str(tmp_path)) + code)


def test_paths_lead_where_they_did_when_they_were_set(compiling_in_folders):
    compiling_in_folders("""
from torch_npu import _C
os.chdir(first)
msctx.set_context(device_target="Ascend", fusion_switch_file="a.json")
names = dict(op_compiler_cache_mode="force", op_compiler_cache_dir="kernels", debug_dir="sources")
with msctx.context(**names, session={"enable_dump": True}, dump_path="dumps", dump_mode="all"):
    os.chdir(second)
    for _ in range(2):
        with msctx.context(atomic_clean_policy=0):
            found = compiled()
            assert sent("AddGraph", found)["ge.op_compiler_cache_dir"] == str(first / "kernels")
            assert sent("AddGraph", found)["ge.debugDir"] == str(first / "sources")
            assert _C._npu_getOption("ACL_OP_COMPILER_CACHE_DIR").decode() == str(first / "kernels")
    with msctx.context(op_compiler_cache_dir="others"):
        assert _C._npu_getOption("ACL_OP_COMPILER_CACHE_DIR").decode() == str(second / "others")
        assert sent("AddGraph", compiled())["ge.op_compiler_cache_dir"] == str(second / "others")
    torch.ones(4, device="npu").erfinv_()  # now CANN gets the options of compiled operators
    given = calls("aclSetCompileopt(ACL_OP_COMPILER_CACHE_DIR", "aclSetCompileopt(ACL_DEBUG_DIR")
    assert f"aclSetCompileopt(ACL_OP_COMPILER_CACHE_DIR, {first / 'kernels'})" in given, given
    assert f"aclSetCompileopt(ACL_DEBUG_DIR, {first / 'sources'})" in given, given
    assert (first / "dumps").is_dir() and not (second / "dumps").exists()
with msctx.context(aoe_tune_mode="offline", work_path="tuned"):
    os.chdir(first)
assert recorded() == [f"aclGenGraphAndDumpForOp(MatMul, {second / 'tuned'})"]
""")


def test_the_same_relative_path_under_another_directory_is_other_code(compiling_in_folders):
    """Compiled code keeps the place that it was given, and is not run where the text means another one."""
    compiling_in_folders("""
places = []
function = torch.compile(lambda a: a + 1, backend=lambda graph, inputs: places.append(os.getcwd()) or graph.forward)
names = ("debug_dir", "op_compiler_cache_dir", "dump_path")
for name in names:
    for folder in (first, second, first, second):
        os.chdir(folder)
        dumps = dict(session={"enable_dump": True}) if name == "dump_path" else {}
        with msctx.context(device_target="Ascend", **dumps, **{name: "kept"}):
            os.chdir("/")
            with msctx.context(seed=1):  # what is in force stays where it is
                function(torch.ones(2))
    assert len(places) == 2 * (names.index(name) + 1), (name, places)
""")
