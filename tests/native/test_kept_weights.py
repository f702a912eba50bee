"""What algorithms make of weights is kept, and never used again once the weight has changed, however that was done."""

import platform
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from convs import bits
from torch import Tensor, nn
from torch.nn import functional as fn

import msctx
from msctx.native import core

pytestmark = pytest.mark.usefixtures("one_thread")
WINOGRAD = {"conv_fprop_algo": "winograd", "conv_dgrad_algo": "winograd", "fallback": "error"}
X = torch.randn(2, 6, 9, 10)

PACKED = {"conv_fprop_algo": "implicit_precomp_gemm", "fallback": "error"}
FORMS: dict[str, dict[str, Any]] = {"winograd": WINOGRAD, "packed": PACKED, "TF32": {**PACKED, "conv_allow_tf32": True}}


def weight(*shape: int) -> Tensor:
    return torch.randn(shape or (5, 6, 3, 3))


def counted(ctx: "msctx.Context", direction: str = "fprop") -> tuple[int, int]:
    """How many weights were kept and how many prepared."""
    found = [row for row in ctx.choices() if row.direction == direction]
    return sum(row.weights_kept for row in found), sum(row.weights_prepared for row in found)


def fresh(x: Tensor, w: Tensor) -> Tensor:
    """With a copy of the weight that nobody has seen."""
    return fn.conv2d(x, w.detach().clone())


Change = Callable[[Tensor], object]


def by_dlpack(w: Tensor) -> None:
    torch.from_dlpack(w.__dlpack__())[1, 2, 0, 1] += 1


def by_another_tensor_of_its_storage(w: Tensor) -> None:
    torch.empty(0).set_(w.untyped_storage(), w.storage_offset() + 7, (1,)).add_(1)


CHANGES: dict[str, Change] = {
    "in place": lambda w: w.mul_(1.5),
    "the last bit of the last element": lambda w: w.view(-1).view(torch.int32)[-1].bitwise_xor_(1),
    "the sign of a zero": lambda w: w.view(torch.int32)[0, 0, 0, 0].bitwise_xor_(-(2**31)),
    "an assignment to .data": lambda w: setattr(w, "data", w.data * 2),
    "a detached alias": lambda w: w.detach().neg_(),
    "NumPy": lambda w: w.numpy()[1].__iadd__(1),
    "DLPack": by_dlpack,
    "set_": lambda w: w.set_(torch.randn_like(w)),
    "another tensor of its storage": by_another_tensor_of_its_storage,
    "a storage of another size": lambda w: (w.untyped_storage().resize_(0), w.untyped_storage().resize_(w.nbytes), w.normal_()),
    "resize_": lambda w: w.resize_(7, 6, 3, 3).normal_(),
    "values that are spread far": lambda w: w.mul_(torch.logspace(-9, 9, w.numel()).view_as(w)),
}
"""Ways to change a weight: by name, what does it."""


def is_fresh(y: Tensor, w: Tensor) -> bool:
    return bits([y]) == bits([fresh(X, w)])


@pytest.fixture
def ctx() -> Iterator["msctx.Context"]:
    with msctx.context(**WINOGRAD) as context, torch.no_grad():
        yield context


