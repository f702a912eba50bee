"""precision_mode and its family come to one policy for each device."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from plans import check, planned, rows

from msctx import plan
from msctx.options.rules import PRECISION_MODES, PRECISION_MODES_V2

INI = "atc.builtin_impl_mode_ini"
Write = Callable[..., str]


@pytest.fixture
def file(tmp_path: Path) -> Write:
    def write(text: str, name: str = "list.ini") -> str:
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return write


def text(row: plan.Row, device: str = "cpu") -> dict[str, Any]:
    found: dict[str, Any] = json.loads(row.assignments[f"native.precision.{device}"])
    return found


def test_a_mode_is_a_policy() -> None:
    for mode in PRECISION_MODES:
        for device in ("cpu", "cuda"):
            row = rows({"precision_mode": mode}, on=device)["precision_mode"]
            assert row.status == ("approximated" if mode in ("force_fp16", "cube_fp16in_fp32out") else "honoured"), mode
            assert {*row.assignments} == {f"native.precision.{device}"}, "none of torch's own flags"
            assert text(row, device) == {"precision_mode": mode}
    for mode in PRECISION_MODES_V2:
        row = rows({"precision_mode_v2": mode})["precision_mode_v2"]
        if "hif8" in mode:
            assert (row.status, row.reason) == ("refused", "torch has no dtype HiFloat8")
        else:
            assert text(row) == {"precision_mode_v2": mode}
    forbidden = rows({"precision_mode": "force_fp16", "enable_reduce_precision": False})["precision_mode"]
    assert (forbidden.status, text(forbidden)["enable_reduce_precision"]) == ("honoured", False)
    reduced = rows({"enable_reduce_precision": True})["enable_reduce_precision"]
    assert (reduced.status, text(reduced)) == ("approximated", {"enable_reduce_precision": True})
    assert rows({"enable_reduce_precision": False})["enable_reduce_precision"].assignments == {}


def test_on_ascend_our_policy_holds(file: Write) -> None:
    """With HF32 allowed, as it is for convolutions, torch_npu's own allow_fp32_to_fp16 need not compute in float16; where float32
    stays, it must not lower it itself. Its options for implementations reach the operators that CANN compiles for the call alone;
    aclnn's never read them."""
    keeping = ("force_fp32", "must_keep_origin_dtype", "origin")
    for name, modes in (("precision_mode", PRECISION_MODES), ("precision_mode_v2", PRECISION_MODES_V2)):
        for mode in (mode for mode in modes if "hif8" not in mode):
            for more in ({}, {"op_precision_mode": file("[ByOpType]\nmm=high_precision\n")}):
                row = rows({name: mode} | more, on="ascend")[name]
                expected = "must_keep_origin_dtype" if mode in keeping else None
                assert row.assignments.get("torch.npu.precision_mode") == expected, mode
                assert "native.precision.ascend" in row.assignments
                assert ("910A" in row.reason) is (expected is not None), row
    for more, half_products, status, reason in (
        ({}, True, "approximated", "CANN refuses products and convolutions in float32"),
        ({"matmul_algo": "fp16x3"}, True, "approximated", "CANN refuses convolutions in float32"),
        ({}, False, "honoured", ""),
    ):
        row = rows({"precision_mode": "force_fp32"} | more, on="ascend", half_products=half_products)["precision_mode"]
        assert (row.status, row.assignments["torch.npu.precision_mode"]) == (status, "must_keep_origin_dtype")
        assert reason in row.reason if reason else not row.reason
    asked = {"op_select_implmode": "high_precision", "optypelist_for_implmode": "Pooling"}
    found = rows(asked, on="ascend")["op_select_implmode"].assignments
    assert {name: found[f"torch.npu.{name}"] for name in asked} == asked == json.loads(found["native.precision.ascend"])
    faster = rows({"op_select_implmode": "high_performance"}, on="ascend")["op_select_implmode"]
    assert (faster.status, faster.reason) == ("approximated", "in graphs torchair's ge.opSelectImplmode=high_precision holds")
    for options in (
        {"precision_mode": "allow_fp32_to_fp16", "op_precision_mode": file("[ByOpType]\nmm=high_precision\n")},
        {"op_select_implmode": "high_precision_for_all"},
        {"op_select_implmode": "high_precision", "optypelist_for_implmode": "softmax,MatMul"},
    ):
        assert rows(options, on="ascend")[next(iter(options))].assignments.keys() == {"native.precision.ascend"}, options


def test_all_add_to_one_text(file: Write) -> None:
    options = {
        "precision_mode": "allow_mix_precision",
        "modify_mixlist": file('{"black-list": {"to-add": ["mm"]}}', "a.json"),
        "customize_dtypes": file("OpType::Conv2D:InputDtype:float16\n", "a.cfg"),
        "op_precision_mode": file("[ByOpType]\nSoftmaxV2=high_precision\n"),
        "enable_reduce_precision": True,
    }
    (found,) = {row.assignments["native.precision.cpu"] for row in rows(options).values()}
    assert json.loads(found).keys() == options.keys()


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_frozen_weights_go_into_the_policy(device: str) -> None:
    for frozen in (True, False):
        found = rows({"precision_mode": "force_fp16", "frozen_weights": frozen}, on=device)
        assert ("frozen_weights" in text(found["precision_mode"], device)) is frozen
        assert found["frozen_weights"].status == "honoured" or not frozen
    without = rows({"precision_mode": "force_fp16", "frozen_weights": True}, on=device, native="there is no compiler")
    assert without["frozen_weights"].status != "honoured"


