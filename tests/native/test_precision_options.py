"""Each value of each option of precision acts on a CPU: seen in what reaches the kernels below autocast, not in our own report.

A row says what some operators read and give where the option is set, beside what else is set around it.
"""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from recorded import Recorded
from torch import nn
from torch.nn import functional as fn

import msctx

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.filterwarnings("ignore::msctx.MsctxWarning")]

CALLS = {
    "mm": lambda x: x @ x,
    "linear": lambda x: fn.linear(x, torch.eye(8)),  # its weight is float32
    "exp": torch.exp,
    "softmax": lambda x: torch.softmax(x, -1),
    "gelu": fn.gelu,
    "addcmul": lambda x: torch.addcmul(x, torch.ones(8, 8), x),
}
SHORT = {"f": torch.float32, "h": torch.float16, "b": torch.bfloat16}


def seen(probe: str) -> str:
    """``"mm h"``, called with float16: what its kernel was given and what came out, ``"f h"``."""
    name, _, dtype = probe.partition(" ")
    with Recorded() as recorded:
        y = CALLS[name](torch.linspace(0, 1, 64).view(8, 8).to(SHORT[dtype]))
    word = {dtype: short for short, dtype in SHORT.items()}
    return f"{word[recorded.calls[-1][1][0]]} {word[y.dtype]}"


MIXED = {"precision_mode": "allow_mix_precision_bf16"}
PLAIN = {"mm f": "f f", "mm h": "h h", "exp f": "f f", "exp h": "h h", "gelu f": "f f", "gelu h": "h h"}
OF_MODE = {
    "force_fp16": {"mm f": "h h", "mm b": "h h", "exp f": "h h", "gelu f": "h h"},
    "force_fp32": {"mm f": "f f", "mm h": "f f", "exp h": "f f", "gelu h": "f f"},
    "cube_fp16in_fp32out": {"mm f": "f f", "mm h": "f f", "exp h": "f f", "gelu h": "f f"},
    "allow_fp32_to_fp16": {"mm f": "h f", "mm b": "b b", "exp f": "f f", "gelu f": "f f"},
    "allow_fp32_to_bf16": {"mm f": "b f", "mm h": "h h", "exp f": "f f", "gelu f": "f f"},
    "allow_mix_precision": {"mm f": "h h", "exp h": "f f", "gelu h": "h h", "addcmul h": "f f"},
    "allow_mix_precision_fp16": {"mm f": "h h", "exp h": "f f", "gelu h": "h h", "addcmul h": "f f"},
    "allow_mix_precision_bf16": {"mm f": "b b", "exp b": "f f", "gelu b": "b b", "addcmul b": "f f"},
    "must_keep_origin_dtype": PLAIN,
}
ACCURATE, FAST = {"exp h": "f h", "softmax h": "f h"}, {"exp b": "b b", "softmax b": "b b"}
OF_IMPLMODE = {
    "high_precision": ({}, {**ACCURATE, "gelu h": "h h"}),
    "high_performance": ({"precision_mode": "force_fp32"}, {"exp h": "h h", "gelu h": "f f"}),
    "high_precision_for_all": ({}, {**ACCURATE, "gelu h": "f h", "mm h": "f h"}),
    "high_performance_for_all": ({"precision_mode": "force_fp32"}, {"exp h": "h h", "gelu h": "h h", "mm h": "h h"}),
}
ROWS = [
    *(("precision_mode", mode, {}, expected) for mode, expected in OF_MODE.items()),
    *(("session.precision_mode", mode, {}, expected) for mode, expected in OF_MODE.items() if mode != "allow_fp32_to_bf16"),
    ("session.precision_mode", "allow_fp32_to_bf16", {}, PLAIN),
    *(
        ("session.precision_mode_v2", v2, {}, OF_MODE[mode])
        for v2, mode in {
            "fp16": "force_fp16",
            "origin": "must_keep_origin_dtype",
            "cube_fp16in_fp32out": "cube_fp16in_fp32out",
            "mixed_float16": "allow_mix_precision",
            "mixed_bfloat16": "allow_mix_precision_bf16",
        }.items()
    ),
    *(
        (f"{group}.op_select_implmode", mode, around, expected)
        for group in ("session", "atc")
        for mode, (around, expected) in OF_IMPLMODE.items()
    ),
    *(("atc.builtin_impl_mode_ini", f"{mode}.ini", around, expected) for mode, (around, expected) in OF_IMPLMODE.items()),
    *(
        (
            f"{group}.optypelist_for_implmode",
            "SoftmaxV2",
            {"op_select_implmode": "high_precision"},
            {"softmax h": "f h", "exp h": "h h"},
        )
        for group in ("session", "atc")
    ),
    *(
        (f"{group}op_precision_mode", f"[ByOpType]\nexp={mode}\n", around, expected)
        for group in ("", "session.", "atc.")
        for mode, around, expected in (
            ("high_precision", {}, {"exp h": "f h", "softmax h": "h h"}),
            ("high_performance", MIXED, {"exp b": "b b", "softmax b": "f f"}),
        )
    ),
    *(
        ("session.modify_mixlist", json.dumps({colour: {move: names}}), MIXED, expected)
        for colour, move, names, expected in (
            ("black-list", "to-add", ["mm", "matmul"], {"mm b": "f f", "linear b": "b b"}),
            ("black-list", "to-remove", ["exp"], {"exp b": "b b", "exp f": "f f", "softmax b": "f f"}),
            ("white-list", "to-add", ["gelu"], {"gelu f": "b b", "exp f": "f f"}),
            ("white-list", "to-remove", ["linear"], {"linear b": "b b", "linear f": "f f", "mm f": "b b"}),
            ("gray-list", "to-add", ["linear", "exp"], {"linear b": "b b", "linear f": "f f", "exp b": "b b", "mm f": "b b"}),
            ("gray-list", "to-remove", ["gelu"], {"gelu b": "b b", "gelu f": "f f"}),
        )
    ),
    (
        "session.customize_dtypes",
        "OpType::exp:InputDtype:float32,OutputDtype:bfloat16",
        {},
        {"exp h": "f b", "softmax h": "h h"},
    ),
]
WITHOUT_EFFECT = [
    ("session.precision_mode_v2", "mixed_hif8", "refused"),
    ("session.precision_mode_v2", "cube_hif8", "refused"),
    ("atc.builtin_impl_mode_ini", "all_ops_impl_mode.ini", "inert"),
    *(
        (f"{group}op_precision_mode", f"[ByOpType]\nexp={mode}\n", "approximated")
        for group in ("session.", "atc.")
        for mode in ("enable_float_32_execution", "enable_hi_float_32_execution", "keep_fp16", "super_performance")
    ),
]
"""Values that change nothing here, and say so."""
FILES = ("op_precision_mode", "modify_mixlist", "customize_dtypes")


