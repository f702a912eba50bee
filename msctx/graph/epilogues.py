"""Convolutions of graphs without gradients take what follows them into their call: batch norm, bias, addition, activation."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import fx

aten = torch.ops.aten
OPERATOR = "msctx::convolution"
Number: TypeAlias = float | int | fx.Node


def fold(graph: fx.GraphModule) -> int:
    """Replace them, on CPU tensors, by calls of the operator that kernels/glue/finished.h has; returns how many.

    A batch norm or another factor for each channel stays a factor: the weight is the model's own, by which rules find its module and
    the core keeps what it makes of it. The results of the operator are channels_last; those of the graph keep their strides.
    """
    from torch._inductor.fx_passes.post_grad import view_to_reshape

    found = [node for node in graph.graph.find_nodes(op="call_function", target=aten.convolution.default) if _is_ours(node)]
    if not found or any(_is_unbacked(node) or _is_of_strides(node) for node in graph.graph.nodes):
        return 0
    view_to_reshape(graph)  # of other strides, a view may be none
    _operator()
    before = [node.meta.get("val") for node in graph.graph.output_node().all_input_nodes]
    for node in reversed(found):  # where two meet in an addition, it follows the later one
        _replace(graph.graph, node)
    graph.graph.eliminate_dead_code()
    _propagate(graph)
    for node, value in zip(graph.graph.output_node().all_input_nodes, before, strict=True):
        _give_back_strides(graph.graph, node, value)
    graph.recompile()
    return len(found)


BY_STRIDES = {aten.as_strided.default, aten.view.dtype}


def _is_of_strides(node: fx.Node) -> bool:
    """Whether it depends on how a tensor lies in memory; as the order of random numbers does."""
    tags = getattr(node.target, "tags", ())
    return node.target in BY_STRIDES or torch.Tag.nondeterministic_seeded in tags or "rand" in str(node.target)


def _is_ours(node: fx.Node) -> bool:
    value, weight = _value(node), _value(node.args[1])
    transposed = bool(node.args[6])
    if not all(isinstance(size, int) for size in weight.shape):
        return False
    return value.dim() == 4 and value.dtype == weight.dtype == torch.float32 and value.device.type == "cpu" and not transposed


def _value(node: Any) -> torch.Tensor:
    value = node.meta["val"]
    assert isinstance(value, torch.Tensor)
    return value


def _is_unbacked(node: fx.Node) -> bool:
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

    return bool(free_unbacked_symbols(node.meta.get("val")))


# --- what follows -----------------------------------------------------------------------------------------------------


@dataclass
class Epilogue:
    """activation(result * scale + shift + other), or *other* after the activation; *scale* and *shift* by channel."""

    scale: Number = 1
    shift: Number = 0
    other: fx.Node | None = None
    activation: str = "none"
    low: float = 0.0
    high: float = 0.0
    adds_last: bool = False


def _replace(graph: fx.Graph, node: fx.Node) -> None:
    given, weight, bias, stride, padding, dilation, _, _, groups = node.args
    epilogue, last = Epilogue(shift=bias or 0), node  # type: ignore[arg-type]
    while (after := _follow(graph, node, last, epilogue)) is not None:
        last = after
    with graph.inserting_after(last):
        parts = [stride, padding, dilation, groups]
        call = graph.call_function(torch.ops.msctx.convolution.default)
    channels = _value(node).shape[1]
    with graph.inserting_before(call):
        scale, shift = (_filled(graph, part, usual, channels) for part, usual in ((epilogue.scale, 1), (epilogue.shift, 0)))
    e = epilogue
    call.args = (given, weight, *parts, scale, shift, e.other, e.activation, e.low, e.high, e.adds_last)
    call.meta = dict(node.meta)
    last.replace_all_uses_with(call, delete_user_cb=lambda user: user is not call)


def _filled(graph: fx.Graph, part: Number, usual: int, channels: int) -> fx.Node | None:
    if isinstance(part, fx.Node):
        return part
    if part == usual:
        return None
    how: dict[str, Any] = {"dtype": torch.float32, "device": torch.device("cpu"), "pin_memory": False}
    return graph.call_function(aten.full.default, ([channels], float(part)), how)


def _follow(graph: fx.Graph, conv: fx.Node, node: fx.Node, e: Epilogue) -> fx.Node | None:
    """Take the operator or operators after *node* into the epilogue; returns the last of them, or None."""
    if e.activation == "none" and (found := _activation(node)) is not None:
        e.activation, last, e.low, e.high = found
        return last
    if len(node.users) != 1:
        return None
    (user,) = node.users
    if user.op != "call_function" or user.kwargs or len(user.args) != 2:
        return None
    left, right = user.args
    other = right if left is node else left
    if user.target is aten.add.Tensor and isinstance(other, fx.Node) and e.other is None and _is_like(conv, other):
        e.other, e.adds_last = other, e.activation != "none"
        return user
    if (
        e.activation != "none"
        or e.other is not None
        or not _is_of_channels(conv, other)
        or (left is not node and user.target not in SWAP)
    ):
        return None
    with graph.inserting_before(user):
        value = _flat(graph, conv, other)
        return user if _affine(graph, e, user.target, value) else None


SWAP = (aten.add.Tensor, aten.mul.Tensor)
SMALLEST, LARGEST = 2.0**-10, 2.0**10
"""Of numbers that are multiplied before they meet a result: what overflows there might not have."""


def _affine(graph: fx.Graph, e: Epilogue, target: Any, value: Number) -> bool:
    if target is aten.sub.Tensor:
        target, value = (
            aten.add.Tensor,
            -value if not isinstance(value, fx.Node) else graph.call_function(aten.neg.default, (value,)),
        )
    elif target is aten.div.Tensor and not isinstance(value, fx.Node) and value != 0:
        target, value = aten.mul.Tensor, 1 / value
    if target not in SWAP or not (isinstance(value, fx.Node) or value == 0 or SMALLEST <= abs(value) <= LARGEST):
        return False
    if target is aten.add.Tensor:
        e.shift = _of(graph, target, e.shift, value)
    elif target is aten.mul.Tensor:
        e.scale, e.shift = (_of(graph, target, part, value) for part in (e.scale, e.shift))
    return target in SWAP


def _of(graph: fx.Graph, target: Any, a: Number, b: Number) -> Number:
    """The sum or the product of numbers, or of tensors of the channels."""
    if not isinstance(a, fx.Node) and not isinstance(b, fx.Node):
        return a + b if target is aten.add.Tensor else a * b
    a, b = (a, b) if isinstance(a, fx.Node) else (b, a)
    if target is aten.mul.Tensor and b == 0:
        return 0
    return a if b == (0 if target is aten.add.Tensor else 1) else graph.call_function(target, (a, b))


def _is_like(conv: fx.Node, other: fx.Node) -> bool:
    return _is_shaped(other, [*_value(conv).shape])


def _is_shaped(node: fx.Node, shape: list[int]) -> bool:
    """Without a guard on what has symbols."""
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.dim() != len(shape) or value.dtype != torch.float32:
        return False
    return all(statically_known_true(a == b) for a, b in zip(value.shape, shape, strict=True))


def _is_of_channels(conv: fx.Node, other: Any) -> bool:
    if not isinstance(other, fx.Node):
        return isinstance(other, float | int)
    channels = _value(conv).shape[1]
    return any(_is_shaped(other, shape) for shape in ([channels, 1, 1], [1, channels, 1, 1]))


def _flat(graph: fx.Graph, conv: fx.Node, other: Any) -> Number:
    if not isinstance(other, fx.Node):
        return float(other)
    while other.target is aten.unsqueeze.default:  # [channels] as it was before
        (other, *_) = other.args
    flat: fx.Node = other
    return flat if _value(flat).dim() == 1 else graph.call_function(aten.reshape.default, (flat, [_value(conv).shape[1]]))


# --- activations, as inductor decomposes them ---------------------------------------------------------------------------


def _activation(node: fx.Node) -> tuple[str, fx.Node, float, float] | None:
    """Its name, the last of its operators, and the bounds of a clamp."""
    last: fx.Node | None
    if len(node.users) == 1:
        (user,) = node.users
        if user.target in (aten.relu.default, aten.sigmoid.default):
            return ("relu" if user.target is aten.relu.default else "sigmoid"), user, 0.0, 0.0
        low = _only(_then(node, aten.clamp_min.default))
        last = _then(low, aten.clamp_max.default)
        if low is not None and last is not None and isinstance(least := low.args[1], float | int):
            most = last.args[1]
            return ("clamp", last, float(least), float(most)) if isinstance(most, float | int) and least <= most else None
        last = _then(_gate(node), aten.div.Tensor, 6)
        return ("hardsigmoid", last, 0.0, 0.0) if last is not None else None
    if len(node.users) == 2:
        if (last := _silu(node)) is not None:
            return "silu", last, 0.0, 0.0
        last = _then(_only(_both(node, _gate(node), aten.mul.Tensor)), aten.div.Tensor, 6)
        return ("hardswish", last, 0.0, 0.0) if last is not None else None
    return None


def _then(node: fx.Node | None, target: Any, number: float | None = None) -> fx.Node | None:
    """The use of *node* as first argument of this operator, with this number, if that is given."""
    for user in node.users if node is not None else ():
        if user.target is target and user.args[0] is node and not user.kwargs and number in (None, user.args[-1]):
            return user
    return None


def _only(node: fx.Node | None) -> fx.Node | None:
    """*node*, if it is used once: nothing else needs it."""
    return node if node is not None and len(node.users) == 1 else None


def _gate(node: fx.Node) -> fx.Node | None:
    """clamp(node + 3, 0, 6)"""
    above = _only(_then(_only(_then(node, aten.add.Tensor, 3)), aten.clamp_min.default, 0))
    return _only(_then(above, aten.clamp_max.default, 6))


def _both(node: fx.Node, other: fx.Node | None, target: Any) -> fx.Node | None:
    """target(node, other), in either order."""
    (user,) = other.users if other is not None else (None,)
    return user if user is not None and user.target is target and {*user.args} == {node, other} else None


def _silu(node: fx.Node) -> fx.Node | None:
    """node / (exp(-node) + 1)"""
    exponential = _only(_then(_only(_then(node, aten.neg.default)), aten.exp.default))
    below = _only(_then(exponential, aten.add.Tensor, 1))
    found = _both(node, below, aten.div.Tensor)
    return found if found is not None and found.args[0] is node else None


# --- the operator -------------------------------------------------------------------------------------------------------


@functools.cache
def _operator() -> None:
    from msctx.native import core

    core.load()  # defines it

    def result(given: Any, weight: Any, stride: Any, padding: Any, dilation: Any, groups: int, *rest: Any) -> torch.Tensor:
        plain = aten.convolution.default(given, weight, None, stride, padding, dilation, False, [0, 0], groups)
        return torch.empty_like(plain, memory_format=torch.channels_last)

    torch.library.register_fake(OPERATOR, result)


def _propagate(graph: fx.GraphModule) -> None:
    """The strides that tensors have now."""
    from torch._guards import detect_fake_mode
    from torch.fx.passes.fake_tensor_prop import FakeTensorProp

    values = [node.meta["val"] for node in graph.graph.find_nodes(op="placeholder")]
    FakeTensorProp(graph, detect_fake_mode(values)).propagate_dont_convert_inputs(*values)


def _hints(numbers: Any) -> list[int]:
    """Without a guard on those that have symbols."""
    return [number.node.hint if isinstance(number, torch.SymInt) else number for number in numbers]


def _give_back_strides(graph: fx.Graph, node: fx.Node, before: Any) -> None:
    from torch._inductor.inductor_prims import force_stride_order

    if not isinstance(before, torch.Tensor) or _hints(before.stride()) == _hints(node.meta["val"].stride()):
        return
    with graph.inserting_before(graph.output_node()):
        if before.is_contiguous():
            restored = graph.call_function(aten.clone.default, (node,), {"memory_format": torch.contiguous_format})
        else:
            restored = graph.call_function(force_stride_order, (node, _hints(before.stride())))
    restored.meta = node.meta | {"val": before}
    graph.output_node().replace_input_with(node, restored)
