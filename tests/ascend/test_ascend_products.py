"""fp16x3 on an NPU: three products of float16 parts where the matrix unit has float16 alone, elsewhere torch_npu's own float32."""

from collections.abc import Callable

import pytest

pytestmark = pytest.mark.full
Run = Callable[..., str]

PREPARE = """
ALONE = ["aclnnMm(float32, cubeMathType=2)"]

def products():
    '''The products that reached CANN.'''
    return [call for call in calls() if "cubeMathType" in call]

def bound(a, b):
    '''Of the error of each result, as docs/products.md states it.'''
    a, b = a.double().abs(), b.double().abs()
    depth = a.shape[-1]
    largest = a.amax(-1, keepdim=True) * b.amax(-2, keepdim=True)
    return (2.0**-24 * (depth + 4) + 2.0**-21) * (a @ b) + depth * 2.0**-49 * largest + 2.0**-140
"""
OLD = {"soc": "Ascend910A", "cann": "8.0.0"}


@pytest.fixture
def on_910a(ascend: Run) -> Run:
    def run(code: str) -> str:
        return ascend(PREPARE + code, **OLD)

    return run


def test_a_product_is_three_of_float16_on_a_910a_and_keeps_the_grade_of_float32(on_910a: Run) -> None:
    on_910a("""
torch.manual_seed(0)
torch.npu.set_compile_mode(jit_compile=False)
a, b = torch.randn(33, 65), torch.randn(65, 17)
x, y, exact = a.npu(), b.npu(), a.double() @ b.double()

def error():
    calls()
    return float(((x.mm(y)).cpu() - exact).abs().max() / exact.abs().max())

assert error() > 1e-4
assert products() == ALONE
with msctx.context(device_target="Ascend", matmul_algo="fp16x3") as ctx:
    assert error() < 1e-6
    assert products() == ALONE * 3
    with msctx.context(matmul_algo="normal"):
        assert error() > 1e-4
        assert products() == ALONE
    with msctx.context(matmul_allow_hf32=True, precision_mode="force_fp32"):
        assert error() < 1e-6
        assert products() == ALONE * 3
    assert error() < 1e-6
(row,) = ctx.choices()
assert (row.requested, row.ran, row.provider, row.math, row.calls) == ("fp16x3", "fp16x3", "msctx", "fp32-grade", 3)
assert 65 * 2**-24 < row.error < 1e-5 and not row.reasons, row
assert error() > 1e-4
assert products() == ALONE
""")


def test_errors_stay_below_the_stated_bound_for_any_finite_data(on_910a: Run) -> None:
    on_910a("""
torch.manual_seed(1)

def spread(*shape, by, along=None):
    '''Normal numbers times powers of two: of each element, or the same along an axis.'''
    exponents = torch.randint(-by, by + 1, [1 if axis == along else size for axis, size in enumerate(shape)])
    return torch.randn(shape) * 2.0 ** exponents

m, k, n = 9, 40, 7
ones = torch.ones(k, n)
cases = {
    "normal": (torch.randn(m, k), torch.randn(k, n)),
    "uniform": (torch.rand(m, k), torch.rand(k, n)),
    "cancelling": (torch.cat([torch.ones(m, k // 2), -torch.ones(m, k // 2)], 1) + 1e-4 * torch.randn(m, k), torch.rand(k, n)),
    "large and small": (spread(m, k, by=40, along=1), spread(k, n, by=40, along=0)),
    "beyond float16": (torch.randn(m, k) * 1e30, torch.randn(k, n) * 1e-30),
    "far beyond": (torch.randn(m, k) * 2.0**120, torch.randn(k, n) * 2.0**-130),
    "tiny": (torch.randn(m, k) * 2.0**-60, torch.randn(k, n) * 2.0**-60),
    "denormal": (torch.randn(m, k) * 2.0**-135, torch.randn(k, n) * 2.0**100),
    "spread": (spread(m, k, by=8), spread(k, n, by=8)),
    "spread far": (spread(m, k, by=30), spread(k, n, by=30)),
    "zeros": (torch.zeros(m, k), torch.randn(k, n)),
    "halves that round up": ((1 - 2.0**-24) * torch.ones(m, k), (1 - 2.0**-24) * ones),
    "a half of a half": ((1 + 2.0**-11 - 2.0**-23) * torch.ones(m, k), (1 + 2.0**-11 - 2.0**-23) * ones),
}
with msctx.context(device_target="Ascend", matmul_algo="fp16x3"):
    for name, (a, b) in cases.items():
        found = (a.npu() @ b.npu()).cpu().double()
        assert bool(((found - a.double() @ b.double()).abs() <= bound(a, b)).all()), name
""")


def test_what_is_not_finite_appears_where_float32_has_it(on_910a: Run) -> None:
    on_910a("""
torch.manual_seed(2)
a, b = torch.randn(6, 8), torch.randn(8, 5).round()
a[0, 1], a[1, 2], a[2, 3], b[4, 0] = float("inf"), float("-inf"), float("nan"), float("inf")
a[3], b[:, 1] = 3e38, 3e38
with msctx.context(device_target="Ascend", matmul_algo="fp16x3"):
    found = (a.npu() @ b.npu()).cpu()
expected = (a.double() @ b.double()).float()
assert torch.equal(found.isnan(), expected.isnan()), (found, expected)
assert torch.equal(found.isinf(), expected.isinf()), (found, expected)
assert torch.equal(found[found.isinf()], expected[found.isinf()])
assert torch.allclose(found, expected, rtol=1e-5, equal_nan=True)
""")