@pytest.fixture
def options(tmp_path):
    def made(path, value):
        if path.endswith(FILES):
            file = tmp_path / "file.ini"
            file.write_text(value)
            value = str(file)
        return {path: value}

    return made


@pytest.mark.parametrize(("path", "value", "around", "expected"), ROWS, ids=[f"{path}={value}" for path, value, *_ in ROWS])
def test_it_acts(path, value, around, expected, options):
    with msctx.context(**around) if around else nullcontext():
        before = {probe: seen(probe) for probe in expected}
        with msctx.context(**options(path, value)):
            assert {probe: seen(probe) for probe in expected} == expected
        assert {probe: seen(probe) for probe in expected} == before


@pytest.mark.parametrize(("path", "value", "status"), WITHOUT_EFFECT)
def test_what_changes_nothing_has_a_status_that_shows_it(path, value, status, options):
    ctx = msctx.context(**options(path, value))
    assert {row.status for row in ctx.plan.rows if row.device == "cpu"} == {status}
    with ctx:
        assert {probe: seen(probe) for probe in PLAIN} == PLAIN


def test_the_rows_cover_the_catalogue():
    catalogue = {row["path"]: row for row in json.loads((Path(__file__).parents[1] / "options" / "catalogue.json").read_text())}
    rows = {(path, value) for path, value, *_ in (*ROWS, *WITHOUT_EFFECT)}
    paths = ("precision_mode", "precision_mode_v2", "op_select_implmode", "builtin_impl_mode_ini")
    for path, row in catalogue.items():
        group, _, name = path.rpartition(".")
        if name in paths and group != "ascend_config":
            assert {(path, value) for value in row["values"]} <= rows, path


@pytest.mark.parametrize("path", ["session.op_precision_mode", "atc.op_precision_mode"])
def test_checked_indices(path, options):
    asked = options(path, "[ByOpType]\nembedding=support_out_of_bound_index\n")
    with msctx.context(**asked), pytest.raises(IndexError, match="support_out_of_bound_index"):
        fn.embedding(torch.tensor([9]), torch.ones(4, 2))


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        ("session.op_precision_mode", "[ByNodeName]\n1=high_precision\n", ["h", "f"]),
        ("session.customize_dtypes", "1::InputDtype:float32,float32,float32,OutputDtype:float16\n", ["h", "f"]),
    ],
)
def test_by_the_name_of_a_module(path, text, expected, options):
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).half()
    with msctx.context(**options(path, text)) as ctx:
        ctx.watch(net)
        with Recorded() as recorded:
            assert net(torch.ones(2, 4).half()).dtype == torch.float16
    assert [found[0] for name, found in recorded.calls if name == "addmm"] == [SHORT[short] for short in expected]
