"""parallel_speed_up_json_path with its keys, hcom_parallel, is_tailing_optimization: what of a program they move."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from plans import check, rows
from ranks import two_ranks

import msctx
from msctx.effects.overlap import ALONE, AS_ONE, DDP, DETERMINISTIC, FSDP, IN_CODE, PASSES
from msctx.errors import OptionError
from msctx.options import DEVICES

BUCKETS = [f"torch.inductor.bucket_{kind}_fx" for kind in ("all_gathers", "reduce_scatters", "all_reduces")]
REORDERS = "torch.inductor.reorder_for_compute_comm_overlap"
APART = "torch.dynamo.apart"


def moved(on: bool) -> dict[str, Any]:
    return {REORDERS: on, f"{REORDERS}_passes": [*PASSES] if on else []}


def test_gradients_are_reduced_after_the_backward_pass_where_either_says_so() -> None:
    first, second = "parallel_speed_up_json_path.enable_grad_comm_opt", "hcom_parallel"
    for device in DEVICES:
        for name in (first, second):
            for value in (True, False):
                check([(device, {name: value}, {name: ("honoured", {"models.gradients_postponed": not value}, DDP)})])
        check(
            [
                (
                    device,
                    {first: one, second: not one},
                    {
                        first: ("inert", {}, "overridden by hcom_parallel=False")
                        if one
                        else ("honoured", {"models.gradients_postponed": True}, DDP),
                        second: ("inert", {}, f"overridden by {first}=False")
                        if not one
                        else ("honoured", {"models.gradients_postponed": True}, DDP),
                    },
                )
                for one in (True, False)
            ]
        )


def test_fewer_messages() -> None:
    name = "parallel_speed_up_json_path.enable_task_opt"
    for value, word in ((True, "all"), (False, "none")):
        found = {"models.gradients_bundled": value, **dict.fromkeys(BUCKETS, word), APART: (f"enable_task_opt={value}",)}
        for device in ("cpu", "cuda"):
            check([(device, {name: value}, {name: ("honoured", found, f"{DDP}; {IN_CODE}")})])
        check([("ascend", {name: value}, {name: ("approximated" if value else "honoured", found, IN_CODE)})])


def test_weights_are_gathered_ahead() -> None:
    name = "parallel_speed_up_json_path.enable_opt_shard_comm_opt"
    for device in DEVICES:
        for value in (True, False):
            check([(device, {name: value}, {name: ("honoured", {"models.gathered_ahead_forward": value}, FSDP)})])


def test_collectives_are_moved_all_alike() -> None:
    again, product = (
        "parallel_speed_up_json_path.recompute_comm_overlap",
        "parallel_speed_up_json_path.matmul_grad_comm_overlap",
    )
    back = {"models.gathered_ahead_backward": True}

    def words(**both: bool) -> dict[str, Any]:
        return {APART: tuple(f"{name}={value}" for name, value in both.items())}

    for device in ("cpu", "cuda"):
        check(
            [
                (
                    device,
                    {again: True},
                    {again: ("approximated", moved(True) | back | words(recompute_comm_overlap=True), AS_ONE)},
                ),
                (
                    device,
                    {product: True},
                    {product: ("approximated", moved(True) | words(matmul_grad_comm_overlap=True), AS_ONE)},
                ),
                (
                    device,
                    {product: False},
                    {product: ("honoured", moved(False) | words(matmul_grad_comm_overlap=False), IN_CODE)},
                ),
                (
                    device,
                    {again: True, product: False},
                    {
                        product: (
                            "approximated",
                            moved(True) | words(recompute_comm_overlap=True, matmul_grad_comm_overlap=False),
                            f"{again} is on",
                        )
                    },
                ),
                (device, {product: True, "deterministic": "ON"}, {product: ("refused", {}, DETERMINISTIC)}),
                (device, {again: True, "deterministic": "ON"}, {again: ("approximated", back, DETERMINISTIC)}),
            ]
        )


def test_concatenations_are_removed() -> None:
    name, switch = "parallel_speed_up_json_path.enable_concat_eliminate_opt", "torch.inductor.removes_concatenations"
    for value in (True, False):
        found = {switch: value, APART: (f"enable_concat_eliminate_opt={value}",)}
        check([("cpu", {name: value}, {name: ("honoured", found, "torch.compile")})])


def test_products_and_collectives_become_one_kernel_in_both_passes_or_in_none() -> None:
    name = "parallel_speed_up_json_path.compute_communicate_fusion_level"
    for level, status, switch in ((0, "honoured", False), (3, "approximated", True)):
        found = {"torch.inductor._micro_pipeline_tp": switch, APART: (f"compute_communicate_fusion_level={level}",)}
        check([("cuda", {name: level}, {name: (status, found, "enable_symm_mem_for_group" if level else IN_CODE)})])
    for level in (1, 2):
        check([("cuda", {name: level}, {name: ("refused", {}, "3 or 0")})])
    check(
        [
            ("ascend", {name: 3}, {name: ("refused", {}, "npu_mm_all_reduce_base")}),
            ("cpu", {name: 3}, {name: ("inert", {}, "cpu")}),
        ]
    )


def test_an_update_before_the_last_gradients_is_refused() -> None:
    for device in DEVICES:
        check(
            [
                (device, {"is_tailing_optimization": True}, {"is_tailing_optimization": ("refused", {}, "clipping")}),
                (device, {"is_tailing_optimization": False}, {"is_tailing_optimization": ("honoured", {}, "nothing is asked")}),
            ]
        )


def test_keys_of_the_file_are_the_options(tmp_path: Path) -> None:
    path = tmp_path / "speed.json"
    path.write_text(json.dumps({"grad_computation_allreduce_overlap": False, "enable_communication_fusion": True}))
    with msctx.context(parallel_speed_up_json_path=str(path)) as ctx:
        found = ctx.plan.assignments
        assert (found["models.gradients_postponed"], found["models.gradients_bundled"]) == (True, True)
        assert msctx.state()["models.gradients_postponed"] is True
        with msctx.context(**{"parallel_speed_up_json_path.enable_grad_comm_opt": True}):
            assert msctx.state()["models.gradients_postponed"] is False
            assert msctx.state()["models.gradients_bundled"] is True
    assert msctx.state()["models.gradients_postponed"] is False
    path.write_text('{"enable_task_opt": 1,\n "enable_tsk_opt": true,\n "compute_communicate_fusion_level": 9}')
    with pytest.raises(OptionError) as raised:
        msctx.context(parallel_speed_up_json_path=str(path))
    for place in (":1:21", ":2:2", ":3:38"):
        assert f"speed.json{place}" in str(raised.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *((key, True) for key in ("recompute_comm_overlap", "matmul_grad_comm_overlap", "enable_task_opt")),
        *((key, True) for key in ("enable_grad_comm_opt", "enable_opt_shard_comm_opt")),
        ("compute_communicate_fusion_level", 3),
    ],
)
def test_a_process_alone_is_told_that_there_is_no_communication(key: str, value: Any) -> None:
    name = f"parallel_speed_up_json_path.{key}"
    assert ALONE in rows({name: value}, on="cuda")[name].reason


def test_options_about_watched_models_warn_where_none_is_watched() -> None:
    for name, value in (("hcom_parallel", False), ("parallel_speed_up_json_path.enable_opt_shard_comm_opt", True)):
        with pytest.warns(msctx.MsctxWarning, match=r"did nothing"), msctx.context(**{name: value}):
            pass


# --- what inductor makes of it ----------------------------------------------------------------------------------------

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
def test_products_are_computed_while_gradients_of_inputs_are_communicated(passes: Callable[..., str]) -> None:
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
def test_what_is_computed_again_is_so_while_something_is_communicated(passes: Callable[..., str]) -> None:
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
def test_collectives_of_compiled_code_are_bundled(passes: Callable[..., str]) -> None:
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
def test_products_and_collectives_become_one_operator(passes: Callable[..., str]) -> None:
    """What level 3 writes on CUDA, seen in the graph; the kernels themselves need GPUs that see each other's memory."""
    passes(
        """
import warnings
warnings.simplefilter("ignore")
import torch, torch.distributed as dist, msctx
import torch.distributed._functional_collectives as collectives
from torch._inductor import config
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch.distributed._symmetric_memory import _test_mode
from torch.testing._internal.distributed.fake_pg import FakeStore
from msctx.switches import SWITCHES

class Enough(Exception):
    pass

class Look(CustomGraphPass):
    def __call__(self, graph):
        seen.extend(str(node.target) for node in graph.nodes if "symm_mem" in str(node.target))
        raise Enough
    def uuid(self):
        return None

def gathered(x, w):
    return collectives.all_gather_tensor(x, 0, "0") @ w

def scattered(x, w):
    return collectives.reduce_scatter_tensor(x @ w, "sum", 0, "0")

dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
dist.is_nccl_available = lambda: True  # torch asks before it fuses
fuses, x, w = SWITCHES["torch.inductor._micro_pipeline_tp"], torch.randn(8, 16), torch.randn(16, 8)
found = fuses.save()
for function, name in ((gathered, "fused_all_gather_matmul"), (scattered, "fused_matmul_reduce_scatter")):
    for on in (False, True):
        torch._dynamo.reset()
        seen = []
        fuses.write(on)
        with _test_mode(), config.patch(post_grad_custom_post_pass=Look()):
            try:
                torch.compile(function)(x, w)
            except Exception as error:
                assert "Enough" in str(error) + type(error).__name__, error
        assert seen == [f"symm_mem.{name}.default"] * on, (name, on, seen)
fuses.load(found)
assert config._micro_pipeline_tp is False
""",
        timeout=240,
    )


@pytest.mark.full
def test_compiled_code_computes_the_same_on_two_ranks(tmp_path: Path) -> None:
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
