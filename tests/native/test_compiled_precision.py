"""Compiled functions never run under a policy they were not compiled for: in this process, or from a warm cache on disk."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.compiler.config as compiler_config
from context_helpers import Elsewhere
from torch import nn
from torch._dynamo.utils import counters

import msctx
from msctx.native import precision
from msctx.torch_config import override

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
        numbers.append(len(precision._combined))
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
    return override(compiler_config, precision.TAG), override(compiler_config, precision.DISABLED)


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
