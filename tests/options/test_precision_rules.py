"""The table of precision modes, and what the lists make of it."""

from __future__ import annotations

import pytest

from msctx.options.precision_policy import (
    BY_DEFAULT,
    CHOOSABLE,
    DTYPES,
    EXACT,
    LOW,
    MIXED,
    MODES,
    V2,
    precision_of,
    text_of,
)
from msctx.themes.precision import PRECISION_MODES, PRECISION_MODES_V2


def rules(**requested):
    return precision_of(text_of(requested)).rules


def test_every_mode_of_either_option_is_known():
    assert set(MODES) == set(PRECISION_MODES)
    assert {*V2, "mixed_hif8", "cube_hif8"} == set(PRECISION_MODES_V2)
    assert set(LOW) == set(MODES) - {"force_fp32", "cube_fp16in_fp32out", "must_keep_origin_dtype"}
    assert set(MIXED) < set(MODES)


@pytest.mark.parametrize("v2", V2)
def test_newer_words_mean_the_same(v2):
    mine, theirs = precision_of(text_of({"precision_mode_v2": v2})), precision_of(text_of({"precision_mode": V2[v2]}))
    assert mine == theirs


def test_adding_wins_over_removing():
    lists = {"white-list": {"to-remove": ["mm"]}, "black-list": {"to-add": ["mm"]}}
    found = rules(precision_mode="allow_mix_precision", modify_mixlist=lists)
    assert found["mm"].computes_in("float16") == "float32"


WAYS = {
    # what holds without: the rule of a mode → high_precision; high_performance, for float32, float16, bfloat16 → results
    ("allow_mix_precision_bf16", "mm"): ("float32 float32 float32 bfloat16", "bfloat16 bfloat16 bfloat16 bfloat16"),
    ("allow_mix_precision_bf16", "exp"): ("float32 float32 float32 float32", "float32 float16 bfloat16 bfloat16"),
    ("allow_mix_precision_bf16", "gelu"): ("float32 float32 float32 bfloat16", "float32 float16 bfloat16 bfloat16"),
    ("force_fp16", "mm"): ("float32 float32 float32 float16", "float16 float16 float16 float16"),
    ("force_fp16", "exp"): ("float32 float32 float32 float16", "float16 float16 float16 float16"),
    ("allow_fp32_to_fp16", "mm"): ("float32 float32 float32 bfloat16", "float16 float16 bfloat16 bfloat16"),
    ("must_keep_origin_dtype", "mm"): ("float32 float32 float32 bfloat16", "float32 float16 bfloat16 bfloat16"),
}


@pytest.mark.parametrize(("mode", "op"), WAYS)
@pytest.mark.parametrize("way", ["high_precision", "high_performance", "keep_fp16"])
def test_a_way_of_computing_is_laid_over_the_mode(mode, op, way):
    rule = rules(precision_mode=mode, op_precision_mode={"ByOpType": {op: way}, "ByNodeName": {}})[op]
    alone = rules(precision_mode=mode).get(op)
    if way == "keep_fp16":
        assert [rule.computes_in(d) for d in DTYPES] == [alone.computes_in(d) if alone else d for d in DTYPES]
        return
    *computed, given = WAYS[mode, op][way == "high_performance"].split()
    assert [rule.computes_in(d) for d in DTYPES] == computed
    assert rule.gives("bfloat16") == given


@pytest.mark.parametrize(
    ("value", "types", "accurate"),
    [
        ("high_precision", None, BY_DEFAULT),
        ("high_precision_for_all", None, CHOOSABLE),
        ("high_precision", "SoftmaxV2,rsqrt", ("softmax", "_softmax", "_safe_softmax", "rsqrt")),
        ("high_performance", None, ()),
        ("high_performance_for_all", None, ()),
    ],
)
def test_op_select_implmode(value, types, accurate):
    found = rules(op_select_implmode=value, optypelist_for_implmode=types)
    assert {op for op, rule in found.items() if rule.computes_in("float16") == "float32"} == set(accurate) & set(CHOOSABLE)


def test_what_rounds_nothing_has_one_implementation():
    assert not set(EXACT) & set(CHOOSABLE)
    content = {"ByOpType": {"relu": "high_precision"}, "ByNodeName": {}}
    assert rules(op_precision_mode=content) == {}
