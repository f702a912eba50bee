"""What each flag of graph_kernel_flags does to the code that inductor generates, seen in that code, in counters or in graphs."""

from __future__ import annotations

import copy
import re
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from functorch.compile import aot_function, nop
from fusion_programs import Made, compiled
from graph_programs import graphs
from torch import fx, nn
from torch._inductor import compile_fx
from torch._inductor.utils import fresh_cache
from torch.nn import functional

import msctx
from msctx.graph import fusion
from msctx.options.graph import Compilation
from msctx.options.graph_kernel_flags import FLAGS

Program = Callable[..., torch.Tensor | tuple[torch.Tensor, ...]]


def tensor(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape or (64, 64), generator=torch.Generator().manual_seed(0)).to(dtype)


def saved(made: Made) -> int:
    return sum(one.numel() for one in made.result.grad_fn.saved_tensors)


def vector(made: Made) -> int:
    """How many numbers of 32 bits a loop takes at once."""
    (found,) = {*re.findall(r"x0 ?\+= ?\(?static_cast<int64_t>\((\d+)", made.code)} or {"1"}
    return int(found)


# --- programs ---------------------------------------------------------------------------------------------------------


def apart(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.sin(a), torch.cos(b)


def beside(a: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.sin(a), torch.cos(a)


def chain(x: torch.Tensor) -> torch.Tensor:
    return ((x + 1) * 2).sin().cos() - 1


def into_a_sum(x: torch.Tensor) -> torch.Tensor:
    return ((x + 1) * 2).sin().cos().sum(-1)


def product(a: torch.Tensor) -> torch.Tensor:
    return torch.relu(a @ a + a[0])


def with_bias(a: torch.Tensor) -> torch.Tensor:
    return a @ a + a[0]


def linear(a: torch.Tensor) -> torch.Tensor:
    return functional.linear(a, a, a[0]) + (a @ a + a[0])


def twice(x: torch.Tensor) -> torch.Tensor:
    return x.exp() * 2 + (x.exp() * 3).cos()


def through_16_bits(x: torch.Tensor) -> torch.Tensor:
    return (x * 3 + 1) * 7


def in_place(a: torch.Tensor) -> torch.Tensor:
    return (a @ a).sin() @ a


def smooth(x: torch.Tensor) -> torch.Tensor:
    return functional.gelu(x) * functional.elu(x)


def norm(x: torch.Tensor) -> torch.Tensor:
    return functional.layer_norm(x, (64,)) + 1


def keeps(x: torch.Tensor) -> torch.Tensor:
    return (x.sin().cos() * x.exp()).softmax(-1).sum()


def views(x: torch.Tensor) -> torch.Tensor:
    return x.sin().view(32, 128).view(-1) + 1


def parallel(*args: torch.Tensor) -> torch.Tensor:
    x, *weights = args
    return sum(functional.linear(x, weight, weight[0]) for weight in weights)  # type: ignore[return-value]


A = tensor()
TABLE: dict[str, tuple[str, Program, tuple[torch.Tensor, ...], Callable[[Made, Made], bool]]] = {
    "opt_level": ("--opt_level=1", product, (A,), lambda on, off: (on.groups, off.groups) == (1, 0)),
    "enable_cluster_ops": (
        "--opt_level=1 --enable_cluster_ops=MatMul", product, (A,), lambda on, off: "extern_kernels.mm(" in on.code
    ),
    "enable_cluster_ops_only": (
        "--enable_cluster_ops_only=add,Mul", chain, (A,), lambda on, off: "sin" not in on.code and "mul" in on.code
    ),
    "disable_cluster_ops": (
        "--disable_cluster_ops=cos", chain, (A,),
        lambda on, off: on.groups == 2 and ".cos()" in off.code and ".cos()" not in on.code,
    ),
    "fusion_ops_level": ("--fusion_ops_level=0", into_a_sum, (A,), lambda on, off: "sum" not in on.code and "sin" in on.code),
    "composite_op_limit_size": ("--composite_op_limit_size=2", chain, (A,), lambda on, off: (on.groups, on.kernels) == (3, 3)),
    "reduce_fuse_depth": ("--reduce_fuse_depth=1", into_a_sum, (A,), lambda on, off: (on.kernels, off.kernels) == (2, 1)),
    "disable_matmul_post_fusion": (
        "--disable_matmul_post_fusion", linear, (A,),
        lambda on, off: "extern_kernels.addmm(" in off.code and "extern_kernels.addmm(" not in on.code,
    ),
    "enable_expand_ops": (
        "--enable_expand_ops=addmm --disable_fusion_pattern=addmm", lambda a: torch.addmm(a[0], a, a), (A,),
        lambda on, off: "extern_kernels.addmm(" in off.code and on.kernels == 1 and off.kernels == 0,
    ),
    "enable_expand_ops_only": (
        "--enable_expand_ops_only=gelu", smooth, (A,), lambda on, off: "aten.elu" in on.code and "erf" in on.code
    ),
    "disable_expand_ops": (
        "--disable_expand_ops=gelu", smooth, (A,), lambda on, off: "aten.gelu" in on.code and "erf" in off.code
    ),
    "enable_simplify_exprs_only": (
        "--enable_simplify_exprs_only=remove_noop_ops", lambda x: (x.t().t() + 0).sin() * 2, (A,),
        lambda on, off: on.counters.get("removed_pointless_permute_pair", 0) == 0,
    ),
    "disable_simplify_exprs": (
        "--disable_simplify_exprs=pointless_view_pair,pointless_view", views, (A,),
        lambda on, off: on.counters.get("pattern_matcher_count", 0) < off.counters["pattern_matcher_count"],
    ),
    "enable_pass": (
        "--enable_pass=batch_linear_post_grad", parallel, (A, A + 1, A + 2),
        lambda on, off: on.counters.get("batch_linear_post_grad") == 1 and "batch_linear_post_grad" not in off.counters,
    ),
    "disable_pass": (
        "--disable_pass=pattern_matcher", with_bias, (A,), lambda on, off: "extern_kernels.addmm(" not in on.code
    ),
    "enable_fusion_pattern_only": (
        "--enable_fusion_pattern_only=pointless_view", with_bias, (A,), lambda on, off: "extern_kernels.addmm(" not in on.code
    ),
    "disable_fusion_pattern": (
        "--disable_fusion_pattern=addmm", with_bias, (A,), lambda on, off: "extern_kernels.addmm(" not in on.code
    ),
    "enable_parallel_fusion": ("--enable_parallel_fusion", apart, (A, A + 1), lambda on, off: (on.kernels, off.kernels) == (1, 2)),
    "enable_horizontal_fusion": (
        "--enable_horizontal_fusion=off", beside, (A,), lambda on, off: (on.kernels, off.kernels) == (2, 1)
    ),
    "enable_parallel_op_combine": (
        "--enable_parallel_op_combine", parallel, (A, A + 1, A + 2), lambda on, off: "batch_linear_post_grad" in on.counters
    ),
    "enable_auto_tensor_inplace": (
        "--enable_auto_tensor_inplace=0", in_place, (A,),
        lambda on, off: "in_out_ptr" in off.code and "in_out_ptr" not in on.code,
    ),
    "exact_precision_mode": (
        "--exact_precision_mode", through_16_bits, (A.bfloat16(),), lambda on, off: on.exact and not off.exact
    ),
    "enable_vectorization": (
        "--enable_vectorization=false", chain, (A,), lambda on, off: "Vectorized" in off.code and "Vectorized" not in on.code
    ),
    "cpu_feature": ("--cpu_feature=avx2", chain, (A,), lambda on, off: vector(on) == 8),
    "cpu_refer_thread_num": ("--cpu_refer_thread_num=3", chain, (tensor(512, 512),), lambda on, off: "num_threads(3)" in on.code),
    "enable_debug_mode": ("--enable_debug_mode", chain, (A,), lambda on, off: "RecordFunction" in on.code),
}  # fmt: skip
"""Flag → flags, a program, its arguments, and what distinguishes the code under them from that without."""
QUICK = ("opt_level", "disable_matmul_post_fusion")
ELSEWHERE = {
    *("dump_as_text", "enable_dynamic_shape_fusion", "enable_recompute_fusion", "recompute_peak_threshold"),
    *("recompute_increment_threshold", "online_tuning"),
}
"""Flags with a test of their own."""


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.full) for n in TABLE])
def test_a_flag_changes_the_code(name: str) -> None:
    flags, program, args, differs = TABLE[name]
    assert f"--{name}" in flags
    with torch.no_grad():
        on, off = compiled(program, *args, flags=flags), compiled(program, *args)
    assert differs(on, off), on