@pytest.mark.parametrize("options", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_is_noticed(options: dict[str, Any], change: Change) -> None:
    w = weight()
    w[0, 0, 0, 0] = 0
    with msctx.context(**options) as ctx, torch.no_grad():
        fn.conv2d(X, w)
        fn.conv2d(X, w)
        is_kept = counted(ctx) != (0, 0)  # nothing is packed without a matrix unit
        for _ in range(2):
            change(w)
            found, (kept, prepared) = fn.conv2d(X, w), counted(ctx)
            assert bits([fn.conv2d(X, w)]) == bits([found])
            assert (counted(ctx)[0] > kept) == is_kept, "kept again after the change"
            assert counted(ctx)[1] == prepared
            assert bits([found]) == bits([fresh(X, w)])
    assert is_kept or options is not WINOGRAD


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.Adam], ids=["SGD", "Adam"])
def test_steps_of_an_optimizer_are_noticed(make: Any, fused: bool) -> None:
    """Fused ones leave the version counter as it is."""
    x, w = X.clone().requires_grad_(), nn.Parameter(weight())
    optimizer = make([w], lr=0.1, fused=fused)
    with msctx.context(**WINOGRAD) as ctx:
        for step in range(4):
            y = fn.conv2d(x, w)
            assert bits([y.detach()]) == bits([fresh(X, w)])
            x.grad = w.grad = None
            y.square().sum().backward()
            again = X.clone().requires_grad_()
            fn.conv2d(again, w.detach().clone()).square().sum().backward()
            assert bits([x.grad]) == bits([again.grad]), step
            optimizer.step()
    assert counted(ctx, "fprop")[0] == counted(ctx, "dgrad")[0] == 0


def test_weights_that_share_a_storage(ctx: "msctx.Context") -> None:
    """Parameters in one flat buffer: each has its own place, and a change of one is none of the other."""
    flat = torch.randn(2 * 270)
    a, b = flat[:270].view(5, 6, 3, 3), flat[270:].view(5, 6, 3, 3)
    for w in (a, b, a, b):
        assert bits([fn.conv2d(X, w)]) == bits([fresh(X, w)])
    kept = counted(ctx)[0]
    assert kept == 2
    flat.data[300] += 1  # which no version counter sees
    for w in (a, b):
        assert bits([fn.conv2d(X, w)]) == bits([fresh(X, w)])
    assert counted(ctx)[0] == kept + 1, "a's is still good"


def test_a_weight_in_channels_last_with_the_same_values(ctx: "msctx.Context") -> None:
    w = weight()
    last = w.contiguous(memory_format=torch.channels_last)
    right = fn.conv2d(X, w)
    for count in (0, 1, 2):
        assert bits([fn.conv2d(X, last)]) == bits([right])
        assert counted(ctx) == (count, 2)
    last[1] += 1
    assert bits([fn.conv2d(X, last)]) == bits([fresh(X, last.contiguous())])


# --- what is kept of them ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["winograd", "winograd_nonfused"])
@pytest.mark.parametrize("taps", [3, 5])
def test_a_weight_is_prepared_once_for_all_sizes_of_images(name: str, taps: int) -> None:
    w = weight(5, 6, taps, taps)
    with msctx.context(conv_fprop_algo=name, fallback="error") as ctx, torch.no_grad():
        for number, shape in enumerate(((2, 6, 9, 10), (1, 6, 9, 10), (3, 6, 20, 7))):
            x = torch.randn(shape)
            found = fn.conv2d(x, w)
            assert counted(ctx) == (number, number + 1), "one for w, and one for each copy"
            assert bits([found]) == bits([fresh(x, w)])


@pytest.mark.parametrize("name", ["fft", "fft_tiling"])
def test_spectra_serve_one_size_of_images(name: str) -> None:
    """And any number of them; each direction has its own."""
    w, scope = weight(), msctx.context(conv_fprop_algo=name, conv_dgrad_algo=name, fallback="error")

    def results(x: Tensor, w: Tensor) -> list[Tensor]:
        x = x.clone().requires_grad_()
        y = fn.conv2d(x, w)
        (dx,) = torch.autograd.grad(y.sin().sum(), x)
        return [y.detach(), dx]

    steps = (((2, 9, 10), (0, 1)), ((1, 9, 10), (1, 1)), ((3, 20, 7), (1, 2)), ((5, 9, 10), (2, 2)), ((1, 20, 7), (3, 2)))
    for (n, height, width), counts in steps:
        x = torch.randn(n, 6, height, width)
        with scope:
            found = results(x, w)
        assert counted(scope, "fprop") == counted(scope, "dgrad") == counts
        with msctx.context(conv_fprop_algo=name, conv_dgrad_algo=name):
            assert bits(found) == bits(results(x, w.clone()))
    w[2, 1] *= 2
    with scope:
        changed = results(x, w)
        assert bits(changed) == bits(results(x, w.clone()))
    assert bits(changed[:1]) != bits(found[:1])
    assert counted(scope, "fprop") == counted(scope, "dgrad") == (3, 4)


