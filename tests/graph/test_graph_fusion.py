"""What flags of graph_kernel_flags and switches of passes do to the code that inductor generates."""

import copy
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from fusion_programs import Made, compiled
from torch import nn
from torch._inductor.utils import fresh_cache
from torch.nn import functional

import msctx

Program = Callable[..., torch.Tensor | tuple[torch.Tensor, ...]]


def tensor(*shape: int) -> torch.Tensor:
    return torch.randn(shape or (64, 64), generator=torch.Generator().manual_seed(0))


def chain(x: torch.Tensor) -> torch.Tensor:
    return ((x + 1) * 2).sin().cos() - 1


def parallel(*args: torch.Tensor) -> torch.Tensor:
    x, *weights = args
    return sum(functional.linear(x, weight, weight[0]) for weight in weights)  # type: ignore[return-value]


A = tensor()
TABLE: dict[str, tuple[str, Program, tuple[torch.Tensor, ...], Callable[[Made, Made], bool]]] = {
    "opt_level": (
        "--opt_level=1", lambda x: x.sin().view(32, 128).view(-1) + 1, (A,),
        lambda on, off: on.kernels == 1 and "pattern_matcher_count" in off.counters and "pattern_matcher_count" not in on.counters,
    ),
    "enable_parallel_fusion": (
        "--enable_parallel_fusion", lambda a, b: (a.sin(), b.cos()), (A, A + 1),
        lambda on, off: (on.kernels, off.kernels) == (1, 2),
    ),
    "enable_horizontal_fusion": (
        "--enable_horizontal_fusion=off", lambda a: (torch.sin(a), torch.cos(a)), (A,),
        lambda on, off: (on.kernels, off.kernels) == (2, 1),
    ),
    "enable_parallel_op_combine": (
        "--enable_parallel_op_combine", parallel, (A, A + 1, A + 2), lambda on, off: "batch_linear_post_grad" in on.counters
    ),
    "disable_matmul_post_fusion": (
        "--disable_matmul_post_fusion", lambda a: a @ a + a[0], (A,),
        lambda on, off: "extern_kernels.addmm(" in off.code and "extern_kernels.addmm(" not in on.code,
    ),
    "enable_auto_tensor_inplace": (
        "--enable_auto_tensor_inplace=0", lambda a: (a @ a).sin() @ a, (A,),
        lambda on, off: "in_out_ptr" in off.code and "in_out_ptr" not in on.code,
    ),
    "exact_precision_mode": (
        "--exact_precision_mode", lambda x: (x * 3 + 1) * 7, (A.bfloat16(),), lambda on, off: on.exact and not off.exact
    ),
    "enable_vectorization": (
        "--enable_vectorization=false --cpu_feature=avx2", chain, (A,),
        lambda on, off: "Vectorized" in off.code and "Vectorized" not in on.code,
    ),
    "cpu_feature": (
        "--cpu_feature=avx2", chain, (A,), lambda on, off: bool(re.search(r"x0 ?\+= ?\(?static_cast<int64_t>\(8\D", on.code))
    ),
    "cpu_refer_thread_num": ("--cpu_refer_thread_num=3", chain, (tensor(512, 512),), lambda on, off: "num_threads(3)" in on.code),
    "enable_debug_mode": ("--enable_debug_mode", chain, (A,), lambda on, off: "RecordFunction" in on.code),
}  # fmt: skip
"""Flag → flags, a program, its arguments, and what distinguishes the code under them from that without."""


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n == "opt_level" else pytest.mark.full) for n in TABLE])
def test_a_flag_changes_the_code(name: str) -> None:
    flags, program, args, differs = TABLE[name]
    with torch.no_grad():
        on, off = compiled(program, *args, flags=flags), compiled(program, *args)
    assert differs(on, off), on


@pytest.mark.full
def test_the_backward_pass_recomputes_what_is_cheap() -> None:
    def kept(flags: str) -> int:
        x = tensor().requires_grad_()
        made = compiled(lambda x: (x.sin().cos() * x.exp()).softmax(-1).sum(), x, flags=flags, backward=True)
        return sum(one.numel() for one in made.result.grad_fn.saved_tensors)

    assert kept("--enable_recompute_fusion") < kept("")


@pytest.mark.full
def test_tuning_measures_variants_where_weights_are_constant() -> None:
    fc, x = nn.Linear(64, 64).eval(), tensor()
    with torch.no_grad(), fresh_cache():  # which has what was measured before
        tuned, usual = (compiled(lambda x: fc(x), x, flags=f"--online_tuning={n}", frozen_variable=True) for n in (1, 0))
    assert tuned.counters["select_algorithm_autotune"] == 1
    assert "select_algorithm_autotune" not in usual.counters


def test_graphs_and_kernels_are_written_as_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with torch.no_grad():
        compiled(chain, A, flags="--opt_level=2")
        assert not [*tmp_path.iterdir()]
        for _ in range(2):  # what an earlier program wrote stays
            compiled(chain, A, flags="--opt_level=2 --dump_as_text")
    found = sorted(path.name for path in tmp_path.glob("graph_kernel_dump/torchinductor/*/*"))
    assert {"fx_graph_readable.py", "fx_graph_transformed.py", "ir_pre_fusion.txt", "ir_post_fusion.txt"} <= {*found}
    assert found.count("ir_post_fusion.txt") == 2


@pytest.mark.full
@pytest.mark.parametrize("level", range(4))
def test_a_model_gives_the_results_of_eager_code(level: int) -> None:
    torch.manual_seed(0)
    net, x = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, activation="gelu"), tensor(2, 5, 8)
    other = copy.deepcopy(net)
    expected = other(x)
    expected.square().sum().backward()
    with msctx.context(mode="GRAPH_MODE", jit_syntax_level="STRICT", graph_kernel_flags=f"--opt_level={level}"):
        result = net(x)
        result.square().sum().backward()
    torch.testing.assert_close(result, expected)
    for mine, theirs in zip(net.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-3, atol=1e-4)


def switched(tmp_path: Path, text: str) -> dict[str, str]:
    (file := tmp_path / "switch.json").write_text(f'{{"Switch": {text}}}')
    return {"fusion_switch_file": str(file)}


@pytest.mark.full
def test_graph_passes_by_their_names_in_cann(tmp_path: Path) -> None:
    def scaled(x: torch.Tensor) -> torch.Tensor:
        return (x * 3).softmax(-1) + (x @ x + x[0])

    found = {}
    for name, switches in {
        "none": "{}",
        "one off": '{"MatMulBiasAddFusionPass": "off"}',
        "all off": '{"ALL": "off"}',
        "one on": '{"SoftmaxFusionPass": "on", "ALL": "off"}',
    }.items():
        made = compiled(scaled, A, **switched(tmp_path, f'{{"GraphFusion": {switches}}}'))
        found[name] = "extern_kernels.addmm(" in made.code, made.counters.get("pattern_matcher_count", 0)
    assert [found[name][0] for name in found] == [True, False, False, False]
    assert found["all off"][1] == 0 < found["one on"][1] < found["none"][1]


def test_no_buffer_fusion_is_one_kernel_per_operator(tmp_path: Path) -> None:
    assert compiled(chain, A, **switched(tmp_path, '{"UBFusion": {"ALL": "off"}}')).kernels == 0


def test_weights_are_no_constants_where_gradients_are_computed() -> None:
    fc = nn.Linear(8, 8)
    with pytest.warns(msctx.MsctxWarning, match="not frozen in code that computes gradients"):
        assert "_frozen_param" not in compiled(lambda x: fc(x), tensor(4, 8), frozen_variable=True).code
