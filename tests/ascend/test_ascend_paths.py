"""Paths on Ascend: where they lead that CANN and torchair open later, whatever directory the program is in by then."""

from collections.abc import Callable

import pytest

pytestmark = pytest.mark.full
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
