"""precision_mode and its family come to one policy for each device."""

from __future__ import annotations

import json

import pytest

from msctx import plan
from msctx.effects import Facts
from msctx.effects.precision_mode import PRECISION
from msctx.options import Settings, make_layer
from msctx.options.rules import PRECISION_MODES, PRECISION_MODES_V2


@pytest.fixture
def file(tmp_path):
    def write(text, name="list.ini"):
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return write


def rows(device="cpu", native="", **options):
    here = ("cpu",) if device == "cpu" else ("cpu", device)
    made = plan.make(Settings([make_layer(options, "test")]), Facts(devices=here, native=native))
    return {row.option: row for row in made.rows if row.device == device and not row.winner}


def text(row, device="cpu"):
    return json.loads(row.assignments[f"native.precision.{device}"])


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("mode", PRECISION_MODES)
def test_a_mode_is_a_policy(mode, device):
    row = rows(device, precision_mode=mode)["precision_mode"]
    assert row.status == ("approximated" if mode in ("force_fp16", "cube_fp16in_fp32out") else "honoured")
    assert text(row, device) == {"precision_mode": mode}


@pytest.mark.parametrize("mode", PRECISION_MODES_V2)
def test_newer_words(mode):
    row = rows(precision_mode_v2=mode)["precision_mode_v2"]
    if "hif8" in mode:
        assert (row.status, row.reason) == ("refused", "torch has no dtype HiFloat8")
    else:
        assert text(row) == {"precision_mode_v2": mode}


@pytest.mark.parametrize("mode", PRECISION_MODES)
def test_on_ascend_our_policy_holds(mode):
    """With HF32 allowed, as it is for convolutions, torch_npu's own allow_fp32_to_fp16 need not compute in float16."""
    found = rows("ascend", precision_mode=mode)["precision_mode"].assignments
    assert found.get("torch.npu.precision_mode") == (mode if mode == "must_keep_origin_dtype" else None)
    assert "native.precision.ascend" in found


def test_on_ascend_lists_want_our_policy(file):
    found = rows("ascend", precision_mode="allow_fp32_to_fp16", op_precision_mode=file("[ByOpType]\nmm=high_precision\n"))
    assert found["precision_mode"].assignments.keys() == {"native.precision.ascend"}


def test_implementations_on_ascend():
    """torch_npu's options reach the operators that CANN compiles for the call alone; aclnn's never read them."""
    asked = {"op_select_implmode": "high_precision", "optypelist_for_implmode": "Pooling"}
    found = rows("ascend", **asked)["op_select_implmode"].assignments
    assert {name: found[f"torch.npu.{name}"] for name in asked} == asked == json.loads(found["native.precision.ascend"])
    row = rows("ascend", op_select_implmode="high_precision_for_all")["op_select_implmode"]
    assert row.assignments.keys() == {"native.precision.ascend"}


def test_all_add_to_one_text(file):
    options = {
        "precision_mode": "allow_mix_precision",
        "modify_mixlist": file('{"black-list": {"to-add": ["mm"]}}', "a.json"),
        "customize_dtypes": file("OpType::Conv2D:InputDtype:float16\n", "a.cfg"),
        "op_precision_mode": file("[ByOpType]\nSoftmaxV2=high_precision\n"),
        "enable_reduce_precision": True,
    }
    found = rows(**options)
    texts = {row.assignments["native.precision.cpu"] for row in found.values()}
    assert len(texts) == 1
    assert json.loads(texts.pop()).keys() == options.keys()


def test_op_precision_mode_wins_over_the_choice_of_implementations(file):
    found = rows(op_precision_mode=file("[ByOpType]\nexp=high_precision\n"), op_select_implmode="high_performance")
    assert "op_select_implmode" not in text(found["op_precision_mode"])


INI = "atc.builtin_impl_mode_ini"


def test_a_list_of_implementations_yields_to_a_choice(file):
    """Beside it; of two scopes the inner one says which."""
    for other in ({"op_select_implmode": "high_performance"}, {"op_precision_mode": file("[ByOpType]\nexp=high_precision\n")}):
        asked, (name,) = {INI: "high_precision.ini", **other}, other
        layers = [make_layer({option: value}, "test") for option, value in asked.items()]
        for found, winner in (([make_layer(asked, "test")], name), (layers, name), (layers[::-1], INI)):
            made = plan.make(Settings(found), Facts(devices=("cpu",))).rows
            lost = next(row for row in made if row.option != winner and row.device == "cpu")
            assert (lost.status, lost.winner, lost.assignments) == ("inert", winner, {})
            assert "overridden by" in lost.reason
            row = next(row for row in made if row.option == winner and row.device == "cpu")
            assert (row.status, text(row).keys()) == ("honoured", {winner})


def test_the_list_of_all_operators_chooses_nothing():
    row = rows(**{INI: "all_ops_impl_mode.ini"})[INI]
    assert (row.status, row.assignments) == ("inert", {})
    found = rows(**{INI: "all_ops_impl_mode.ini"}, op_select_implmode="high_precision")
    assert text(found["op_select_implmode"]) == {"op_select_implmode": "high_precision"}
    assert found[INI].status == "inert"


def test_lists_of_a_mode_that_is_refused_are_refused(file):
    row = rows(precision_mode_v2="mixed_hif8", modify_mixlist=file('{"black-list": {"to-add": ["mm"]}}', "a.json"))
    assert row["modify_mixlist"].status == "refused"
    assert "mixed_hif8" in row["modify_mixlist"].reason