def test_every_flag_with_an_effect_on_a_cpu_has_a_test() -> None:
    assert {*TABLE} | ELSEWHERE == {flag.name for flag in FLAGS if not flag.why_not and "cpu" in flag.devices}
    assert len(TABLE) + len(ELSEWHERE) >= 20


# --- flags with tests of their own ------------------------------------------------------------------------------------


@pytest.mark.full
def test_what_the_backward_pass_keeps_and_computes_again() -> None:
    x = tensor().requires_grad_()
    usual, again, none = (
        saved(compiled(keeps, x, flags=flags, backward=True))
        for flags in ("", "--enable_recompute_fusion", "--enable_recompute_fusion=false")
    )
    assert again < usual < none
    for flags, kept in {
        "--recompute_peak_threshold=1": usual,
        "--recompute_peak_threshold=1000000": none,
        "--recompute_increment_threshold=1": usual,
        "--recompute_increment_threshold=1000000": none,
        "--enable_recompute_fusion=false --recompute_peak_threshold=1": none,
    }.items():
        assert saved(compiled(keeps, x, flags=flags, backward=True)) == kept, flags


def test_what_a_program_returns_or_is_given_is_no_result_that_the_backward_pass_keeps() -> None:
    def program(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x @ w).sin().cos().sum(), (x[:, :1] * 2).expand(8, 4096).contiguous()

    def kept(most: int, least: int) -> int:
        """How many bytes of its own the forward graph saves: a product of 128, and its sine."""

        def partitioned(*args: Any, **kwargs: Any) -> Any:
            forward, backward = fusion.KeepUpTo(most, least)(*args, **kwargs)
            found.append(sum(node.name in ("mm", "sin") for node in forward.graph.output_node().all_input_nodes) * 128)
            return forward, backward

        found: list[int] = []
        call = aot_function(program, fw_compiler=nop, bw_compiler=nop, partition_fn=partitioned)
        call(tensor(8, 16).requires_grad_(), tensor(16, 4).requires_grad_())
        return found[0]

    assert [kept(255, 0), kept(256, 0), kept(0, 127), kept(0, 128)] == [128, 256, 128, 256]