def test_all_products_and_their_gradients_follow(on_910a: Run) -> None:
    on_910a("""
torch.manual_seed(3)
F = torch.nn.functional
r = lambda *shape: torch.randn(shape)
calculations = {
    "mm": (torch.mm, r(4, 6), r(6, 5)),
    "mm of transposed": (lambda a, b: a.t() @ b.t(), r(6, 4), r(5, 6)),
    "addmm": (lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=-2.0), r(5), r(4, 6), r(6, 5)),
    "bmm": (torch.bmm, r(3, 4, 6), r(3, 6, 5)),
    "baddbmm": (torch.baddbmm, r(3, 4, 5), r(3, 4, 6), r(3, 6, 5)),
    "mv": (torch.mv, r(4, 6), r(6)),
    "linear": (F.linear, r(4, 6), r(5, 6), r(5)),
    "linear of batches": (F.linear, r(2, 4, 6), r(5, 6), r(5)),
    "linear without bias": (F.linear, r(2, 4, 6), r(5, 6)),
    "matmul of batches": (torch.matmul, r(2, 1, 4, 6), r(3, 6, 5)),
    "matmul with a matrix": (torch.matmul, r(2, 3, 4, 6), r(6, 5)),
    "matmul of a vector": (torch.matmul, r(6), r(3, 6, 5)),
    "matmul by a vector": (torch.matmul, r(3, 4, 6), r(6)),
    "einsum": (lambda a, b: torch.einsum("bij,jk->bik", a, b), r(2, 4, 6), r(6, 5)),
}

def computed(f, tensors, device):
    given = [tensor.detach().to(device).requires_grad_() for tensor in tensors]
    result = f(*given)
    (result * result).sum().backward()
    return [found.cpu() for found in (result.detach(), *(tensor.grad for tensor in given))]

for name, (f, *tensors) in calculations.items():
    expected = computed(f, [tensor.double() for tensor in tensors], "cpu")
    with msctx.context(device_target="Ascend", matmul_algo="fp16x3", fallback="error") as ctx:
        calls()
        found = computed(f, tensors, "npu")
        made = products()
    counted = sum(row.calls for row in ctx.choices())
    assert made and len(made) == 3 * counted, (name, made, ctx.choices())
    for mine, theirs in zip(found, expected):
        assert mine.shape == theirs.shape and torch.allclose(mine.double(), theirs, rtol=1e-5, atol=1e-5), name
out = torch.zeros(4, 5).npu()
a, b = r(4, 6), r(6, 5)
with msctx.context(device_target="Ascend", matmul_algo="fp16x3"):
    torch.mm(a.npu(), b.npu(), out=out)
    out.addmm_(a.npu(), b.npu())
assert torch.allclose(out.cpu().double(), 2 * (a.double() @ b.double()), rtol=1e-5, atol=1e-5)
""")


def test_second_derivatives_of_matmul_keep_the_grade_of_float32(on_910a: Run) -> None:
    """torch_npu has an operator of its own for them. By itself it errs by 2e-4 or more, or leaves float16's range: inf and nan."""
    on_910a("""
torch.manual_seed(6)
r = lambda *shape: torch.randn(shape)
shapes = [((2, 1, 4, 6), (3, 6, 5)), ((2, 3, 4, 6), (6, 5)), ((6,), (3, 6, 5)), ((3, 4, 6), (6,)), ((6,), (6, 5)), ((4, 6), (6, 5))]

def computed(tensors, device, of):
    a, b = (tensor.detach().to(device).requires_grad_() for tensor in tensors)
    c = a @ b
    first = torch.autograd.grad((c * c * c).sum(), [(a, b)[i] for i in of], create_graph=True)
    sum((one * one).sum() for one in first).backward()
    return [a.grad.cpu(), b.grad.cpu()]

def error(found, expected):
    return max(float((mine.double() - theirs).abs().max() / theirs.abs().max()) for mine, theirs in zip(found, expected))

torch.npu.set_compile_mode(jit_compile=False)
for shape_of_a, shape_of_b in shapes:
    tensors = r(*shape_of_a), r(*shape_of_b)
    for of in ((0, 1), (0,), (1,)):
        expected = computed([tensor.double() for tensor in tensors], "cpu", of)
        with msctx.context(device_target="Ascend", matmul_algo="fp16x3", fallback="error") as ctx:
            calls()
            found = computed(tensors, "npu", of)
            made = products()
        assert error(found, expected) < 3e-6, (shape_of_a, shape_of_b, of, error(found, expected))
        counted = sum(row.calls for row in ctx.choices())
        assert made and len(made) == 3 * counted, (made, ctx.choices())
        assert not error(computed(tensors, "npu", of), expected) < 3e-5, (shape_of_a, shape_of_b, of, "by torch_npu itself")
""")


def test_others_fall_back_and_rules_choose(on_910a: Run) -> None:
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


def test_kernels_that_cann_compiles_are_left_aside_meanwhile(on_910a: Run) -> None:
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
    assert "jit_compile=true has CANN compile products" in str(error)
else:
    raise AssertionError("it was to be refused")
""")


def test_later_chips_have_float32_of_their_own(ascend: Run) -> None:
    ascend(
        PREPARE
        + """
a, b = torch.randn(8, 16), torch.randn(16, 4)
torch.npu.matmul.allow_hf32 = True
with msctx.context(device_target="Ascend", matmul_algo="fp16x3") as ctx:
    calls()
    found = a.npu().mm(b.npu())
    assert products() == ["aclnnMm(float32, cubeMathType=0)"]
assert torch.allclose(found.cpu().double(), a.double() @ b.double(), atol=1e-6)
(row,) = ctx.choices()
assert (row.ran, row.provider, row.math) == ("fp16x3", "torch", "strict")
assert row.reasons == ("fp16x3 (fp32-grade): the matrix unit of this chip computes float32 itself",)
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
