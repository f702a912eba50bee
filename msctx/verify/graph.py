"""A graph of Dynamo's: in float64, up to a node, and run on copies of its inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_aggregate

from msctx.errors import MsctxError

LOW = (torch.float16, torch.bfloat16, torch.float32)
TO_LOW = ("half", "bfloat16", "float")
RANDOM = (torch.rand, torch.randn, torch.rand_like, torch.randn_like, torch.normal)
RANDOM_METHODS = ("uniform_", "normal_", "exponential_", "log_normal_", "cauchy_", "geometric_", "random_")
"""They draw other numbers in float64. Dropout and the like draw the same."""
DRAWS = ("dropout", "rand", "normal", "uniform", "bernoulli", "multinomial", "rrelu", "exponential")
ENTER, LEAVE = torch.amp.autocast_mode._enter_autocast, torch.amp.autocast_mode._exit_autocast


class NotComparable(MsctxError):
    """A graph that cannot run three times."""


class Nudge:
    """Changes values in their last bit, up or down: of the inputs, and then of what each node makes, and its gradient.

    So does rounding: the idea is that of CESTAC (Vignes, "A stochastic arithmetic for reliable scientific computation", 1993). Values
    that are one in memory are changed each on its own: so is what is computed of them.

    Args:
        eps: of the lowest dtype in which the graph computes.
    """

    def __init__(self, eps: float, seed: int) -> None:
        self._eps = eps
        self._draw = torch.Generator().manual_seed(seed)

    def __call__(self, values: torch.Tensor) -> torch.Tensor:
        if values.dtype not in LOW:
            return values
        up = torch.rand(values.shape, generator=self._draw).to(values) * 2 - 1
        return values * (1 + up * max(self._eps, torch.finfo(values.dtype).eps))

    def through(self, gm: fx.GraphModule) -> Callable[..., Any]:
        """The graph with such changes."""
        nudge = self

        class Nudged(fx.Interpreter):
            def run_node(self, n: fx.Node) -> Any:
                made = super().run_node(n)
                is_new = n.op in ("call_function", "call_method") and isinstance(made, torch.Tensor)
                if (
                    not is_new
                    or (made._is_view() and not _is_expanded(made))
                    or made.dtype not in LOW
                    or any(made is self.env.get(one) for one in n.all_input_nodes)
                ):
                    return made
                changed = nudge(made)
                if changed.requires_grad:
                    changed.register_hook(nudge)
                return changed

        return Nudged(gm, garbage_collect_values=False).run


class Sample:
    """The inputs of a call. Each run has copies of them, the same random numbers, and the same gradients of its results."""

    def __init__(self, inputs: Sequence[Any]) -> None:
        for one in inputs:
            if isinstance(one, torch.Tensor) and (one.layout is not torch.strided or one.is_quantized):
                raise NotComparable("a tensor is sparse or quantized")
        self._inputs = [_copied(one.detach()) if isinstance(one, torch.Tensor) else one for one in inputs]
        self._requires_grad = [
            isinstance(one, torch.Tensor) and one.requires_grad and torch.is_grad_enabled() for one in inputs
        ]

    def run(self, call: Callable[..., Any], *, wide: bool = False, nudge: Nudge | None = None) -> dict[str, torch.Tensor]:
        """The results, what the inputs hold after it, and the gradients of inputs, by name.

        Args:
            wide: the inputs are converted to float64.
            nudge: changes them.
        """
        leaves = [self._prepared(one, nudge, wide=wide) for one in self._inputs]
        for leaf, needs in zip(leaves, self._requires_grad, strict=True):
            if needs:
                leaf.requires_grad_()
        given = [_copied(one) if isinstance(one, torch.Tensor) else one for one in leaves]
        with torch.random.fork_rng(), torch.set_grad_enabled(torch.is_grad_enabled()):
            made = call(*given)
            results = [one for one in (made if isinstance(made, (tuple, list)) else [made]) if isinstance(one, torch.Tensor)]
            found = {f"result {number}": one for number, one in enumerate(results)}
            found |= {f"input {number} afterwards": one for number, one in enumerate(given) if isinstance(one, torch.Tensor)}
            found |= self._gradients(results, leaves)
        return {name: one.detach() for name, one in found.items()}

    def _prepared(self, one: Any, nudge: Nudge | None, *, wide: bool) -> Any:
        if not isinstance(one, torch.Tensor):
            return one
        if nudge is not None:
            return nudge(one).contiguous() if _is_expanded(one) else _copied(one, nudge(one))
        return _copied(one, one.double()) if wide and one.dtype in LOW else _copied(one)

    def _gradients(self, results: Sequence[torch.Tensor], leaves: Sequence[Any]) -> dict[str, torch.Tensor]:
        ends = [one for one in results if one.requires_grad]
        starts = {number: leaf for number, leaf in enumerate(leaves) if self._requires_grad[number]}
        if not ends or not starts:
            return {}
        draw = torch.Generator().manual_seed(1)
        weights = [torch.randn(one.shape, generator=draw).bfloat16().to(one) for one in ends]  # every dtype holds these
        found = torch.autograd.grad(ends, [*starts.values()], weights, materialize_grads=True)
        return {f"gradient of input {n}": g for n, g in zip(starts, found, strict=True)}


def _is_expanded(tensor: torch.Tensor) -> bool:
    return any(size > 1 and stride == 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def _copied(one: torch.Tensor, values: torch.Tensor | None = None) -> torch.Tensor:
    """A copy, or *values*, in memory of the same strides, for which code may be compiled."""
    values, shape = one if values is None else values, one.shape
    for dimension, (size, stride) in enumerate(zip(shape, one.stride(), strict=True)):
        if size > 1 and stride == 0:
            one, values = one.narrow(dimension, 0, 1), values.narrow(dimension, 0, 1)
    made = torch.empty_strided(one.shape, one.stride(), dtype=values.dtype, device=one.device)
    try:
        made.copy_(values)
    except RuntimeError:  # other places overlap
        return values.expand(shape).clone()
    return made.expand(shape)


def in_float64(tensor: torch.Tensor) -> torch.Tensor:
    """Its values; a complex number counts as two."""
    return (torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor).double()


def wide(gm: fx.GraphModule) -> fx.GraphModule:
    """A copy in which float64 stands for the smaller dtypes."""
    copy = deepcopy(gm).double()
    for part in copy.modules():
        if isinstance(part, fx.GraphModule):
            for node in part.graph.nodes:
                _widen(node)
            part.recompile()
    return copy


def _widen(node: fx.Node) -> None:
    if node.target in (ENTER, LEAVE):  # which leave float64 alone
        return
    if node.target in RANDOM or node.target in RANDOM_METHODS:
        made = node.meta.get("example_value")
        dtype = made.dtype if isinstance(made, torch.Tensor) else torch.float32
        node.op, node.target = "call_function", _drawing(node.target, dtype)
        return
    node.args = map_aggregate(node.args, _wider)
    node.kwargs = map_aggregate(node.kwargs, _wider)
    if node.op == "call_method" and node.target in TO_LOW:
        node.target = "double"


def _drawing(draw: Any, dtype: torch.dtype) -> Callable[..., torch.Tensor]:
    """A function that draws in *dtype* what is then converted."""

    def drawn(*args: Any, **kwargs: Any) -> torch.Tensor:
        if isinstance(draw, str):
            tensor, *rest = args
            return torch.Tensor.copy_(tensor, getattr(torch.empty_like(tensor, dtype=dtype), draw)(*rest, **kwargs))
        given = [one.to(dtype) if isinstance(one, torch.Tensor) else one for one in args]
        made: torch.Tensor = draw(*given, **kwargs if draw is torch.normal else kwargs | {"dtype": dtype})
        return made.double()

    return drawn


def lowest_eps(gm: fx.GraphModule, inputs: Sequence[Any]) -> float:
    """Of the dtypes in which the graph computes."""
    tensors = [*(node.meta.get("example_value") for node in gm.graph.nodes), *inputs]
    dtypes = {one.dtype for one in tensors if isinstance(one, torch.Tensor) and one.dtype in LOW}
    for device in ("cpu", *({one.device.type for one in tensors if isinstance(one, torch.Tensor)})):
        if torch.is_autocast_enabled(device):
            dtypes.add(torch.get_autocast_dtype(device))
    return max((torch.finfo(dtype).eps for dtype in dtypes), default=torch.finfo(torch.float64).eps)


def _wider(value: Any) -> Any:
    return torch.float64 if isinstance(value, torch.dtype) and value in LOW else value


def draws_in_a_part(gm: fx.GraphModule) -> bool:
    """Whether a part, such as a checkpoint's, draws random numbers."""
    parts = [part for part in gm.modules() if isinstance(part, fx.GraphModule) and part is not gm]
    return any(any(word in name_of(node) for word in DRAWS) for part in parts for node in part.graph.nodes)


