"""Compiled code runs under the policy that it was compiled for, from a warm cache too, and loses no convolution that is requested."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.compiler.config as compiler_config
from context_helpers import Elsewhere
from convs import GEMM, asking
from torch import Tensor, nn
from torch._dynamo.utils import counters

import msctx
from msctx.native import precision_policies
from msctx.torch_config_overrides import override

pytestmark = [
    pytest.mark.usefixtures("one_thread", "afresh", "plain_state", "torch_as_found"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


def square(x):
    return x @ x


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_each_policy_has_its_own_code(backend):
    compiled, x = torch.compile(square, backend=backend), torch.ones(4, 4)
    modes = {
        "allow_mix_precision_bf16": BF16,
        "force_fp16": FP16,
        "must_keep_origin_dtype": FP32,
        "allow_mix_precision_fp16": FP16,
    }
    for _ in range(2):
        assert compiled(x).dtype == FP32
        for mode, dtype in modes.items():
            with msctx.context(precision_mode=mode):
                assert compiled(x).dtype == dtype, mode
    with torch.autocast("cpu", BF16):
        assert compiled(x).dtype == BF16


def test_backward_of_compiled_code():
    model, x = nn.Linear(4, 4), torch.randn(2, 4)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    for mode, low in (("allow_mix_precision_bf16", BF16), ("allow_fp32_to_bf16", FP32)):
        gradients = []
        for call in (model, compiled):
            model.zero_grad()
            with msctx.context(precision_mode=mode):
                y = call(x)
                assert y.dtype == low
                y.float().square().sum().backward()
            gradients.append(model.weight.grad.clone())
        assert gradients[0].dtype == FP32
        torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("policy_first", [True, False])
@pytest.mark.parametrize("mode", ["allow_fp32_to_bf16", "allow_mix_precision_bf16", "force_fp32", "must_keep_origin_dtype"])
def test_autocast_of_the_very_dtype_of_the_mode(mode, policy_first):
    """torch's own autocast gives both in bfloat16 on CPU; none of these modes does."""

    def both(x):
        return x @ x, torch.softmax(x @ x, -1)

    compiled, x = torch.compile(both, backend="aot_eager"), torch.randn(4, 4)

    def dtypes(call):
        return [found.dtype for found in call(x)]

    with msctx.context(precision_mode=mode):
        for _ in range(2):
            if policy_first:
                assert dtypes(compiled) == dtypes(both)
            with torch.autocast("cpu"):
                assert dtypes(compiled) == dtypes(both) == [BF16, BF16]
                with torch.autocast("cpu"), msctx.context(precision_mode="force_fp16"):
                    assert dtypes(compiled) == [FP16, FP16]
                with torch.autocast("cpu", enabled=False):
                    assert dtypes(compiled) == [FP32, FP32]
                assert dtypes(compiled) == [BF16, BF16]
            assert dtypes(compiled) == dtypes(both)


@pytest.fixture
def named(tmp_path):
    path = tmp_path / "names.ini"
    path.write_text("[ByNodeName]\n1=high_precision\nsecond=high_precision\n")
    return {"precision_mode": "allow_mix_precision_bf16", "op_precision_mode": str(path)}


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return self.second(self.first(x))


@pytest.mark.filterwarnings("ignore:.*no module is named")
@pytest.mark.parametrize("own_context", [True, False])
def test_entering_again_compiles_nothing(named, own_context):
    net, x = Pair(), torch.randn(2, 4)
    compiled, ctx = torch.compile(net, backend="eager"), msctx.context(**named)
    graphs, numbers, found = [], [], counters["stats"]["unique_graphs"]
    for _ in range(12):  # torch gives up after 8 recompilations
        with msctx.context(**named) if own_context else ctx as entered:
            entered.watch(net)
            compiled(x)
        assert {row.module for row in entered.precisions()} >= {"second"}
        graphs.append(counters["stats"]["unique_graphs"])
        numbers.append(len(precision_policies._combined))
    assert graphs[0] > found
    assert len(set(graphs)) == len(set(numbers)) == 1


CODE = """
    import torch, msctx
    from torch._dynamo.utils import counters

    compiled = torch.compile(lambda x: (x @ x).exp())
    x = torch.ones(4, 4)
    def run(mode):
        if not mode:
            return compiled(x).dtype
        if mode.startswith("autocast in "):
            with msctx.context(precision_mode=mode[12:]), torch.autocast("cpu"):
                return compiled(x).dtype
        with msctx.context(precision_mode=mode):
            return compiled(x).dtype
    print([str(run(mode)) for mode in {modes}])
    print(counters["aot_autograd"]["autograd_cache_hit"], counters["aot_autograd"]["autograd_cache_miss"])
"""


