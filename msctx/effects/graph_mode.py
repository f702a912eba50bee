"""Graph mode: which code is compiled, and how."""

from __future__ import annotations

from ast import literal_eval

from msctx.effects import fusion
from msctx.effects.base import NOTHING_ASKED, Outcome, Want, approximated, effect, honoured
from msctx.effects.fusion import compiled
from msctx.effects.kernel_tuning import search
from msctx.options.grammars import gears_of, ranges_of
from msctx.options.graph import Compilation, Region, Shapes

STRICT, LAX = 0, 2
BY_TORCHAIR = "graphs of tensors on an NPU are compiled by torchair, when they first run"
CAPTURED = f"{BY_TORCHAIR}: here never. Code is captured, no graph is compiled ahead, and the call returns None"
ALONE = "for functions of msctx.jit alone: without mode=GRAPH_MODE modules run eagerly"
OF_MODELS = "for models with parameters: modules without any, such as losses, accept every shape"


def compilation(want: Want) -> Compilation:
    """What all options of graph mode come to together."""
    want = want.shared
    return Compilation(
        whole=want.other("jit_syntax_level", LAX) == STRICT or want.other("mix_compile_mode") is False,
        only=bool(want.other("precompile_only")),
        keeps={"O0": 1.0, "O1": 0.0}.get(want.other("memory_optimize_level")) if want.other("mode") == 0 else None,
        shapes=shapes(want),
        region=region(want),
        config=search(want),
        **fusion.asked(want),
    )


def region(want: Want) -> Region | None:
    pair = want.in_force("in_out_pair")
    if pair is None:
        return None
    first, last = literal_eval(pair.value)
    return Region(tuple(first), tuple(last), bool(want.other("in_out_pair_flag", True)))


def shapes(want: Want) -> Shapes:
    if want.in_force("input_shape") and want.in_force("dynamic_dims"):
        gears = gears_of(want.other("input_shape"), want.other("dynamic_dims"))
        return Shapes(gears=gears, named=want.other("dynamic_node_type") == 1, dynamic=False)
    if not want.other("dynamic_input"):
        own_code = False if want.other("jit_compile") == "true" else None
        return Shapes(dynamic=want.other("compile_dynamic_mode", own_code))
    ranges = ranges_of(want.other("dynamic_inputs_shape_range", "")) if want.in_force("dynamic_inputs_shape_range") else ()
    lazy = want.other("dynamic_graph_execute_mode") == "lazy_recompile"
    return Shapes(ranges=ranges, dynamic=False if lazy else None if ranges else True)


@effect("mode")
def mode(want: Want) -> Outcome:
    eager = want.value != 0
    found = {"graph.compilation": compilation(want), "graph.modules": not eager, "torch.dynamo.force_eager": eager}
    if not eager:
        found["torch.dynamo.skip_nnmodule_hook_guards"] = False
    return honoured(found, BY_TORCHAIR if want.device == "ascend" and not eager else "")


@effect("precompile_only")
def precompile_only(want: Want) -> Outcome:
    outcome = compiled(want)
    if want.device == "ascend" and want.value:
        return approximated(outcome.assignments, CAPTURED)
    return outcome


@effect("jit_syntax_level")
def jit_syntax_level(want: Want) -> Outcome:
    outcome = compiled(want)
    if want.device == "ascend" and want.value != STRICT:
        return approximated(outcome.assignments, f"{BY_TORCHAIR}; what it cannot compile is an error then")
    if want.value == 1 and outcome.status == "honoured":
        return approximated(outcome.assignments, "COMPATIBLE acts as LAX")
    return outcome


@effect("input_shape", "dynamic_dims", "dynamic_inputs_shape_range")
def given_shapes(want: Want) -> Outcome:
    return compiled(want, reason=OF_MODELS if want.other("mode") == 0 else "")


@effect(
    "enable_graph_kernel",
    "compile_dynamic_mode",
    "dynamic_input",
    "dynamic_graph_execute_mode",
    "in_out_pair",
    "in_out_pair_flag",
)
def others(want: Want) -> Outcome:
    return compiled(want)


@effect("dynamic_node_type")
def dynamic_node_type(want: Want) -> Outcome:
    outcome = compiled(want)
    if want.value == 0 and outcome.status == "honoured":
        return approximated(
            outcome.assignments, "batches have no names in PyTorch: input_shape applies to tensors in their order"
        )
    return outcome


@effect("grad_for_scalar")
def grad_for_scalar(want: Want) -> Outcome:
    return honoured({"graph.grad_for_scalar": want.value}, "in the functions that msctx.grad and msctx.value_and_grad return")


@effect("support_binary")
def support_binary(want: Want) -> Outcome:
    if not want.value:
        return NOTHING_ASKED
    return approximated(
        {},
        "Dynamo reads bytecode, so that .pyc files need no source and no preparing run; functions of extension modules (.so) run "
        "eagerly between compiled parts",
    )


@effect("mix_compile_mode")
def mix_compile_mode(want: Want) -> Outcome:
    """PyTorch computes so as it is."""
    if want.value and want.other("mode") != 0:
        return approximated(
            {},
            "eager code stays in PyTorch, and so does what torch.compile cannot compile, unless a call asks for fullgraph=True",
        )
    return compiled(want)