@pytest.mark.full
def test_graphs_with_dynamic_sizes_are_not_fused_unless_that_is_on() -> None:
    found = {}
    for on in ("true", "false"):
        x = tensor()
        torch._dynamo.mark_dynamic(x, 0)
        found[on] = compiled(chain, x, flags=f"--enable_dynamic_shape_fusion={on}").kernels
    assert found == {"true": 1, "false": 0}
    assert compiled(chain, tensor(), flags="--enable_dynamic_shape_fusion=false").kernels == 1


@pytest.mark.full
def test_groups_of_dynamic_sizes_have_all_sizes_that_they_need() -> None:
    x = tensor(12, 8)
    torch._dynamo.mark_dynamic(x, 0)
    assert compiled(lambda x: (x.exp().reshape(-1) @ x.reshape(-1)).sin() + x.cos().sum(0), x, flags="--opt_level=1").groups


@pytest.mark.full
def test_tuning_measures_variants_where_weights_are_constant() -> None:
    fc, x = nn.Linear(64, 64).eval(), tensor()
    with torch.no_grad(), fresh_cache():  # which has what was measured before
        tuned, usual = (compiled(lambda x: fc(x), x, flags=f"--online_tuning={n}", frozen_variable=True) for n in (1, 0))
    assert tuned.counters["select_algorithm_autotune"] == 1
    assert "select_algorithm_autotune" not in usual.counters


