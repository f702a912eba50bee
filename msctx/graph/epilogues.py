"""In graphs of inference, convolutions take batch norm, bias, sum and activation after them into their call."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._guards import detect_fake_mode
from torch._inductor.fx_passes.post_grad import view_to_reshape
from torch._inductor.inductor_prims import force_stride_order
from torch._library.utils import get_layout_constraint_tag
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.fx.experimental.symbolic_shapes import statically_known_true as known
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

from msctx.graph.pre_grad_passes import match
from msctx.native import core

# --- activations, as inductor decomposes them ---------------------------------------------------------------------------

ACTIVATIONS = ("none", "relu", "clamp", "silu", "sigmoid", "hardswish", "hardsigmoid", "gelu", "gelu_tanh")
"""In the order of the kernels' (kernels/include/msctx/conv.h)."""
_GATE = ("clamp", ("clamp", ("add", "x", 3), 0, None), None, 6)
_CUBE = [("mul", ("mul", "x", "x"), "x"), ("pow", "x", 3)]
_CURVE = ("tanh", ("mul", ("add", "x", ("mul", _CUBE, 0.044715)), (2 / math.pi) ** 0.5))
_PATTERNS: dict[str, Any] = {
    "relu": ("relu", "x"),
    "clamp": ("clamp", ("clamp", "x", "low", None), None, "high"),
    "silu": ("div", "x", ("add", ("exp", ("neg", "x")), 1)),
    "sigmoid": ("sigmoid", "x"),
    "hardswish": ("div", ("mul", "x", _GATE), 6),
    "hardsigmoid": ("div", _GATE, 6),
    "gelu": ("mul", ("mul", "x", 0.5), ("add", ("erf", ("mul", "x", 0.5**0.5)), 1)),
    "gelu_tanh": ("mul", ("mul", "x", 0.5), ("add", _CURVE, 1)),
}
MOST = 12
"""Operators of a pattern, and some more."""


def activation(node: fx.Node) -> tuple[str, fx.Node, float, float] | None:
    """That of *node* alone: its name, the last of its operators, and the bounds of a clamp. Nothing else needs what is in between."""
    inside, reached = {node}, {*node.users}
    while reached and len(inside) < MOST:
        last = min(reached)
        for name, pattern in _PATTERNS.items() if len(reached) == 1 else ():
            for found in match(pattern, last, {"x": node}):
                low, high = found.get("low", 0.0), found.get("high", 0.0)
                if isinstance(low, float | int) and isinstance(high, float | int) and low <= high:
                    return name, last, float(low), float(high)
        if not last.users:  # it leaves the graph
            return None
        inside.add(last)
        reached = (reached | {*last.users}) - inside
    return None


aten = torch.ops.aten


def fold(graph: fx.GraphModule) -> None:
    """Replace them, on CPU tensors, by calls of the operator that kernels/glue/convolution.cpp defines.

    A batch norm or another factor for each channel stays a factor: the weight is the model's own, by which rules find its module and
    the core keeps what it makes of it. The results of convolutions are channels_last then; those of the graph keep their strides.
    """
    found = [*filter(_is_ours, graph.graph.find_nodes(op="call_function", target=aten.convolution.default))]
    if not found or any(free_unbacked_symbols(node.meta.get("val")) or _depends_on_strides(node) for node in graph.graph.nodes):
        return
    view_to_reshape(graph)  # of other strides, a view may be none
    _operator()
    before = [node.meta.get("val") if isinstance(node, fx.Node) else None for node in _results(graph)]
    renamed = graph.graph.find_nodes(op="call_function", target=aten.as_strided.default)
    for node in renamed:
        node.replace_all_uses_with(node.all_input_nodes[0])
    for node in reversed(found):  # an addition of two follows the later one
        _replace(graph.graph, node)
    graph.graph.eliminate_dead_code()
    values = [node.meta["val"] for node in graph.graph.find_nodes(op="placeholder")]
    with torch.no_grad():  # the strides that tensors have now
        FakeTensorProp(graph, detect_fake_mode(values)).propagate_dont_convert_inputs(*values)
    for node, value in dict(zip(_results(graph), before, strict=False)).items():
        _give_back_strides(graph.graph, node, value)
    graph.recompile()


def _results(graph: fx.GraphModule) -> list[Any]:
    (results,) = graph.graph.output_node().args
    return list(results) if isinstance(results, tuple | list) else [results]