# --- which of them yields ---------------------------------------------------------------------------------------------


def test_a_list_of_implementations_yields_to_a_choice(file: Write) -> None:
    """Beside it; of two scopes the inner one says which."""
    chosen: dict[str, Any] = {"op_precision_mode": file("[ByOpType]\nexp=high_precision\n")}
    for other in ({"op_select_implmode": "high_performance"}, chosen):
        (name,), listed = other, {INI: "high_precision.ini"}
        for layers, winner in (([listed | other], name), ([listed, other], name), ([other, listed], INI)):
            made = planned(*layers).rows
            (lost,) = (row for row in made if row.option != winner)
            assert (lost.status, lost.winner, lost.assignments) == ("inert", winner, {})
            assert "overridden by" in lost.reason
            (row,) = (row for row in made if row.option == winner)
            assert (row.status, text(row).keys()) == ("honoured", {winner})
    found = rows(chosen | {"op_select_implmode": "high_performance"})
    assert "op_select_implmode" not in text(found["op_precision_mode"])
    found = rows({INI: "all_ops_impl_mode.ini", "op_select_implmode": "high_precision"})
    assert text(found["op_select_implmode"]) == {"op_select_implmode": "high_precision"}
    assert (found[INI].status, found[INI].assignments) == ("inert", {}), "that one lists all operators, and chooses nothing"


def test_what_the_rules_refuse_adds_nothing(file: Write) -> None:
    moved, cast = file('{"black-list": {"to-add": ["mm"]}}', "a.json"), file("OpType::mm:InputDtype:float16\n", "a.cfg")
    assert text(rows({"precision_mode": "force_fp16", "modify_mixlist": moved})["precision_mode"]).keys() == {"precision_mode"}
    kept = rows({"precision_mode": "must_keep_origin_dtype", "customize_dtypes": cast})
    assert (kept["customize_dtypes"].status, text(kept["precision_mode"]).keys()) == ("inert", {"precision_mode"})
    hif8 = {"precision_mode_v2": "mixed_hif8", "modify_mixlist": moved}
    check([("cpu", hif8, {"modify_mixlist": ("refused", {}, "mixed_hif8")})])
    for options in (
        {"precision_mode": "force_fp16"},
        {"enable_reduce_precision": True},
        {"op_select_implmode": "high_precision"},
    ):
        check([("cpu", options, dict.fromkeys(options, ("refused", {}, "no compiler")))], native="no compiler")


# --- notes on what differs --------------------------------------------------------------------------------------------

MATMULS = "MatMul and BatchMatMul are both torch's matmul"
NOTES = [
    ("op_precision_mode", "[ByOpType]\nSoftmaxV2=high_precision\n", "honoured", ""),
    (
        "op_precision_mode",
        "[ByOpType]\nLRN=high_precision\nexp=high_precision\n",
        "approximated",
        "no operator of its own for LRN",
    ),
    ("op_precision_mode", "[ByOpType]\ngather=high_precision\n", "approximated", "gather has one implementation only"),
    ("op_precision_mode", "[ByOpType]\nmm=support_out_of_bound_index\n", "approximated", "does not check indices of mm"),
    (
        *("op_precision_mode", "[ByOpType]\nConv2D=high_precision\nDepthwiseConv2D=high_performance\n"),
        *("approximated", "are both torch's conv2d"),
    ),
    ("op_precision_mode", "[ByOpType]\nmm=keep_fp16\n", "approximated", "keep_fp16: that is what"),
    ("op_precision_mode", "[ByNodeName]\nhead=high_precision\n", "approximated", "ctx.watch"),
    ("customize_dtypes", "OpType::mm:InputDtype:int8,float16\n", "approximated", "mm: int8 is left as it is"),
    (
        "customize_dtypes",
        "OpType::MatMul:InputDtype:float16\nOpType::BatchMatMul:InputDtype:float32\n",
        "approximated",
        MATMULS,
    ),
    ("modify_mixlist", '{"black-list": {"to-remove": ["mm", "exp"]}}', "approximated", "mm is not on the black-list"),
    (
        *("modify_mixlist", '{"black-list": {"to-add": ["MatMul"]}, "white-list": {"to-add": ["BatchMatMul"]}}'),
        *("approximated", MATMULS),
    ),
]


@pytest.mark.parametrize(("option", "content", "status", "note"), NOTES)
def test_notes_on_the_content_of_files(file: Write, option: str, content: str, status: str, note: str) -> None:
    path = file(content, {"customize_dtypes": "a.cfg", "modify_mixlist": "a.json"}.get(option, "a.ini"))
    mode = {"precision_mode": "allow_mix_precision"} if option == "modify_mixlist" else {}
    row = rows({**mode, option: path})[option]
    assert (row.status, note in row.reason) == (status, True)


@pytest.mark.parametrize(
    ("types", "status", "note"),
    [
        ("relu", "inert", "relu has one implementation only"),
        ("relu,exp", "approximated", "relu has one implementation only"),
        ("exp", "honoured", ""),
        ("LRN,ROIAlign", "inert", "no operator of its own for LRN"),
        ("LRN,SoftmaxV2", "approximated", "no operator of its own for LRN"),
    ],
)
def test_types_that_have_no_choice(types: str, status: str, note: str) -> None:
    row = rows({"op_select_implmode": "high_precision", "optypelist_for_implmode": types})["optypelist_for_implmode"]
    assert (row.status, note in row.reason) == (status, True)