# --- frozen_weights ------------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_frozen_weights_are_looked_at_once() -> None:
    """What it promises: a change goes unnoticed while the context is open, not after it, and not where a scope inside looks again."""
    w = weight().requires_grad_()
    with msctx.context(conv_fprop_algo="winograd"):
        fn.conv2d(X, w)
    w.add_(1)
    with msctx.context(conv_fprop_algo="winograd", frozen_weights=True, fallback="error") as ctx:
        before = fn.conv2d(X, w)
        assert is_fresh(before, w), "looked at when the scope opens"
        w.add_(1)
        assert bits([fn.conv2d(X, w)]) == bits([before]), "the weight as it was"
        with msctx.context(frozen_weights=False):
            assert is_fresh(fn.conv2d(X, w), w)
        assert is_fresh(fn.conv2d(X, w), w)
        for change in (CHANGES["an assignment to .data"], CHANGES["set_"], lambda w: w.share_memory_().add_(1)):
            change(w)
            assert is_fresh(fn.conv2d(X, w), w), "one that moves is looked at"
    w.add_(1)
    with msctx.context(conv_fprop_algo="winograd"):
        assert is_fresh(fn.conv2d(X, w), w)
    with ctx:
        assert is_fresh(fn.conv2d(X, w), w)


def test_what_is_no_parameter_is_looked_at_each_time() -> None:
    """Unless a watched module has it."""
    w, layer = weight(), nn.Conv2d(6, 5, 3, bias=False).requires_grad_(False)
    with msctx.context(conv_fprop_algo="winograd", frozen_weights=True, fallback="error") as ctx:
        for one in (w, layer.weight):
            before = fn.conv2d(X, one)
            one.add_(1)
            assert bits([fn.conv2d(X, one)]) != bits([before])
        ctx.watch(layer)
        before = layer(X)
        layer.weight.add_(1)
        assert bits([layer(X)]) == bits([before])


# --- panels of matmuls ---------------------------------------------------------------------------------------------------

STRICT = {"matmul_algo": "strict", "conv_fprop_algo": "implicit_gemm", "fallback": "error"}


def products(rows: int, w: Tensor, bias: Tensor) -> list[Tensor]:
    """By a weight as a linear layer has it, by it transposed, and as a 1x1 convolution of images in channels_last."""
    x = torch.randn(rows, w.size(1), generator=torch.Generator().manual_seed(rows))
    images = x.view(1, rows, 1, -1).permute(0, 3, 1, 2)
    found = fn.linear(x, w), fn.linear(x[:, None], w, bias), fn.linear(x.t().contiguous().t(), w, bias)
    return [*found, torch.addmm(x[:, :1], x, w.t(), alpha=2), fn.conv2d(images, w[..., None, None], bias)]


@pytest.mark.parametrize(("columns", "depth"), [(7, 200), (33, 31), (64, 128), (200, 513), (97, 1100)])
@torch.no_grad()
def test_panels_that_are_kept_give_the_bits_of_strict(columns: int, depth: int) -> None:
    """Of any number of rows, whose panels are the same, and of threads."""
    w, bias = weight(columns, depth).requires_grad_(), weight(columns)
    w[0, 0], w[-1, -1] = torch.inf, -0.0
    for rows in (1, 2, 4, 5, 9, 13, 24, 191, 193, 400):
        with msctx.context(**STRICT):
            expected = bits(products(rows, w, bias))
        for threads in (1, 2):
            with msctx.context(**STRICT, frozen_weights=True, runtime_num_threads=threads) as ctx:
                products(rows, w, bias)
                assert bits(products(rows, w, bias)) == expected
                assert counted(ctx, "matmul")[0] >= 7 or rows * columns * depth <= 512
                assert counted(ctx)[0] >= 1 or rows * columns * depth <= 512