def _depends_on_strides(node: fx.Node) -> bool:
    """Whether its result depends on how a tensor lies in memory, as the order of random numbers does that are made like one.

    A graph of control flow was traced for the strides of before; those of flex_attention take numbers alone. To some of a program's
    own operators inductor gives tensors as its graph has them, and not as eager code would.
    """
    if node.target is aten.view.dtype or (node.target is aten.as_strided.default and not _changes_nothing(node)):
        return True
    takers = [user.target for user in node.users] if node.op == "get_attr" else []
    if any(isinstance(one, torch._ops.HigherOrderOperator) and not one.name().startswith("flex_") for one in takers):
        return True
    # also an argument of one that writes for it
    operators = [one for one in (node.target, *node.args) if isinstance(one, torch._ops.OpOverload)]
    if any(get_layout_constraint_tag(one) is torch.Tag.needs_fixed_stride_order for one in operators):
        return True
    # attention is tagged as if it drew numbers: with a dropout, it has another operator that does
    seeded = [
        one for one in operators if torch.Tag.nondeterministic_seeded in one.tags and "scaled_dot_product" not in str(one)
    ]
    draws = bool(seeded) or "rand" in str(node.target)
    return draws and any(getattr(given.meta["val"], "ndim", 0) for given in node.all_input_nodes)


def _changes_nothing(node: fx.Node) -> bool:
    """Whether it gives other strides to extents of 1 alone, as PyTorch's average of whole channels_last images does."""
    if node.target is not aten.as_strided.default:
        return False
    of, to = _value(node.all_input_nodes[0]), _value(node)
    if of.dim() != to.dim() or not known(of.storage_offset() == to.storage_offset()):
        return False
    each = zip(of.shape, to.shape, of.stride(), to.stride(), strict=True)
    return all(known(size == other) and (known(size == 1) or known(step == now)) for size, other, step, now in each)


def _is_ours(node: fx.Node) -> bool:
    if node.kwargs:
        return False
    value, weight = _value(node), _value(node.args[1])
    args: Any = node.args
    numbers = (*weight.shape, *args[3], *args[4], *args[5], args[8])
    if not all(isinstance(number, int) for number in numbers):
        return False
    if value.dtype != torch.float32 or weight.dtype != torch.float32 or value.device.type != "cpu":
        return False
    return value.dim() == 4 and not node.args[6]


def _value(node: Any) -> torch.Tensor:
    value = node.meta["val"]
    assert isinstance(value, torch.Tensor)
    return value


# --- what follows -----------------------------------------------------------------------------------------------------


@dataclass
class Epilogue:
    """activation(result * scale + shift + other), or *other* after the activation; *scale* and *shift* by channel."""

    scale: fx.Node | None = None
    shift: fx.Node | None = None
    other: fx.Node | None = None
    activation: str = "none"
    low: float = 0.0
    high: float = 0.0
    adds_last: bool = False


def _replace(graph: fx.Graph, node: fx.Node) -> None:
    """Put one call in the place of a convolution and of what follows it."""
    args: Any = node.args
    given, weight, shift, *pairs, _, _, groups = args
    e, last = Epilogue(shift=shift), node
    while (after := _follow(graph, node, last, e)) is not None:
        last = after
    norm = _batch_norm(e) or {"scale": e.scale, "shift": e.shift}
    numbers = (number for one in pairs for number in (one if len(one) == 2 else [*one, *one]))
    how = "stride {} {} padding {} {} dilation {} {}".format(*numbers)
    how += f" groups {groups} {e.activation}{' sum' * e.adds_last}"
    with graph.inserting_after(last):
        call = graph.call_function(
            torch.ops.msctx.convolution.default,
            (given, weight, how, *map(norm.get, _OF_NORM), e.other, e.low, e.high, norm.get("epsilon", 0.0)),
        )
    call.meta = dict(node.meta)
    last.replace_all_uses_with(call, delete_user_cb=lambda user: user is not call)


_OF_NORM = "scale", "shift", "mean", "variance"
_RECIPROCAL = ("mul", ("reciprocal", ("sqrt", ("add", "variance", "epsilon"))), 1)
_CENTRE = ("mul", ("neg", "mean"), _RECIPROCAL)
_NORMS = [(("mul", _RECIPROCAL, "scale"), ("add", ("mul", _CENTRE, "scale"), "shift")), (_RECIPROCAL, _CENTRE)]
"""A batch norm's factor and term for each channel, with and without weights, as `_follow` makes them."""


