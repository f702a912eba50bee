"""fp16x3 on an NPU: three products of float16 parts reach CANN where the matrix unit has float16 alone, elsewhere one of float32."""

import pytest

pytestmark = pytest.mark.full

PREPARE = """
ALONE = ["aclnnMm(float32, cubeMathType=2)"]

def products():
    '''The products that reached CANN.'''
    return [call for call in calls() if "cubeMathType" in call]
"""
OLD = {"soc": "Ascend910A", "cann": "8.0.0"}


@pytest.fixture
def on_910a(ascend):
    def run(code: str) -> str:
        return ascend(PREPARE + code, **OLD)

    return run


def test_a_product_is_three_of_float16_on_a_910a(on_910a):
    on_910a("""
torch.npu.set_compile_mode(jit_compile=False)
x, y = torch.randn(33, 65).npu(), torch.randn(65, 17).npu()

def made():
    calls()
    x.mm(y)
    return products()

assert made() == ALONE
with msctx.context(device_target="Ascend", matmul_algo="fp16x3") as ctx:
    assert made() == ALONE * 3
    with msctx.context(matmul_algo="normal"):
        assert made() == ALONE
    with msctx.context(matmul_allow_hf32=True, precision_mode="force_fp32"):
        assert made() == ALONE * 3
    assert made() == ALONE * 3
(row,) = ctx.choices()
assert (row.requested, row.ran, row.provider, row.math, row.calls) == ("fp16x3", "fp16x3", "msctx", "fp32-grade", 3)
assert made() == ALONE
""")


def test_gradients_and_second_derivatives_are_three_products_each(on_910a):
    """torch_npu has operators of its own for those of matmul."""
    on_910a("""
r = lambda *shape: torch.randn(shape)
shapes = [((2, 1, 4, 6), (3, 6, 5)), ((2, 3, 4, 6), (6, 5)), ((6,), (3, 6, 5)), ((3, 4, 6), (6,)), ((6,), (6, 5)), ((4, 6), (6, 5))]
for shape_of_a, shape_of_b in shapes:
    for of in ((0, 1), (0,), (1,)):
        with msctx.context(device_target="Ascend", matmul_algo="fp16x3", fallback="error") as ctx:
            calls()
            a, b = (tensor.npu().requires_grad_() for tensor in (r(*shape_of_a), r(*shape_of_b)))
            c = a @ b
            first = torch.autograd.grad((c * c * c).sum(), [(a, b)[i] for i in of], create_graph=True)
            sum((one * one).sum() for one in first).backward()
            made = products()
        counted = sum(row.calls for row in ctx.choices())
        assert counted > 3 and len(made) == 3 * counted, (made, ctx.choices())
""")


def test_others_fall_back_and_rules_choose(on_910a):
    on_910a("""
a, b = torch.randn(4, 6), torch.randn(6, 5)
with msctx.context(device_target="Ascend", matmul_algo="fp16x3", fallback="silent") as ctx:
    calls()
    a.half().npu().mm(b.half().npu())
    assert products() == ["aclnnMm(float16, cubeMathType=2)"]
(row,) = ctx.choices()
assert (row.ran, row.provider) == ("torch", "torch")
assert "it computes float32 only" in row.reasons[0], row
with msctx.context(device_target="Ascend", matmul_algo="fp16x3", allow_fp32_emulation=False, fallback="silent"):
    calls()
    a.npu().mm(b.npu())
    assert "aclopCompileAndExecute(MatMul)" in calls(), "one product, which CANN compiles for the call"
try:
    with msctx.context(device_target="Ascend", matmul_algo="fp16x3", fallback="error"):
        a.half().npu().mm(b.half().npu())
except RuntimeError as error:
    assert "it computes float32 only" in str(error)
else:
    raise AssertionError("it was to raise")
with msctx.context(device_target="Ascend", matmul_algo_rules={"weight=6x5": "fp16x3"}) as ctx:
    calls()
    a.npu().mm(b.npu())
    assert products() == ALONE * 3
    a.npu().mm(b.npu()[:, :3])
    assert products() == ALONE
model = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Linear(6, 2)).npu()
with msctx.context(device_target="Ascend", matmul_algo_rules={"1": "fp16x3"}) as ctx, torch.no_grad():
    ctx.watch(model)
    calls()
    model(a.npu())
    assert len(products()) == 1 + 3
assert [row.module for row in ctx.choices()] == ["1"]
""")


def test_kernels_that_cann_compiles_are_left_aside_meanwhile(on_910a):
    on_910a("""
a = torch.randn(4, 4)
assert not torch.npu.is_jit_compile_false()
with msctx.context(device_target="Ascend", matmul_algo="fp16x3"):
    assert torch.npu.is_jit_compile_false()
    assert torch.npu.matmul.cube_math_type.name == "USE_FP16"
    calls()
    a.npu() @ a.npu()
    assert products() == ALONE * 3
assert not torch.npu.is_jit_compile_false()
assert torch.npu.matmul.cube_math_type is None
torch.npu.matmul.cube_math_type = torch.npu.CubeMathType.USE_HF32
with msctx.context(device_target="Ascend", matmul_algo="fp16x3"):
    assert torch.npu.matmul.cube_math_type.name == "USE_FP16"
assert torch.npu.matmul.cube_math_type.name == "USE_HF32"
try:
    msctx.context(device_target="Ascend", matmul_algo="fp16x3", jit_compile="true", strict=True).__enter__()
except msctx.StrictError as error:
    assert "jit_compile=true has CANN compile matmuls" in str(error)
else:
    raise AssertionError("it was to be refused")
""")


def test_later_chips_have_float32_of_their_own(ascend):
    ascend(
        PREPARE
        + """
a, b = torch.randn(8, 16), torch.randn(16, 4)
torch.npu.matmul.allow_hf32 = True
with msctx.context(device_target="Ascend", matmul_algo="fp16x3") as ctx:
    calls()
    a.npu().mm(b.npu())
    assert products() == ["aclnnMm(float32, cubeMathType=0)"]
(row,) = ctx.choices()
assert (row.ran, row.provider, row.math) == ("fp16x3", "torch", "strict")
assert row.reasons == ("fp16x3 (fp32-grade): this NPU multiplies float32 matrices itself",)
with msctx.context(device_target="Ascend", matmul_algo="strict", matmul_allow_hf32=True) as ctx:
    calls()
    a.npu().mm(b.npu())
    assert products() == ["aclnnMm(float32, cubeMathType=0)"]
(row,) = ctx.choices()
assert (row.requested, row.ran, row.provider, row.math, row.reasons) == ("strict", "strict", "torch", "strict", ())
a.npu().mm(b.npu())
assert products() == ["aclnnMm(float32, cubeMathType=3)"]
"""
    )