def up_to(gm: fx.GraphModule, last: fx.Node) -> fx.GraphModule:
    """The graph up to a node; it returns what the rest needs of it."""
    part = fx.Graph()
    copied: dict[fx.Node, fx.Node] = {}
    entered: list[fx.Node] = []
    for node in _before(gm, last):
        copied[node] = part.node_copy(node, copied.__getitem__)
        if node.target is ENTER:
            entered.append(copied[node])
        elif node.target is LEAVE:
            entered.remove(copied[node.args[0]])  # type: ignore[index]
    for one in reversed(entered):
        part.call_function(LEAVE, (one,))
    made = [node for node in copied if _is_result(node) and (node is last or any(user not in copied for user in node.users))]
    part.output(tuple(copied[node] for node in made))
    return fx.GraphModule(gm, part)


def _before(gm: fx.GraphModule, last: fx.Node) -> Iterator[fx.Node]:
    """All inputs, and the nodes up to *last*."""
    nodes = [*gm.graph.nodes]
    end = nodes.index(last)
    return (node for number, node in enumerate(nodes) if number <= end or node.op == "placeholder")


def _is_result(node: fx.Node) -> bool:
    return node.op not in ("placeholder", "get_attr") and isinstance(node.meta.get("example_value"), torch.Tensor)


def maker(node: fx.Node) -> fx.Node:
    """Of an element of a tuple the node that made the tuple."""
    while getattr(node.target, "__name__", "") == "getitem" and isinstance(node.args[0], fx.Node):
        node = node.args[0]
    return node


def name_of(node: fx.Node) -> str:
    """``linear``, ``aten::relu``."""
    if isinstance(node.target, torch._ops.OpOverload):
        return node.target._schema.name
    return str(getattr(node.target, "__name__", node.target))
