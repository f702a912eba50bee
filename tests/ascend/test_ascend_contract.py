"""What msctx says to torch_npu, torch_npu knows, by the wheel's own sources; each row of the Ascend column has a case or a reason."""

import ast
import mmap
import re
from collections.abc import Iterator
from pathlib import Path

import machine
import pytest
import yaml
from samples import values

import msctx
from msctx.options import OPTIONS
from msctx.plan import DONE
from msctx.reference import on_device
from msctx.switches import SWITCHES
from msctx.switches.accelerator import DEFAULTS, NOT_EXPANDABLE
from msctx.switches.torch_npu import ALLOW_HF32, DUMPS
from msctx.themes import cann_session
from msctx.themes import shared_by_themes as shared

PACKAGE = machine.ROOT / "msctx"
KEY = re.compile(r"ACL_[A-Z_]+|ALLOW_[A-Z0-9_]+|MM_BMM_ND_ENABLE|CUBE_MATH_TYPE|jitCompile\w*|mdldump\w+|autotune\w*")
"""What the names of torch_npu's options look like."""
OF_CANN = {"TE_PARALLEL_COMPILER", "HCCL_DETERMINISTIC"}
"""Variables that CANN reads, and not torch_npu."""


@pytest.fixture(scope="module")
def wheel():
    try:
        return machine.wheel() / "torch_npu"
    except machine.NotHere as why:
        pytest.skip(f"there is no torch_npu to compare with: {why}")


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _texts(tree: ast.AST) -> Iterator[str]:
    return (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str))


def _allowed(wheel: Path) -> dict[str, list[str] | None]:
    """Option → the values that torch_npu allows; ``None``: any, or those of a function."""
    (table,) = (
        node.value
        for node in _tree(wheel / "npu/npu_config.py").body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_option_map"
    )
    assert isinstance(table, ast.Dict)
    pairs = zip(table.keys, table.values, strict=True)
    return {ast.literal_eval(k): ast.literal_eval(v) if isinstance(v, ast.List) else None for k, v in pairs if k is not None}


def _keys_of_switches() -> dict[str, str]:
    """Switch → the option of torch_npu that it sets: both are arguments of the call that makes it."""
    found = {}
    for node in ast.walk(_tree(PACKAGE / "switches/torch_npu.py")):
        if isinstance(node, ast.Call):
            texts = [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
            if len(texts) > 1 and texts[0] in SWITCHES and KEY.fullmatch(texts[1]):
                found[texts[0]] = texts[1]
    return found


def _sent() -> dict[str, set[str]]:
    """Switch of torch_npu → every text that some plan assigns to it."""
    found: dict[str, set[str]] = {}
    needed = {"optypelist_for_implmode": {"op_select_implmode": "high_precision"}}
    for option in OPTIONS.values():
        for value in values(option):
            plan = msctx.explain({**needed.get(option.name, {}), option.name: value}, device="ascend")
            for switch, assigned in plan.assignments.items():
                if switch.startswith("torch.npu.") and isinstance(assigned, str):
                    found.setdefault(switch, set()).add(assigned)
    return found


def test_every_key_is_an_option_of_torch_npu(wheel):
    there = set(_allowed(wheel)) | set(_texts(_tree(wheel / "npu/npu_config.py")))
    ours = {text for path in (PACKAGE / "switches").glob("*.py") for text in _texts(_tree(path)) if KEY.fullmatch(text)}
    assert ours >= set(_keys_of_switches().values()) >= {"ACL_PRECISION_MODE", "ACL_OP_COMPILER_CACHE_DIR"}
    variables = {switch.removeprefix("env.") for switch in SWITCHES if switch.startswith("env.")}
    assert ours - variables - there - {"ACL_OP_COMPILER_CACHE_MODE", "ACL_OP_COMPILER_CACHE_DIR"} == set()


def test_every_value_is_one_that_torch_npu_allows(wheel):
    allowed, keys = _allowed(wheel), _keys_of_switches()
    sent = {keys[switch]: given for switch, given in _sent().items() if switch in keys}
    assert {"ACL_PRECISION_MODE", "ACL_OP_SELECT_IMPL_MODE", "ACL_OP_COMPILER_CACHE_MODE"} <= sent.keys()
    wrong = {key: given - set(allowed[key] or ()) for key, given in sent.items() if allowed.get(key)}
    assert {key: given for key, given in wrong.items() if given} == {}


def test_every_name_of_torch_npu_is_there(wheel):
    """``npu().name`` in the switches, and what those that CUDA and Ascend share call of both."""
    (shown,) = (
        ast.literal_eval(node.value)
        for node in _tree(wheel / "npu/__init__.py").body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    )
    used = set()
    for name in ("torch_npu.py", "accelerator.py"):
        for node in ast.walk(_tree(PACKAGE / "switches" / name)):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("npu()", "module()"):
                used.add(node.attr)
    assert {"set_device", "set_per_process_memory_fraction", "is_initialized"} <= used
    classes = {"matmul", "conv"}  # instances that npu_config makes
    assert used - set(shown) - classes == set()


def test_variables_and_settings_of_the_allocator_are_read_by_the_library(wheel):
    variables = {
        text
        for path in (PACKAGE / "switches").glob("*.py")
        for text in _texts(_tree(path))
        if re.fullmatch(r"env\.(HCCL_\w+|ACL_\w+|\w*NPU\w*)", text)
    }
    names = {text.removeprefix("env.") for text in variables} | set(DEFAULTS) | set(NOT_EXPANDABLE)
    with (wheel / "lib/libtorch_npu.so").open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        missing = {name for name in names - OF_CANN if data.find(name.encode()) < 0}
    assert "PYTORCH_NO_NPU_MEMORY_CACHING" in names
    assert missing == set()


def test_every_key_of_the_graph_engine_is_in_its_headers_or_in_torchair(wheel):
    ours = {OPTIONS[name].ge for name in cann_session.SENT} | shared.PINNED.keys() | {*DUMPS, ALLOW_HF32, shared.ALLOW_HF32}
    assert {"ge.jit_compile", "ac_parallel_enable", "ge.fusionSwitchFile", "ge.exec.dumpPath"} <= ours
    sources = (wheel / "include/ge/ge_api_types.h", *(wheel / "dynamo/torchair").rglob("*.py"))
    text = "\n".join(path.read_text(encoding="utf-8") for path in sources)
    assert {key for key in ours if f'"{key}"' not in text} == set()


def _applied() -> set[str]:
    return {option.name for option in OPTIONS.values() if on_device(option, "ascend").status in DONE}


def _set_in_cases() -> set[str]:
    """The options that a case sets, by their last word: ``dump_path=…``, ``"dump_path": …``."""
    cases = [path for path in (machine.ROOT / "tests/ascend").glob("test_*.py") if path != Path(__file__)]
    text = "\n".join(path.read_text(encoding="utf-8") for path in cases)
    return {name for name in OPTIONS if re.search(rf"\b{name.rpartition('.')[2]}(?:=|\"+: )(?!=)", text)}


def test_each_option_has_a_case_or_a_reason():
    why = yaml.safe_load((machine.ROOT / "tests/data/without_ascend_case.yaml").read_text(encoding="utf-8"))
    reasons = [name for names in why.values() for name in names]
    assert len(reasons) == len(set(reasons))
    assert _applied() - _set_in_cases() == set(reasons)
