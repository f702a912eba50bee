"""Precision policies at device type npu: the dtypes in which operators reach CANN. HF32: the cubeMathType that they get."""

import pytest

pytestmark = pytest.mark.full

PROGRAM = """
a, b = torch.randn(8, 8).npu(), torch.randn(8, 8).npu()

def program():
    '''The operators that compute, as they reach CANN: a product, a sum, and a softmax of float16.'''
    calls()
    torch.softmax((a @ b + b).half(), -1)
    return [call for call in calls("aclnn") if not call.startswith(("aclnnInplaceCopy", "aclnnCast"))]

PLAIN = ["aclnnMatmul(float32, cubeMathType=0)", "aclnnAdd(float32, float32)", "aclnnSoftmax(float16)"]
"""
LOWERED = ["aclnnMatmul(float16, cubeMathType=0)", "aclnnAdd(float16, float16)", "aclnnSoftmax(float16)"]
MIXED = ["aclnnMatmul(float16, cubeMathType=0)", "aclnnAdd(float16, float32)", "aclnnSoftmax(float32)"]
MIXED_BF16 = ["aclnnMatmul(bfloat16, cubeMathType=0)", "aclnnAdd(bfloat16, float32)", "aclnnSoftmax(float32)"]
MATRICES = ["aclnnMatmul(float16, cubeMathType=0)", "aclnnAdd(float32, float32)", "aclnnSoftmax(float16)"]
PLAIN = ["aclnnMatmul(float32, cubeMathType=0)", "aclnnAdd(float32, float32)", "aclnnSoftmax(float16)"]
ACCURATE = ["aclnnMatmul(float32, cubeMathType=0)", "aclnnAdd(float32, float32)", "aclnnSoftmax(float32)"]

FILES = {
    "dtypes.cfg": "OpType::MatMul:InputDtype:float16,float16,OutputDtype:float32\n",
    "mixlist.json": '{"black-list": {"to-add": ["MatMul"]}}',
    "ways.ini": "[ByOpType]\nSoftmaxV2=high_precision\n",
}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"precision_mode": "force_fp16"}, LOWERED),
        ({"precision_mode": "allow_fp32_to_fp16"}, MATRICES),
        ({"precision_mode": "allow_mix_precision_fp16"}, MIXED),
        ({"precision_mode_v2": "mixed_bfloat16"}, MIXED_BF16),
        ({"precision_mode_v2": "cube_fp16in_fp32out"}, ACCURATE),
        ({"op_select_implmode": "high_precision", "optypelist_for_implmode": "SoftmaxV2"}, ACCURATE),
        ({"atc.builtin_impl_mode_ini": "high_precision_for_all.ini"}, ACCURATE),
        ({"customize_dtypes": "dtypes.cfg"}, MATRICES),
        ({"precision_mode": "allow_mix_precision_fp16", "modify_mixlist": "mixlist.json"}, ACCURATE),
        ({"op_precision_mode": "ways.ini"}, ACCURATE),
    ],
    ids=lambda value: "-".join(map(str, value.values())) if isinstance(value, dict) else "",
)
def test_policies_are_seen_in_the_dtypes_that_reach_cann(ascend, tmp_path, options, expected):
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    options = {name: str(tmp_path / value) if value in FILES else value for name, value in options.items()}
    ascend(f"""
        {PROGRAM.replace(chr(10), chr(10) + "        ")}
        assert program() == PLAIN
        with msctx.context(device_target="Ascend", **{options}):
            found = program()
            assert found == {expected}, found
            if {"precision_mode" in options}:
                with msctx.context(precision_mode="force_fp16"):
                    assert program()[0] == {LOWERED[0]!r}
            assert program() == {expected}
        assert program() == PLAIN
    """)


def test_what_has_no_kernel_for_float16_computes_in_float32_where_that_is_asked(ascend):
    ascend("""
        import warnings
        x = (torch.eye(3) * 4).half().npu()

        def refused():
            try:
                torch.linalg.inv(x)
            except RuntimeError as error:
                return "Low precision dtypes not supported" in str(error)

        assert refused()
        with warnings.catch_warnings(record=True) as told, msctx.context(device_target="Ascend", enable_reduce_precision=True):
            warnings.simplefilter("always")
            calls()
            found = torch.linalg.inv_ex(x).inverse  # inv looks at values, which the stand-in does not compute
            assert found.dtype == torch.float16
            reached = [call for call in calls() if call.startswith("aclnnInplaceCopy")]
            assert reached[0] == "aclnnInplaceCopy(float16, float32)" and "aclnnInplaceCopy(float32, float16)" in reached, reached
            with msctx.context(enable_reduce_precision=False):
                assert refused()
        assert any("linalg_inv_ex has no kernel for Half here" in str(one.message) for one in told)
        assert refused()
    """)


