"""Entries of files that do nothing: each is named, warned about, and an error under strict."""

from pathlib import Path

import pytest

import msctx

SWITCHES = '{"Switch": {"GraphFusion": {%s}}}'
ENTRIES = (
    (
        ("fusion_switch_file", "NoSuchPass is no pass that is known", SWITCHES % '"MatMulBiasAddFusionPass": "off"'),
        SWITCHES % '"NoSuchPass": "off", "PoolingFusionPass": "on"',
        SWITCHES % '"MatMulBiasAddFusionPass": "off", "NoSuchPass": "off"',
    ),
    (
        ("op_precision_mode", "MatMul: no operator has a second, rougher", "[ByOpType]\nSoftmaxV2=high_precision"),
        "[ByOpType]\nMatMul=super_performance\nConv2D=enable_float_32_execution\n[ByNodeName]\nnet.fc=keep_fp16",
        "[ByOpType]\nSoftmaxV2=high_precision\nMatMul=super_performance",
    ),
    (
        ("modify_mixlist", "Relu is not on the black-list", '{"black-list": {"to-remove": ["SoftmaxV2"]}}'),
        '{"black-list": {"to-remove": ["Relu"]}, "white-list": {"to-add": ["Cast"]}}',
        '{"black-list": {"to-remove": ["SoftmaxV2", "Relu"]}}',
    ),
    (
        ("customize_dtypes", "int8 is left as it is", "OpType::MatMul:InputDtype:float16,OutputDtype:float32"),
        "OpType::MatMul:InputDtype:int8\nnet.fc::OutputDtype:int8",
        "OpType::MatMul:InputDtype:int8,float16",
    ),
    (
        ("op_debug_config", "check_flag: a CPU's kernels have no pipelines", "op_debug_config=oom"),
        "op_debug_config=check_flag",
        "op_debug_config=oom,check_flag",
    ),
    (
        ("op_debug_config", "NoSuch is no operator that is known", "op_debug_config=oom"),
        "op_debug_config=check_flag\nop_debug_list=OpType::NoSuch",
        "op_debug_config=oom\nop_debug_list=MatMul,NoSuch",
    ),
    (
        ("aoe_config_file", "nothing is tuned for Relu", '{"tune_ops_type": ["MatMul"]}'),
        '{"tune_ops_type": ["Relu"]}',
        '{"tune_ops_type": ["MatMul", "Relu"]}',
    ),
)
"""The option, what is said of an entry that does nothing, and a file that acts; files of which all or some entries do nothing."""


@pytest.mark.parametrize(("acts", "idle", "both"), ENTRIES, ids=[f"{acts[0]}-{acts[2][:1]}" for acts, *_ in ENTRIES])
def test_entries_that_do_nothing_are_named_warned_about_and_refused_under_strict(
    acts: tuple[str, str, str], idle: str, both: str, tmp_path: Path
) -> None:
    option, named, text = acts
    options = {"precision_mode": "allow_mix_precision_fp16", "aoe_mode": "2", option: str(tmp_path / "file")}
    for content, status in ((text, "honoured"), (idle, "inert"), (both, "approximated")):
        (tmp_path / "file").write_text(content)
        (row,) = [row for row in msctx.explain(device="cpu", **options).rows if row.option == option]
        assert (row.status, named in row.reason) == (status, status != "honoured")
        if status != "honoured":
            with pytest.raises(msctx.StrictError, match=option), msctx.context(strict=True, **options):
                pass
            with pytest.warns(msctx.MsctxWarning, match=option), msctx.context(**options):
                pass


def test_a_rule_whose_algorithm_cannot_run_is_told_beside_one_that_can() -> None:
    (row,) = msctx.explain(device="ascend", matmul_algo_rules={"encoder": "bf16x6", "head": "strict"}).rows
    assert (row.status, row.idle) == ("approximated", True)
    assert not msctx.explain(device="ascend", matmul_algo_rules={"head": "strict"}).rows[0].idle
