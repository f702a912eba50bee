"""What Dynamo captures for torchair under options: the operators of each graph that is loaded, and those that run outside of one."""

import pytest

pytestmark = pytest.mark.full

MODEL = """
import os, tempfile, warnings
from torchair._ge_concrete_graph.ge_ir_pb2 import ModelDef
os.chdir(tempfile.mkdtemp())
def operators(digits):
    '''Of a graph: its operators in order, and the shapes of its inputs.'''
    (graph,) = ModelDef.FromString(bytes.fromhex(digits)).graph
    shapes = lambda op: [[*out.shape.dim] for out in op.output_desc] if op.type == "Data" else []
    return " ".join(op.type + "".join(map(str, shapes(op))).replace(" ", "") for op in graph.op)
class Rows(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.relu, self.talks = torch.nn.Linear(4, 16), torch.nn.ReLU(), False
    def forward(self, input):
        x = self.fc(input)
        if self.talks:
            print("here")
        return self.relu(x)
rows = Rows().npu()
three = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2)).npu()
def reached(model=rows, count=2, **options):
    '''What reaches CANN of a call: operators, and of graphs their operators up to the first that is to be compiled.'''
    x = torch.ones(count, 4).npu()
    calls()
    with msctx.context(device_target="Ascend", mode="GRAPH_MODE", **options):
        try:
            model(x)
        except msctx.GraphError:
            raise
        except Exception:
            found = calls()
            if found[-1:] != ["CompileGraph()"]:  # there the recorder fails; all that fails before is a fault
                raise
        else:
            found = calls()
            assert "CompileGraph()" not in found, "the recorder compiles nothing"
    names = [call.removesuffix(")").split("(") for call in found if call.startswith(("aclnn", "LoadGraph"))]
    return [operators(digits) if name == "LoadGraph" else name for name, digits in names]
def refused(**options):
    try:
        reached(**options)
    except msctx.GraphError as error:
        assert calls() == [], "nothing reaches CANN"
        return str(error)
    raise AssertionError("it was to be refused")
"""


@pytest.fixture
def capturing(graphs):
    return lambda code: graphs(MODEL + code)


def test_what_cannot_be_captured_splits_the_graph_or_keeps_all_from_the_engine(capturing):
    capturing("""
(whole,) = reached(jit_syntax_level="STRICT")
assert "MatMulV2" in whole and "Relu" in whole, whole
rows.talks = True
for level in ("LAX", "COMPATIBLE"):
    (first,) = reached(jit_syntax_level=level)
    assert "MatMulV2" in first and "Relu" not in first, (level, first)
assert "print" in refused(jit_syntax_level="STRICT")
""")


def test_sizes_that_may_change_are_open_in_the_graph(capturing):
    capturing("""
with msctx.context(compile_dynamic_mode=True):
    for count in (2, 3):
        (found,) = reached(count=count)
        assert "Data[-1,4]" in found, found
    (found,) = reached(compile_dynamic_mode=False)
    assert "Data[2,4]" in found and "-1" not in found, found
""")


def test_a_range_of_sizes_is_one_graph_or_one_for_each(capturing):
    capturing("""
ranges = {"dynamic_input": True, "dynamic_inputs_shape_range": "getnext:[2~9,4]"}
lazy = {**ranges, "dynamic_graph_execute_mode": "lazy_recompile"}
for count in (4, 5):
    (found,) = reached(count=count, **ranges)
    assert "Data[-1,4]" in found, found
    with msctx.context(**ranges):
        (found,) = reached(count=count, dynamic_graph_execute_mode="lazy_recompile")
        assert f"Data[{count},4]" in found and "-1" not in found, found
        (found,) = reached(count=count, dynamic_graph_execute_mode="dynamic_execute")
        assert "Data[-1,4]" in found, found
        (found,) = reached(count=count, dynamic_input=False)
        assert f"Data[{count},4]" in found, found
for options in (ranges, lazy):
    assert "input:10,4, which dynamic_inputs_shape_range does not list" in refused(count=10, **options)
""")


def test_one_side_of_a_region_is_a_graph_and_the_other_runs_by_operator(capturing):
    capturing("""
region = {"in_out_pair": "[['1'], ['1']]", "mix_compile_mode": True}
for gradients in (False, True):
    with torch.set_grad_enabled(gradients):
        before, inside = reached(three, **region)
        assert before == "aclnnAddmm" and "Relu" in inside and "MatMulV2" not in inside, (before, inside)
        (outside,) = reached(three, in_out_pair_flag=False, **region)
        assert "MatMulV2" in outside and "Relu" not in outside, outside
""")


def test_a_pass_replaces_its_pattern_before_torchair_gets_the_graph(capturing):
    capturing("""
class Clips(torch.nn.Module):
    def forward(self, x):
        return x.clamp(-1, 1).clamp(-0.5, 0.75)
count = lambda **options: reached(Clips(), **options)[0].count("ClipByValueV2")
assert count() == 2
with msctx.context(enable_scope_fusion_passes="ScopeClipBoxesPass"):
    assert count() == 1
    assert count(enable_scope_fusion_passes="ScopeLayerNormPass") == 2
assert count() == 2
""")


def test_the_level_of_fusion_decides_whether_there_is_a_graph(capturing):
    capturing("""
eager = ["aclnnAddmm", "aclnnRelu", "aclnnAddmm"]
with msctx.context(graph_kernel_flags="--opt_level=0"):
    assert reached(three) == eager
    for level in (1, 2, 3):
        (graph,) = reached(three, graph_kernel_flags={"opt_level": level})
        assert "MatMulV2" in graph, graph
    assert reached(three) == eager
with msctx.context(enable_graph_kernel=False):
    assert reached(three) == eager
    assert len(reached(three, graph_kernel_flags="--opt_level=2")) == 1
""")


def test_files_and_logs_of_what_is_captured(capturing):
    capturing("""
import logging
from pathlib import Path
told = set()
handler = logging.Handler()
handler.emit = lambda record: told.add(record.name.split(".")[1]) if record.levelno == logging.DEBUG else None
for name in ("torch._dynamo", "torch._functorch._aot_autograd"):
    logging.getLogger(name).addHandler(handler)
assert len(reached(save_graphs=3, save_graphs_path="graphs")) == 1
found = {path.name for path in Path("graphs").iterdir()}
assert "00_bootstrap_0000.ir" in found, found
assert any(name.startswith("16_validate") for name in found), found
assert not told
assert len(reached(debug_level=1)) == 1
assert told == {"_dynamo", "_functorch"}, told
""")


def test_what_is_only_compiled_reaches_nothing_and_returns_nothing(capturing):
    """torchair compiles a graph when it first runs, so that there is no graph either: the plan reports that."""
    capturing("""
x = torch.ones(2, 4).npu()
calls()
with msctx.context(device_target="Ascend", mode="GRAPH_MODE", precompile_only=True) as ctx:
    assert three(x) is None
    found = calls()
    assert not [call for call in found if "Graph" in call or "aclnn" in call], found
    (row,) = [row for row in ctx.plan.rows if row.device == "ascend" and row.option == "precompile_only"]
    assert row.status == "approximated" and "only captured here" in row.reason, row
    assert len(reached(three, precompile_only=False)) == 1
assert len(reached(three)) == 1
""")
