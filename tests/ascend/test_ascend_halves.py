"""fp16x3 on an NPU keeps the bound of docs/how-to/matmul.md, and has NaN and Inf where float32 has them; on the device far."""

ON_FAR = """
import torch, msctx
from msctx.native import core, policy_and_choices

core.has_float32_products = lambda: False  # as on a 910A, in the place of which is the device far
policy = msctx.explain(matmul_algo="fp16x3", fallback="error", device="ascend").assignments["native.convolution.ascend"]
policy_and_choices.write("ascend", policy)
torch.manual_seed(1)
r = lambda *shape: torch.randn(shape)

def bound(a, b):
    '''Of the error of each result, as docs/how-to/matmul.md states it.'''
    a, b = a.double().abs(), b.double().abs()
    depth = a.shape[-1]
    largest = a.amax(-1, keepdim=True) * b.amax(-2, keepdim=True)
    return (2.0**-24 * (depth + 4) + 2.0**-21) * (a @ b) + depth * 2.0**-49 * largest + 2.0**-140
"""


def test_errors_stay_below_the_stated_bound_for_any_finite_data(far):
    far(f"""{ON_FAR}
def spread(*shape, by, along=None):
    '''Normal numbers times powers of two: of each element, or the same along an axis.'''
    exponents = torch.randint(-by, by + 1, [1 if axis == along else size for axis, size in enumerate(shape)])
    return torch.randn(shape) * 2.0 ** exponents

m, k, n = 9, 40, 7
ones = torch.ones(k, n)
cases = {{
    "normal": (r(m, k), r(k, n)),
    "uniform": (torch.rand(m, k), torch.rand(k, n)),
    "cancelling": (torch.cat([torch.ones(m, k // 2), -torch.ones(m, k // 2)], 1) + 1e-4 * r(m, k), torch.rand(k, n)),
    "large and small": (spread(m, k, by=40, along=1), spread(k, n, by=40, along=0)),
    "beyond float16": (r(m, k) * 1e30, r(k, n) * 1e-30),
    "far beyond": (r(m, k) * 2.0**120, r(k, n) * 2.0**-130),
    "tiny": (r(m, k) * 2.0**-60, r(k, n) * 2.0**-60),
    "denormal": (r(m, k) * 2.0**-135, r(k, n) * 2.0**100),
    "spread": (spread(m, k, by=8), spread(k, n, by=8)),
    "spread far": (spread(m, k, by=30), spread(k, n, by=30)),
    "zeros": (torch.zeros(m, k), r(k, n)),
    "halves that round up": ((1 - 2.0**-24) * torch.ones(m, k), (1 - 2.0**-24) * ones),
    "a half of a half": ((1 + 2.0**-11 - 2.0**-23) * torch.ones(m, k), (1 + 2.0**-11 - 2.0**-23) * ones),
}}
for name, (a, b) in cases.items():
    found = (a.to("far") @ b.to("far")).cpu().double()
    assert bool(((found - a.double() @ b.double()).abs() <= bound(a, b)).all()), name
(row,) = policy_and_choices.rows()
assert (row.ran, row.provider, row.math, row.calls) == ("fp16x3", "msctx", "fp32-grade", len(cases)), row
assert k * 2**-24 < row.error < 1e-5 and not row.reasons, row
""")


def test_what_is_not_finite_appears_where_float32_has_it(far):
    far(f"""{ON_FAR}
a, b = r(6, 8), r(8, 5).round()
a[0, 1], a[1, 2], a[2, 3], b[4, 0] = float("inf"), float("-inf"), float("nan"), float("inf")
a[3], b[:, 1] = 3e38, 3e38
found = (a.to("far") @ b.to("far")).cpu()
expected = (a.double() @ b.double()).float()
assert torch.equal(found.isnan(), expected.isnan()), (found, expected)
assert torch.equal(found.isinf(), expected.isinf()), (found, expected)
assert torch.equal(found[found.isinf()], expected[found.isinf()])
assert torch.allclose(found, expected, rtol=1e-5, equal_nan=True)
""")


def test_all_products_and_their_gradients_keep_the_grade_of_float32(far):
    far(f"""{ON_FAR}
F = torch.nn.functional
calculations = {{
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
}}

def computed(f, tensors, device):
    given = [tensor.detach().to(device).requires_grad_() for tensor in tensors]
    result = f(*given)
    (result * result).sum().backward()
    return [found.cpu() for found in (result.detach(), *(tensor.grad for tensor in given))]

for name, (f, *tensors) in calculations.items():
    expected = computed(f, [tensor.double() for tensor in tensors], "cpu")
    for mine, theirs in zip(computed(f, tensors, "far"), expected):
        assert mine.shape == theirs.shape, name
        error = float((mine.double() - theirs).abs().max() / theirs.abs().max())
        assert error < 3e-6, (name, error)
assert {{row.ran for row in policy_and_choices.rows()}} == {{"fp16x3"}}
out = torch.zeros(4, 5, device="far")
a, b = r(4, 6), r(6, 5)
torch.mm(a.to("far"), b.to("far"), out=out)
out.addmm_(a.to("far"), b.to("far"))
assert torch.allclose(out.cpu().double(), 2 * (a.double() @ b.double()), rtol=1e-5, atol=1e-5)
""")