@pytest.mark.full
def test_code_on_disk(passes: Callable[..., str], tmp_path: Path):
    """Each process finds what the ones before it have compiled, and takes only what is its own."""
    # in an empty folder inductor would first compile ten programs that request vectors, which are not the subject
    variables = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path), "TORCHINDUCTOR_VEC_ISA_OK": "0"}
    in_mode = "autocast in allow_mix_precision_bf16"
    for modes, dtypes, hits, misses in (
        (["allow_fp32_to_bf16", "", in_mode], ["float32", "float32", "bfloat16"], 0, 3),
        (["", "force_fp16", "allow_mix_precision_bf16"], ["float32", "float16", "float32"], 1, 2),
        (["allow_mix_precision_bf16", in_mode, "force_fp16", ""], ["float32", "bfloat16", "float16", "float32"], 4, 0),
    ):
        found, counted = passes(CODE.format(modes=modes), env=variables).split("\n")[:2]
        assert found == str([f"torch.{dtype}" for dtype in dtypes])
        assert counted == f"{hits} {misses}"


# --- threads ----------------------------------------------------------------------------------------------------------


def tag_and_disabled() -> tuple[object, object]:
    return override(compiler_config, precision_policies.TAG), override(compiler_config, precision_policies.DISABLED)


def key() -> tuple[str, bool]:
    return compiler_config.cache_key_tag, compiler_config.force_disable_caches


@pytest.mark.parametrize("leaves_first", [0, 1])
def test_threads_that_ask_for_different_things_share_no_code(leaves_first: int) -> None:
    before = tag_and_disabled()
    with Elsewhere() as one, Elsewhere() as other:
        threads, blocks = (one, other), [msctx.context(precision_mode=m) for m in ("force_fp16", "allow_mix_precision_bf16")]
        alone = threads[0].do(lambda: (blocks[0].__enter__(), key())[1])
        assert alone[0]
        assert not alone[1]
        threads[1].do(blocks[1].__enter__)
        tags, disabled = zip(*(thread.do(key) for thread in threads), strict=True)
        assert len(set(tags)) == 2 or all(disabled)
        first, last = leaves_first, 1 - leaves_first
        threads[first].do(blocks[first].__exit__)
        tag, is_disabled = threads[last].do(key)
        assert "msctx-precision" in tag
        assert not is_disabled
        threads[last].do(blocks[last].__exit__)
        assert tag_and_disabled() == before
        assert {thread.do(key) for thread in threads} == {key()}


def test_threads_that_ask_for_the_same_share_it() -> None:
    before, block = tag_and_disabled(), msctx.context(precision_mode="force_fp16")
    with Elsewhere() as thread, msctx.context(precision_mode="force_fp16"):
        assert thread.do(lambda: (block.__enter__(), key())[1]) == key()
        assert not compiler_config.force_disable_caches
        thread.do(block.__exit__)
    assert tag_and_disabled() == before


# --- convolutions -------------------------------------------------------------------------------------------------------


DIRECTIONS = {"fprop": "gemm", "dgrad": "algo_1", "wgrad": "algo_1"}


def network() -> nn.Module:
    torch.manual_seed(0)
    # Convolutions alone: C++ would take seconds to compile
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 2, 3, stride=2))


def gradients(call: Callable[[Tensor], Tensor], model: nn.Module, x: Tensor) -> list[Tensor]:
    model.zero_grad()
    x = x.detach().requires_grad_()
    y = call(x)
    y.square().sum().backward()
    assert x.grad is not None
    return [y.detach(), x.grad, *(p.grad for p in model.parameters() if p.grad is not None)]


def counted(ctx: "msctx.Context") -> dict[str, int]:
    found: dict[str, int] = {}
    for row in ctx.choices():
        assert row.ran == DIRECTIONS[row.direction]
        found[row.direction] = found.get(row.direction, 0) + row.calls
    return found


def test_forward_and_backward() -> None:
    model, x = network(), torch.randn(2, 3, 9, 8)
    right = gradients(model, model, x)
    call = torch.compile(model, backend="aot_eager")
    with msctx.context(**GEMM, fallback="error") as ctx:
        ctx.watch(call)
        for _ in range(2):
            torch.testing.assert_close(gradients(call, model, x), right, rtol=1e-4, atol=1e-4)
    assert counted(ctx) == {"fprop": 4, "dgrad": 4, "wgrad": 4}
    assert {row.module for row in ctx.choices()} == {"0", "1"}
    with asking("fprop", "gemm") as after:
        pass
    torch.testing.assert_close(gradients(call, model, x), right, rtol=1e-4, atol=1e-4)
    assert not after.choices()
    assert counted(ctx) == {"fprop": 4, "dgrad": 4, "wgrad": 4}, "compiled inside, run outside: torch's own"