@torch.no_grad()
def test_panels_are_kept_of_frozen_weights_in_inference_alone() -> None:
    w, x = weight(40, 50).requires_grad_(), torch.randn(9, 50)
    with msctx.context(**STRICT) as ctx:
        fn.linear(x, w)
    assert counted(ctx, "matmul") == (0, 0)
    with msctx.context(**STRICT, frozen_weights=True) as ctx:
        fn.linear(x, w + 1)
        with torch.enable_grad():
            fn.linear(x, w).sum().backward()
        assert counted(ctx, "matmul") == (0, 0)
        fn.linear(x, w)
    assert counted(ctx, "matmul") == (0, 1)
    with msctx.context(**STRICT, max_device_memory="0.5GB", frozen_weights=True) as ctx:
        assert bits([fn.linear(x, w)]) == bits([fn.linear(x, w)])


@torch.no_grad()
def test_normal_takes_panels_where_rows_are_few() -> None:
    if core.load().c.msctx_isa_in_use() == "generic":
        pytest.skip("they pay with AVX2 or AVX-512")
    w, bias = weight(70, 130).requires_grad_(), weight(70)
    ran = {}
    for frozen in (False, True):
        with msctx.context(matmul_algo="normal", conv_fprop_algo="normal", frozen_weights=frozen) as ctx:
            products(9, w, bias)
        ran[frozen] = {(row.direction, row.ran) for row in ctx.choices()}
    assert ran == {
        False: {("matmul", "torch"), ("fprop", "torch")},
        True: {("matmul", "strict"), ("fprop", "implicit_gemm")},
    }


@torch.no_grad()
@pytest.mark.skipif(platform.machine() != "x86_64", reason="by how MKL does")
def test_what_normal_takes_depends_on_the_vectors_of_the_processor() -> None:
    isa = core.load().c.msctx_isa_in_use()
    is_wide = isa not in ("generic", "avx2")
    is_wide_amd = is_wide and "AuthenticAMD" in Path("/proc/cpuinfo").read_text(encoding="utf-8")

    def ran(run: Callable[..., object], *tensors: Tensor) -> str:
        with msctx.context(matmul_algo="normal", conv_fprop_algo="normal", frozen_weights=True) as ctx:
            run(*tensors)
        return ctx.choices()[0].ran

    products = [ran(fn.linear, torch.randn(rows, 64), weight(128, 64).requires_grad_()) for rows in (1, 2, 4, 64, 65, 512, 513)]
    few, some, many = ("strict" if pays else "torch" for pays in (is_wide_amd, isa != "generic", is_wide))
    assert products == ["torch", few, some, some, many, many, few]
    assert ran(fn.linear, torch.randn(4, 64), weight(127, 64).requires_grad_()) == "torch"
    windows = [ran(fn.conv2d, torch.randn(1, c, 32, 32), weight(c, c, 3, 3).requires_grad_()) for c in (23, 24, 32)]
    assert windows == ["torch", "winograd" if is_wide else "torch", "winograd"]


