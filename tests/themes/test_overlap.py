"""parallel_speed_up_json_path with its keys, hcom_parallel, is_tailing_optimization: what of a program they move."""

import pytest
from ranks import two_ranks

ORDER = """
import re, warnings
warnings.simplefilter("ignore")
import torch, torch.distributed as dist, msctx
import torch.distributed._functional_collectives as collectives
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch._inductor.utils import run_and_get_code
from torch.utils.checkpoint import checkpoint

dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
KEY = "parallel_speed_up_json_path."
NAME = re.compile(r"extern_kernels\\.\\w*(mm)\\(|_c10d_functional\\.(\\w+?)_?(?:_out)?\\.default\\(|^(?:buf\\d+ = )?(cpp_fused)")

def order(run):
    "What the code calls, in its order, each piece of code apart"
    found = []
    for code in run_and_get_code(run)[1]:
        lines = [line.strip() for line in code.split("def call")[-1].splitlines() if not line.strip().startswith("#")]
        found.append([next(filter(None, m.groups())) for line in lines if (m := NAME.search(line))])
    return found
x, w, v = (torch.randn(16, 16, requires_grad=True) for _ in range(3))
"""


@pytest.mark.full
def test_products_are_computed_while_gradients_of_inputs_are_communicated(passes):
    passes(
        ORDER
        + """
class Column(torch.autograd.Function):
    "The gradient of a column-parallel layer's input is summed over the ranks"
    @staticmethod
    def forward(ctx, x): return x.clone()
    @staticmethod
    def backward(ctx, g): return collectives.all_reduce(g, "sum", "0")

def layers(x, w, v):
    return (Column.apply((Column.apply(x) @ w).relu()) @ v).sum()

f = torch.compile(layers)
for value, first in ((None, ["mm", "mm", "all_reduce", "wait_tensor"]), (True, ["mm", "all_reduce", "mm", "wait_tensor"]),
                     (False, ["mm", "mm", "all_reduce", "wait_tensor"])):
    with msctx.context(**({} if value is None else {KEY + "matmul_grad_comm_overlap": value})):
        backward = max(order(lambda: f(x, w, v).backward()), key=lambda one: one.count("all_reduce"))
    backward = [name for name in backward if name != "cpp_fused"]
    assert backward[:4] == first, (value, backward)
from torch._inductor import config
assert not config.reorder_for_compute_comm_overlap and not config.reorder_for_compute_comm_overlap_passes
""",
        timeout=240,
    )


@pytest.mark.full
def test_what_is_computed_again_is_so_while_something_is_communicated(passes):
    passes(
        ORDER
        + """
class Row(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return x.clone()
    @staticmethod
    def backward(ctx, g): return collectives.all_reduce(g, "sum", "0")

def block(x, w, v):
    return (x @ w).tanh() @ v

def two(x, w, v):
    first = checkpoint(block, x, w, v, use_reentrant=False)
    return checkpoint(block, Row.apply(first), w, v, use_reentrant=False).sum()

f, places = torch.compile(two), {}
for value in (False, True):
    with msctx.context(**{KEY + "recompute_comm_overlap": value}):
        backward = max(order(lambda: f(x, w, v).backward()), key=lambda one: one.count("all_reduce"))
    start, end = backward.index("all_reduce"), backward.index("wait_tensor")
    places[value] = backward[start:end].count("mm")
assert places[True] > places[False], places
""",
        timeout=240,
    )


@pytest.mark.full
def test_collectives_of_compiled_code_are_bundled(passes):
    passes(
        ORDER
        + """
def three(x, y):
    a, b = (collectives.all_gather_tensor(t, 0, "0") for t in (x, y))
    c, d = (collectives.reduce_scatter_tensor(t, "sum", 0, "0") for t in (x, y))
    e, f = (collectives.all_reduce(t, "sum", "0") for t in (x, y))
    return a.relu(), b + 1, c * 2, d * 3, e + 1, f + 2

f = torch.compile(three)
for value, number in ((None, 2), (True, 1), (False, 2)):
    with torch.no_grad(), msctx.context(**({} if value is None else {KEY + "enable_task_opt": value})):
        (found,) = order(lambda: f(x, w))
    assert found.count("wait_tensor") == 3 * number, (value, found)
    assert found.count("all_reduce") == number, (value, found)
""",
        timeout=240,
    )


@pytest.mark.full
def test_compiled_code_computes_the_same_on_two_ranks(tmp_path):
    two_ranks(
        tmp_path,
        """
import torch.distributed._functional_collectives as collectives
from torch._inductor.utils import run_and_get_code

KEYS = ("enable_task_opt", "matmul_grad_comm_overlap", "recompute_comm_overlap", "enable_concat_eliminate_opt")

def f(x, w):
    a, b = x.chunk(2)
    for _ in range(2):
        x = torch.cat([collectives.all_reduce(part @ w, "sum", dist.group.WORLD).tanh() for part in (a, b)])
        a, b = x.chunk(2)
    gathered = [collectives.all_gather_tensor(part, 0, dist.group.WORLD) for part in (a, b)]
    spread = [collectives.reduce_scatter_tensor(part, "sum", 0, dist.group.WORLD) for part in (a, b)]
    return x, *gathered, *spread

def test(rank):
    torch.manual_seed(rank)
    x, w = torch.randn(8, 8), torch.randn(8, 8)
    expected, compiled = f(x, w), torch.compile(f)
    numbers = {}
    for on in (False, True):
        with msctx.context(**{"parallel_speed_up_json_path." + key: on for key in KEYS}):
            found, (code,) = run_and_get_code(compiled, x, w)
        torch.testing.assert_close(found, expected)
        numbers[on] = code.count("torch.ops._c10d_functional.wait_tensor.default(")
    assert numbers[True] < numbers[False], numbers
""",
    )