def test_freezing_and_cpp_wrapper_are_off_inside() -> None:
    from torch._inductor import config

    def settings() -> tuple[bool, bool]:
        return bool(config.freezing), bool(config.cpp_wrapper)

    with config.patch(freezing=True, cpp_wrapper=True):
        with asking("fprop", "gemm"):
            with asking("dgrad", "algo_1"), config.patch(freezing=True, cpp_wrapper=True):
                assert settings() == (False, True), "AOTInductor patches it, and fails without"
            assert settings() == (False, False)
        with msctx.context(deterministic="ON"):
            assert settings() == (True, True)


@pytest.mark.parametrize(
    "said",
    [
        {"mode": "max-autotune-no-cudagraphs"},
        {"options": {"conv_1x1_as_mm": True}},
        {"options": {"max_autotune_gemm": True, "max_autotune_conv_backends": "TRITON"}},
        {"options": {"freezing": True}},
    ],
    ids=str,
)
def test_no_setting_of_torch_compile_loses_a_convolution(said: dict[str, Any]) -> None:
    """Not while an algorithm is requested: a matmul in place of a 1x1 convolution, an operator of oneDNN's."""
    torch.manual_seed(0)
    last = torch.channels_last
    model = nn.Sequential(nn.Conv2d(16, 8, 1), nn.Conv2d(8, 4, 3)).eval().to(memory_format=last)
    x = torch.randn(2, 16, 9, 8).to(memory_format=last)
    with torch.no_grad():
        right = model(x)
        with asking("fprop", "gemm", fallback="error") as ctx:
            torch.testing.assert_close(torch.compile(model, **said)(x), right, rtol=1e-4, atol=1e-4)
    assert [(row.ran, row.calls) for row in ctx.choices()] == [("gemm", 1)] * 2


def pointwise() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return nn.Conv2d(16, 8, 1), torch.randn(2, 16, 9, 8)


def test_convolutions_of_one_point_are_no_products_of_eager_code_or_of_code_compiled_inside() -> None:
    model, x = pointwise()
    right = gradients(model.double(), model, x.double())
    model.float()
    for call in (model, torch.compile(model, options={"conv_1x1_as_mm": True})):
        for more, rows in (({}, []), (DIRECTIONS, [*DIRECTIONS.items()])):
            requested: dict[str, Any] = {f"conv_{direction}_algo": name for direction, name in more.items()}
            with msctx.context(matmul_algo="strict", fallback="error", **requested) as ctx:
                found = gradients(call, model, x)
            torch.testing.assert_close(found, [t.float() for t in right], rtol=1e-5, atol=1e-4)
            assert [(row.direction, row.ran, row.calls) for row in ctx.choices()] == [(*row, 1) for row in rows]


@pytest.mark.parametrize("is_compiled_before", [False, True])
def test_rules_by_module_find_the_weights_of_the_model(is_compiled_before: bool) -> None:
    """Left to itself, inductor computes with copies of them in channels_last: Dynamo compiles such code again."""
    model, x = network(), torch.randn(2, 3, 9, 8)
    call = torch.compile(model)
    if is_compiled_before:
        call(x).sum().backward()
    with msctx.context(conv_algo_rules="1: fprop=gemm, wgrad=algo_1", fallback="error") as ctx:
        ctx.watch(call)
        call(x).sum().backward()
    assert {(row.module, row.direction, row.ran) for row in ctx.choices()} == {("1", "fprop", "gemm"), ("1", "wgrad", "algo_1")}


@pytest.mark.parametrize(
    "shapes", [((1, 256), (256, 1)), ((1, 9), (9, 7)), ((3, 1, 256), (3, 256, 8)), ((3, 1, 256), (3, 256, 1))], ids=str
)
def test_products_of_one_row_stay_products_under_an_invariance(shapes: tuple[tuple[int, ...], ...]) -> None:
    a, b = (torch.randn(shape, generator=torch.Generator().manual_seed(n)) for n, shape in enumerate(shapes))
    product = torch.mm if a.dim() == 2 else torch.bmm
    with msctx.context(thread_invariant=True, fallback="error") as ctx:
        eager = product(a, b)
        assert torch.equal(torch.compile(product, dynamic=False)(a, b), eager)
        assert sum(row.calls for row in ctx.choices()) == 2
    from torch._inductor import decomposition

    assert torch.ops.aten.bmm.default in decomposition.decompositions