@pytest.mark.parametrize("level", [1, 2, 3])
def test_texts_of_what_fusion_does_are_written_where_asked_for(
    level: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "graph_kernel_dump"
    with torch.no_grad():
        compiled(chain, A, flags=f"--opt_level={level}")
        assert not folder.exists()
        compiled(chain, A, flags=f"--opt_level={level} --dump_as_text")
    found = {path.stem.partition("_")[2]: path.read_text() for path in folder.iterdir()}
    stages = {"before_passes", "after_joint_passes", "after_passes", "kernels_before_fusion", "kernels_after_fusion"}
    assert found.keys() == stages | ({"before_grouping", "after_grouping"} if level == 1 else set())
    assert all("sin" in text for name, text in found.items() if not name.startswith(("after_grouping", "kernels")))
    assert "SchedulerNode" in found["kernels_after_fusion"]
    assert level > 1 or "fused_" in found["after_grouping"]


def test_texts_of_an_earlier_process_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    earlier = tmp_path / "graph_kernel_dump" / "0041_before_passes.txt"
    earlier.parent.mkdir()
    earlier.write_text("a graph")
    with torch.no_grad():
        compiled(chain, A, flags="--opt_level=2 --dump_as_text")
    first, *later = sorted(earlier.parent.iterdir())
    assert (first, first.read_text()) == (earlier, "a graph")
    assert [int(path.name[:4]) for path in later] == [*range(42, 47)]


def test_a_folder_that_cannot_be_written_leaves_the_run_alive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "graph_kernel_dump").write_text("in the way")
    with torch.no_grad(), pytest.warns(msctx.MsctxWarning, match="graph_kernel_flags: cannot write to graph_kernel_dump"):
        compiled(chain, A, flags="--opt_level=2 --dump_as_text")


def test_nothing_is_written_where_nothing_is_fused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.warns(msctx.MsctxWarning, match="dump_as_text"):
        compiled(chain, A, flags="--opt_level=0 --dump_as_text")
    assert not [*tmp_path.iterdir()]


# --- levels -----------------------------------------------------------------------------------------------------------


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.attend, self.rest, self.drop = nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(8, 8), nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.gelu(self.norm(self.conv(x))).flatten(2).transpose(1, 2)
        x = functional.layer_norm(x + self.attend(x, x, x, need_weights=False)[0], (8,))
        result: torch.Tensor = self.drop(self.rest(x)).log_softmax(-1).sum()
        return result


FLAGS_TOGETHER = (
    *(f"--opt_level={level}" for level in range(4)),
    "--opt_level=2 --disable_cluster_ops=add,MatMul --reduce_fuse_depth=2",
    "--opt_level=3 --composite_op_limit_size=3 --disable_expand_ops=gelu,native_layer_norm",
)