def test_cube_fp16in_fp32out_rounds_what_products_read(ascend):
    ascend("""
        a, b = torch.randn(32, 32).npu(), torch.randn(32, 32).npu()
        with msctx.context(device_target="Ascend", precision_mode_v2="cube_fp16in_fp32out"):
            calls()
            a @ b
            found = calls("aclnn")
        there_and_back = ["aclnnInplaceCopy(float32, float16)", "aclnnInplaceCopy(float16, float32)"]
        assert sorted(found) == sorted([*there_and_back * 2, "aclnnMatmul(float32, cubeMathType=0)"]), found
    """)


def test_hf32_reaches_products_and_convolutions_apart(ascend):
    ascend("""
        x, w, a = torch.randn(2, 3, 8, 8).npu(), torch.randn(4, 3, 3, 3).npu(), torch.randn(8, 8).npu()

        def kinds():
            '''cubeMathType of a convolution, and of each kind of product; 3 is HF32.'''
            calls()
            torch.nn.functional.conv2d(x, w)
            products = a @ a, a.addmm(a, a), torch.bmm(a[None], a[None]), torch.nn.functional.linear(a, a, a[0])
            first, *rest = [int(call[-2]) for call in calls() if "cubeMathType" in call]
            assert len(rest) == len(products)
            return first, set(rest)

        assert kinds() == (3, {0})  # torch_npu's own defaults
        with msctx.context(matmul_allow_hf32=True, conv_allow_hf32=False):
            assert kinds() == (0, {3})
            with msctx.context(matmul_allow_hf32=False):
                assert kinds() == (0, {0})
            assert kinds() == (0, {3})
        assert kinds() == (3, {0})
        torch.ones(3, device="npu").sort()  # CANN compiles this one: now it gets the options of compiled operators
        assert calls("aclSetCompileopt(ACL_ALLOW_HF32")[-1] == "aclSetCompileopt(ACL_ALLOW_HF32, 10)"
        with msctx.context(matmul_allow_hf32=True, conv_allow_hf32=False):
            assert calls("aclSetCompileopt(ACL_ALLOW_HF32")[-1] == "aclSetCompileopt(ACL_ALLOW_HF32, 01)"
        assert calls("aclSetCompileopt(ACL_ALLOW_HF32")[-1] == "aclSetCompileopt(ACL_ALLOW_HF32, 10)"
        """)


KIND = """
torch.npu.set_compile_mode(jit_compile=False)  # a kernel that is there, aclnn's
a = torch.randn(8, 8).npu()

def kind():
    '''cubeMathType: 0 keeps the dtype, 1 and 2 may lower it.'''
    calls()
    a @ a
    (found,) = [call[-2] for call in calls() if "cubeMathType" in call]
    return found

assert kind() == "2"
"""


@pytest.mark.parametrize(
    ("soc", "cann", "requested"),
    [("Ascend910A", "8.0.0", {"precision_mode": "force_fp32"}), ("Ascend310P3", "8.5.0", {"precision_mode_v2": "origin"})],
)
def test_chips_without_float32_products_refuse_them_rather_than_lower_them(ascend, soc, cann, requested):
    ascend(
        f"""{KIND}
with msctx.context(device_target="Ascend", **{requested}) as ctx:
    (row,) = [row for row in ctx.plan.rows if row.device == "ascend" and row.option.startswith("precision_mode")]
    assert "CANN refuses matmuls and convolutions in float32" in row.reason, row
    try:
        kind()
    except RuntimeError as error:
        assert "161002" in str(error), error
    else:
        raise AssertionError("CANN refuses cubeMathType=0 here")
    assert [call[-2] for call in calls() if "cubeMathType" in call] == ["0"]
    with msctx.context(matmul_algo="fp16x3"):
        a @ a
        assert [call[-2] for call in calls() if "cubeMathType" in call] == ["2"] * 3
assert kind() == "2"
""",
        soc=soc,
        cann=cann,
    )


def test_chips_without_hf32_refuse_to_allow_it(ascend):
    ascend(
        f"""{KIND}
import warnings
found = torch.npu.conv.allow_hf32
lasting = {{"precision_mode": "force_fp32"}}
for options in ({{"matmul_allow_hf32": True}}, {{"matmul_allow_hf32": True, **lasting}}, {{"conv_allow_hf32": True}}):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with msctx.context(device_target="Ascend", **options):
            assert not torch.npu.matmul.allow_hf32 and torch.npu.conv.allow_hf32 is found
    assert any("multiplies only float16" in str(one.message) for one in told), [str(one.message) for one in told]
with msctx.context(device_target="Ascend", matmul_allow_hf32=False, conv_allow_hf32=False, strict=True):
    assert kind() == "2" and not torch.npu.conv.allow_hf32
assert kind() == "2" and torch.npu.conv.allow_hf32 is found
""",
        soc="Ascend910A",
        cann="8.0.0",
    )