@pytest.mark.parametrize(
    ("content", "status", "reason"),
    [
        ("[ByOpType]\nSoftmaxV2=high_precision\n", "honoured", ""),
        ("[ByOpType]\nLRN=high_precision\nexp=high_precision\n", "approximated", "no operator of its own for LRN"),
        ("[ByOpType]\ngather=high_precision\n", "approximated", "gather has one implementation only"),
        ("[ByOpType]\nrelu=high_precision\nexp=high_precision\n", "approximated", "relu has one implementation only"),
        ("[ByOpType]\nmm=support_out_of_bound_index\n", "approximated", "does not check indices of mm"),
        ("[ByOpType]\nConv2D=high_precision\nDepthwiseConv2D=high_performance\n", "approximated", "are both torch's conv2d"),
        ("[ByOpType]\nSoftmaxGrad=high_precision\n", "approximated", "no operator of its own for SoftmaxGrad"),
        ("[ByOpType]\nmm=keep_fp16\n", "approximated", "keep_fp16: that is what"),
        ("[ByNodeName]\nhead=high_precision\n", "approximated", "ctx.watch"),
    ],
)
def test_what_is_said_of_op_precision_mode(file, content, status, reason):
    row = rows(op_precision_mode=file(content))["op_precision_mode"]
    assert row.status == status
    assert reason in row.reason


@pytest.mark.parametrize(("types", "status"), [("relu", "inert"), ("relu,exp", "approximated"), ("exp", "honoured")])
def test_types_with_one_implementation(types, status):
    row = rows(op_select_implmode="high_precision", optypelist_for_implmode=types)["optypelist_for_implmode"]
    assert row.status == status
    assert ("relu has one implementation only" in row.reason) == ("relu" in types)


def test_types_that_share_an_operator(file):
    lists = '{"black-list": {"to-add": ["MatMul"]}, "white-list": {"to-add": ["BatchMatMul"]}}'
    row = rows(precision_mode="allow_mix_precision", modify_mixlist=file(lists, "lists.json"))["modify_mixlist"]
    assert "MatMul and BatchMatMul are both torch's matmul" in row.reason
    row = rows(customize_dtypes=file("OpType::MatMul:InputDtype:float16\nOpType::BatchMatMul:InputDtype:float32\n", "a.cfg"))
    assert "are both torch's matmul" in row["customize_dtypes"].reason


def test_types_without_an_operator():
    found = rows(op_select_implmode="high_precision", optypelist_for_implmode="LRN,ROIAlign")["optypelist_for_implmode"]
    assert found.status == "inert"
    found = rows(op_select_implmode="high_precision", optypelist_for_implmode="LRN,SoftmaxV2")["optypelist_for_implmode"]
    assert found.status == "approximated"


def test_reduce_precision():
    assert rows(enable_reduce_precision=False)["enable_reduce_precision"].assignments == {}
    row = rows(enable_reduce_precision=True)["enable_reduce_precision"]
    assert row.status == "approximated"
    assert text(row) == {"enable_reduce_precision": True}


def test_without_a_native_core_they_are_refused():
    for options in (
        {"precision_mode": "force_fp16"},
        {"enable_reduce_precision": True},
        {"op_select_implmode": "high_precision"},
    ):
        for row in rows(native="no C++ compiler", **options).values():
            assert (row.status, row.reason) == ("refused", "no C++ compiler")


def test_every_option_of_the_family_has_an_effect():
    from msctx.effects.base import EFFECTS

    rows(precision_mode="force_fp16")
    assert set(PRECISION) <= set(EFFECTS)


def test_what_the_rules_refuse_adds_nothing(file):
    mixed = {"precision_mode": "force_fp16", "modify_mixlist": file('{"black-list": {"to-add": ["mm"]}}', "a.json")}
    assert text(rows(**mixed)["precision_mode"]) == {"precision_mode": "force_fp16"}
    custom = {"precision_mode": "must_keep_origin_dtype", "customize_dtypes": file("OpType::mm:InputDtype:float16\n", "a.cfg")}
    assert rows(**custom)["customize_dtypes"].status == "inert"
    assert text(rows(**custom)["precision_mode"]) == {"precision_mode": "must_keep_origin_dtype"}


def test_what_is_said_of_dtypes_that_are_not_cast_to(file):
    row = rows(customize_dtypes=file("OpType::mm:InputDtype:int8,float16\n", "a.cfg"))["customize_dtypes"]
    assert (row.status, row.reason) == ("approximated", "mm: int8 is left as it is")


def test_what_is_said_of_lists_that_move_nothing(file):
    path = file('{"black-list": {"to-remove": ["mm", "exp"]}}', "a.json")
    row = rows(precision_mode="allow_mix_precision", modify_mixlist=path)["modify_mixlist"]
    assert (row.status, row.reason) == ("approximated", "mm is not on the black-list")


def test_missing_kernels_may_be_forbidden_under_force_fp16():
    row = rows(precision_mode="force_fp16", enable_reduce_precision=False)["precision_mode"]
    assert row.status == "honoured"
    assert text(row) == {"precision_mode": "force_fp16", "enable_reduce_precision": False}


def test_ascend_is_given_types_of_its_own_alone():
    found = rows("ascend", op_select_implmode="high_precision", optypelist_for_implmode="softmax,MatMul")
    assert found["op_select_implmode"].assignments.keys() == {"native.precision.ascend"}


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_frozen_weights_go_into_the_policy(device):
    found = rows(device, precision_mode="force_fp16", frozen_weights=True)
    assert found["frozen_weights"].status == "honoured"
    assert text(found["precision_mode"], device)["frozen_weights"] is True
    assert "frozen_weights" not in text(
        rows(device, precision_mode="force_fp16", frozen_weights=False)["precision_mode"], device
    )
    without = rows(device, "there is no compiler", precision_mode="force_fp16", frozen_weights=True)
    assert without["frozen_weights"].status != "honoured"