def _batch_norm(e: Epilogue) -> dict[str, Any]:
    """The parts of a batch norm, from which the operator computes scale and shift: less than a kernel's call for each costs."""
    for scale, shift in _NORMS:
        for found in match(scale, e.scale, {}):
            for whole in match(shift, e.shift, found):
                vectors = [whole[name] for name in _OF_NORM if name in whole]
                if isinstance(whole["epsilon"], float) and all(
                    _is_shaped(one, [*_value(vectors[-1]).shape]) for one in vectors
                ):
                    return whole
    return {}


def _channels(node: fx.Node) -> int:
    return int(_value(node).shape[1])


def _follow(graph: fx.Graph, base: fx.Node, node: fx.Node, e: Epilogue) -> fx.Node | None:
    """Take the operator or operators after *node* into the epilogue of *base*; returns the last of them, or None."""
    if e.activation == "none" and (found := activation(node)) is not None:
        e.activation, last, e.low, e.high = found
        return last
    if len(node.users) != 1:
        return None
    (user,) = node.users
    if user.op != "call_function" or user.kwargs or len(user.args) != 2:
        return None
    left, right = user.args
    other: Any = right if left is node else left
    if other is node:
        return None
    if user.target is aten.add.Tensor and e.other is None and _is_shaped(other, [*_value(node).shape]):
        e.other, e.adds_last = other, e.activation != "none"
        return user
    target, is_last = user.target, e.activation != "none" or e.other is not None
    affine = (aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor)
    if is_last or target not in affine or (target is aten.sub.Tensor and left is not node):
        return None
    with graph.inserting_before(user):
        if (value := _by_channel(graph, base, node, other)) is None:
            return None
        if target is aten.mul.Tensor:
            e.scale = value if e.scale is None else graph.call_function(target, (e.scale, value))
        if e.shift is not None:  # its NaN times zero is a NaN
            e.shift = graph.call_function(target, (e.shift, value))
        elif target is not aten.mul.Tensor:
            e.shift = value if target is aten.add.Tensor else graph.call_function(aten.neg.default, (value,))
    return user


def _is_shaped(given: Any, shape: list[int]) -> bool:
    """Whether it is a float32 tensor of this shape, without a guard on what has symbols."""
    value = given.meta.get("val") if isinstance(given, fx.Node) else None
    if not isinstance(value, torch.Tensor) or value.dim() != len(shape) or value.dtype != torch.float32:
        return False
    return all(known(a == b) for a, b in zip(value.shape, shape, strict=True))


def _by_channel(graph: fx.Graph, base: fx.Node, node: fx.Node, other: Any) -> fx.Node | None:
    """*other* as a vector, if it has a value for each channel of *node*."""
    channels = _channels(base)
    if not any(_is_shaped(other, shape) for shape in ([channels, 1, 1], [1, channels, 1, 1])):
        return None
    while other.target is aten.unsqueeze.default:  # [channels] as it was before
        (other, *_) = other.args
    return other if _value(other).dim() == 1 else graph.call_function(aten.reshape.default, (other, [channels]))


# --- the operator -------------------------------------------------------------------------------------------------------


@functools.cache
def _operator() -> None:
    core.load()  # defines it

    def result(given: Any, weight: Any, how: str, *rest: Any) -> torch.Tensor:
        *pairs, groups = [int(word) for word in how.split() if word.isdigit()]
        plain = aten.convolution.default(given, weight, None, pairs[:2], pairs[2:4], pairs[4:], False, [0, 0], groups)
        return torch.empty_like(plain, memory_format=torch.channels_last)

    torch.library.register_fake("msctx::convolution", result)


def _hints(numbers: Any) -> list[int]:
    """Without a guard on those that have symbols."""
    return [number.node.hint if isinstance(number, torch.SymInt) else number for number in numbers]


def _give_back_strides(graph: fx.Graph, node: fx.Node, before: Any) -> None:
    if not isinstance(before, torch.Tensor) or _hints(before.stride()) == _hints(node.meta["val"].stride()):
        return
    with graph.inserting_before(graph.output_node()):
        if not before.is_contiguous():
            restored = graph.call_function(force_stride_order, (node, _hints(before.stride())))
        else:
            restored = graph.call_function(aten.clone.default, (node,), {"memory_format": torch.contiguous_format})
    restored.meta = node.meta | {"val": before}
    graph.output_node().replace_input_with(node, restored)