@pytest.mark.full
@pytest.mark.parametrize("flags", FLAGS_TOGETHER)
@pytest.mark.parametrize("training", [True, False])
def test_a_model_gives_the_results_of_eager_code(flags: str, training: bool) -> None:
    torch.manual_seed(0)
    net, x = Block(), tensor(2, 3, 8, 8)
    net.drop.p = 0.0
    net.train(training)
    other = copy.deepcopy(net)
    expected = other(x)
    expected.backward()
    with msctx.context(mode="GRAPH_MODE", jit_syntax_level="STRICT", graph_kernel_flags=flags):
        result = net(x)
        result.backward()
    torch.testing.assert_close(result, expected)
    for (name, one), two in zip(net.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one.grad, two.grad, msg=lambda text, name=name: f"{name}: {text}", rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(net.norm.running_var, other.norm.running_var)


@pytest.mark.full
def test_groups_of_the_backward_pass_write_over_nothing_that_is_needed_later() -> None:
    """AOTAutograd numbers what a backward pass may write over among the inputs of the whole graph."""

    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm, self.second = nn.Linear(16, 16), nn.LayerNorm(16), nn.Linear(16, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x + self.first(x)
            return x + self.second(self.norm(x))

    torch.manual_seed(0)
    model, x = Residual(), torch.randn(2, 6, 16, requires_grad=True)
    right = torch.autograd.grad(model(x).square().sum(), [x, *model.parameters()])
    torch._dynamo.reset()
    with msctx.context(mode="GRAPH_MODE", graph_kernel_flags="--enable_cluster_ops_only=add"):
        found = torch.autograd.grad(model(x).square().sum(), [x, *model.parameters()])
    torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-4)


@pytest.mark.full
def test_random_numbers_outside_of_groups_are_those_of_eager_code() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return functional.dropout(x.sin() * 2, 0.5) + torch.rand(64) * functional.dropout(x.cos() + 1, 0.5)

    results = []
    for flags in ("--opt_level=0", "--opt_level=1"):
        torch._dynamo.reset()
        torch.manual_seed(0)
        with msctx.context(graph_kernel_flags=flags):
            results.append(msctx.jit(program)(A))
    torch.testing.assert_close(*results)


@pytest.mark.full
def test_what_a_program_writes_into_its_inputs_comes_last() -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        before = x.sin() * 2
        x.mul_(3).add_(y)
        return before + (x.exp() @ y).cos() * x

    x, y = tensor(4, 4) / 9, tensor(4, 4)
    other = x.clone()
    expected = program(other, y)
    with msctx.context(graph_kernel_flags="--opt_level=1", jit_syntax_level="STRICT"):
        torch.testing.assert_close(msctx.jit(program)(x, y), expected)
    torch.testing.assert_close(x, other)


def test_code_of_one_policy_never_runs_under_another() -> None:
    call = msctx.jit(lambda x: x.sin() * 2)
    for flags in ("--opt_level=0", "--opt_level=0", "--opt_level=2 --composite_op_limit_size=1", "--opt_level=0"):
        with msctx.context(graph_kernel_flags=flags):
            call(A)
    assert graphs() == 2


def test_groups_release_what_nobody_needs_any_more() -> None:
    def look(value: torch.Tensor) -> torch.Tensor:
        alive.append(first() is not None)
        return value

    graph = fx.Graph()
    later = graph.call_function(torch.neg, (graph.placeholder("x"),))
    graph.output((graph.call_function(look, (later,)),))
    run = fusion._in_groups(fusion.Way(Compilation(flags=(("opt_level", 1),))), fx.GraphModule({}, graph), {})
    args, alive = [torch.ones(3)], list[bool]()
    first = weakref.ref(args[0])
    run(args)
    assert alive == [False]


@pytest.mark.parametrize("flags", [{}, {"graph_kernel_flags": "--opt_level=1"}])
def test_a_backward_pass_that_cannot_be_compiled_runs_eagerly(flags: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(graph: fx.GraphModule, inputs: Any, **how: Any) -> Any:
        if not how.get("is_backward"):
            return inner(graph, inputs, **how)
        graph.graph.erase_node(graph.graph.output_node())  # as far as it came
        raise RuntimeError("no code")

    def gradient(call: Program) -> torch.Tensor:
        x = tensor(4, 4).requires_grad_()
        torch.autograd.backward(call(x))
        assert x.grad is not None
        return x.grad

    def program(x: torch.Tensor) -> torch.Tensor:
        return ((x * 2).sin() @ x).sum()

    inner = compile_fx.compile_fx_inner
    monkeypatch.setattr(compile_fx, "compile_fx_inner", fails)
    torch._dynamo.reset()
    with msctx.context(**flags), fresh_cache(), pytest.warns(msctx.MsctxWarning, match=r"test_graph_fusion.py:\d+: .* no code"):
        torch.testing.assert_close(gradient(msctx.jit(program)), gradient(program))
    with msctx.context(jit_syntax_level="STRICT", **flags), fresh_cache(), pytest.raises(RuntimeError, match="no code"):
        gradient(msctx.jit(program))


# --- names that match nothing -----------------------------------------------------------------------------------------


def test_names_that_match_nothing_are_reported_at_the_end_of_their_context() -> None:
    flags = "--disable_cluster_ops=sin,Nothing --enable_pass=cse,no_pass --disable_simplify_exprs=bmm_to_mm,bm"
    flags += " --composite_op_limit_size=1"
    with pytest.warns(msctx.MsctxWarning) as reported, msctx.context(graph_kernel_flags=flags):
        msctx.jit(lambda x: x.sin() * 2)(A)
    texts = "\n".join(str(one.message) for one in reported)
    for part in ("--disable_cluster_ops=Nothing matched no operator", "--enable_pass=no_pass matched no pass", "=bm matched"):
        assert part in texts
    assert "=sin " not in texts
    assert "=cse " not in texts
    assert "bmm_to_mm " not in texts


@pytest.mark.filterwarnings("error::msctx.MsctxWarning")
def test_nothing_is_reported_where_nothing_was_compiled_or_all_matched() -> None:
    with msctx.context(graph_kernel_flags="--disable_cluster_ops=Nothing"):
        pass
    flags = "--disable_cluster_ops=sin,Mul --composite_op_limit_size=1 --disable_fusion_pattern=merge_splits,decompose_mm"
    with msctx.context(graph_kernel_flags=flags):
        msctx.jit(lambda x: x.sin() * 2)(A)


# --- switches of passes, constants ------------------------------------------------------------------------------------


def switched(tmp_path: Path, text: str) -> dict[str, str]:
    file = tmp_path / "switch.json"
    file.write_text(text)
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
        made = compiled(scaled, A, **switched(tmp_path, f'{{"Switch": {{"GraphFusion": {switches}}}}}'))
        found[name] = "extern_kernels.addmm(" in made.code, made.counters.get("pattern_matcher_count", 0)
    assert found["none"][0]
    assert not any(found[name][0] for name in ("one off", "all off", "one on"))
    assert found["all off"][1] == 0
    assert found["all off"][1] < found["one on"][1] < found["none"][1]


def test_no_buffer_fusion_is_one_kernel_per_operator(tmp_path: Path) -> None:
    made = compiled(chain, A, **switched(tmp_path, '{"Switch": {"UBFusion": {"ALL": "off"}}}'))
    assert (made.kernels, made.groups) == (0, 0)


def test_an_unknown_pass_is_reported_with_its_name(tmp_path: Path) -> None:
    options = switched(tmp_path, '{"Switch": {"UBFusion": {"ALL": "off", "NoPass": "off"}}}')
    with pytest.warns(msctx.MsctxWarning, match="NoPass is no fusion pass that msctx knows"):
        compiled(chain, A, **options)


def test_a_file_that_does_not_parse_is_an_error_at_its_line(tmp_path: Path) -> None:
    with pytest.raises(msctx.OptionError, match=r"switch.json:2:\d+"):
        compiled(chain, A, **switched(tmp_path, '{"Switch":\n{"GraphFusion": {"ALL": "maybe"}}}'))


@pytest.mark.full
def test_weights_are_constants_where_no_gradients_are_computed() -> None:
    fc, x = nn.Linear(8, 8), tensor(4, 8)
    call: Callable[..., torch.Tensor] = lambda x: fc(x).relu()  # noqa: E731
    with torch.no_grad():
        frozen, usual = compiled(call, x, frozen_variable=True), compiled(call, x)
    assert "_frozen_param" in frozen.code
    assert "_frozen_param" not in usual.code
    with pytest.warns(msctx.MsctxWarning, match="not frozen in code that computes gradients"):
        assert "_frozen_param" not in compiled(call, x, frozen_variable=True).code
    assert not torch._inductor.config.freezing