@torch.no_grad()
def test_normal_takes_small_layers_before_an_epilogue() -> None:
    if core.load().c.msctx_isa_in_use() == "generic":
        pytest.skip("they pay with AVX2 or AVX-512")
    ran = []
    for c, groups, window in ((8, 1, 1), (3, 1, 3), (8, 8, 3), (8, 1, 3)):
        x = torch.randn(1, c, 40, 40).contiguous(memory_format=torch.channels_last)
        w = weight(16 if groups == 1 else c, c // groups, window, window).requires_grad_()
        for activation in ("none", "relu"):
            with msctx.context(conv_fprop_algo="normal", frozen_weights=True) as ctx:
                how = f"stride 1 1 padding {window // 2} {window // 2} dilation 1 1 groups {groups} {activation}"
                torch.ops.msctx.convolution(x, w, how, *[None] * 5, 0.0, 0.0, 0.0)
            ran += [row.ran for row in ctx.choices()]
    assert ran == ["torch", "implicit_gemm", "torch", "implicit_gemm", "torch", "direct", "torch", "torch"]


@torch.no_grad()
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_a_frozen_weight_of_any_strides_has_the_bits_of_a_dense_one(layout: torch.memory_format) -> None:
    x = torch.randn(1, 8, 9, 10).contiguous(memory_format=layout)
    for w in map(nn.Parameter, (weight(8, 16, 3, 3).transpose(0, 1), weight(16, 8, 5, 5)[:, :, 1:4, 1:4])):
        with msctx.context(conv_fprop_algo="implicit_gemm", frozen_weights=True, fallback="error"):
            assert bits([fn.conv2d(x, w)]) == bits([fn.conv2d(x, w.detach().clone().contiguous())])


@torch.no_grad()
def test_a_measurement_keeps_no_weights(own_tuning_file: object) -> None:
    """Forms that lose would take the room of other weights'."""
    w, x = weight(16, 16, 3, 3).requires_grad_(), torch.randn(1, 16, 12, 12).contiguous(memory_format=torch.channels_last)
    with msctx.context(conv_fprop_algo="performance", frozen_weights=True) as ctx:
        fn.conv2d(x, w)
    (row,) = ctx.choices()
    for name in {"winograd", "winograd_nonfused", "implicit_gemm"} - {row.ran}:
        assert any(reason.startswith(f"{name}: measured") for reason in row.reasons)
        with msctx.context(conv_fprop_algo=name, frozen_weights=True, fallback="error") as ctx:
            fn.conv2d(x, w)
        assert counted(ctx) == (0, 1), name


@pytest.mark.full
@torch.no_grad()
def test_what_is_kept_is_not_thrown_out_by_what_has_no_room() -> None:
    """Six weights of 100 MB in turn: four and a half have room."""
    weights, x = [torch.zeros(5000, 5000).requires_grad_() for _ in range(6)], torch.randn(9, 5000)
    with msctx.context(**STRICT, frozen_weights=True) as ctx:
        for _ in range(3):
            for w in weights:
                fn.linear(x, w)
    kept, prepared = counted(ctx, "matmul")
    assert kept >= 8
    assert prepared <= 6


@pytest.mark.full
@torch.no_grad()
def test_compiled_code_keeps_panels_of_parameters() -> None:
    model, x = nn.Sequential(nn.Linear(50, 40), nn.ReLU(), nn.Linear(40, 30)), torch.randn(9, 50)
    with msctx.context(**STRICT):
        expected = bits([model(x)])
    with msctx.context(**STRICT, mode="GRAPH_MODE", frozen_weights=True) as ctx:
        model(x)
        assert bits([model(x)]) == expected
    assert counted(ctx, "matmul") == (2, 2)


# --- memory, threads, processes ------------------------------------------------------------------------------------------


@pytest.mark.full
def test_empty_cache_gives_back_what_was_made_of_a_weight_that_is_gone(passes: Callable[..., str]) -> None:
    passes("""
import torch, msctx
def held():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
w = torch.randn(256, 256, 3, 3)
with torch.no_grad(), msctx.context(conv_fprop_algo="winograd"):
    torch.nn.functional.conv2d(torch.randn(1, 256, 14, 14), w)
del w
before = held()
msctx.empty_cache()
assert before - held() > 7e6, "its transform holds four times as much as the weight of 2.4 MB"
""")
