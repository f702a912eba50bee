"""What is timed: a direction of a layer, or a phase of a model; each with its inputs, what computes it, and the truth in float64."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from msctx.compare.model import Model
from msctx.compare.workload import Convolution, Layer, Matmul

Results = list[torch.Tensor]


@dataclass
class Case:
    """One row of a comparison.

    Attributes:
        name: the layer's or the model's.
        direction: ``fprop``, ``dgrad`` or ``wgrad`` of a convolution, ``forward`` of a product, ``inference`` or ``training``.
        problem: its shapes as text.
        count: how often it occurs.
        operations: multiplications and additions, 0 where they are not counted.
        run: computes it.
        truth: computes it in float64.
        module: what ``ctx.watch`` is to know of.
    """

    name: str
    direction: str
    problem: str
    count: int
    operations: int
    run: Callable[[], Results]
    truth: Callable[[], Results]
    module: nn.Module | None = None
    per_tensor: bool = True
    """Whether the error is that of single values over the largest (as the algorithms' bounds are), or of all in the mean square."""


def error_of(found: Results, truth: Results, per_tensor: bool) -> float:
    """The error against float64: the largest over the largest value; or the root of mean squares over that of the values."""
    worst = 0.0
    if len(found) != len(truth):
        return float("inf")
    for one, exact in zip(found, truth, strict=True):
        if not exact.is_floating_point() or not exact.numel():
            continue
        one = one.detach().double()
        difference = one - exact
        size, scale = (difference.abs().max(), exact.abs().max()) if per_tensor else (difference.norm(), exact.norm())
        error = float(size) / float(scale) if float(scale) else float(size)
        worst = max(worst, error) if error == error else float("inf")  # NaN
    return worst


# --- layers -----------------------------------------------------------------------------------------------------------


def of_layer(layer: Layer, directions: Sequence[str], device: torch.device) -> Iterator[Case]:
    """A case for each direction; a product has its forward pass alone."""
    if isinstance(layer, Matmul):
        yield _product(layer, device)
        return
    for direction in directions:
        yield _convolution(layer, direction, device)


def _normal(shape: Sequence[int], dtype: str, device: torch.device, generator: torch.Generator) -> torch.Tensor:
    return torch.randn(*shape, generator=generator).to(device, getattr(torch, dtype))


def _convolution(layer: Convolution, direction: str, device: torch.device) -> Case:
    tensors: list[torch.Tensor] = []

    def inputs() -> list[torch.Tensor]:
        """Input, weight and the gradient of the output; made when first needed."""
        if not tensors:
            generator = torch.Generator().manual_seed(0)
            shapes = (layer.input, layer.weight, layer.output)
            made = [_normal(shape, layer.dtype, device, generator) for shape in shapes]
            if layer.layout == "channels_last" and (kind := _LAST.get(len(layer.input))) is not None:
                made = [tensor.contiguous(memory_format=kind) for tensor in made]
            tensors.extend(made)
        return tensors

    each = (list(layer.stride), list(layer.padding), list(layer.dilation), layer.transposed, list(layer.output_padding))

    def compute(x: torch.Tensor, w: torch.Tensor, g: torch.Tensor) -> Results:
        if direction == "fprop":
            return [torch.convolution(x, w, None, *each, layer.groups)]
        mask = [direction == "dgrad", direction == "wgrad", False]
        found = torch.ops.aten.convolution_backward(g, x, w, None, *each, layer.groups, mask)
        return [found[0] if direction == "dgrad" else found[1]]

    return Case(
        layer.name,
        direction,
        str(layer),
        layer.count,
        layer.operations,
        lambda: compute(*inputs()),
        lambda: compute(*(tensor.double() for tensor in inputs())),
    )


_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def _product(layer: Matmul, device: torch.device) -> Case:
    tensors: list[torch.Tensor] = []

    def inputs() -> list[torch.Tensor]:
        if not tensors:
            generator = torch.Generator().manual_seed(0)
            tensors.extend(_normal(shape, layer.dtype, device, generator) for shape in (layer.a, layer.b))
        return tensors

    def truth() -> Results:
        a, b = inputs()
        return [a.double() @ b.double()]

    return Case(layer.name, "forward", str(layer), layer.count, layer.operations, lambda: [torch.matmul(*inputs())], truth)


# --- models -----------------------------------------------------------------------------------------------------------


def of_model(model: Model, phases: Sequence[str]) -> Iterator[Case]:
    """Inference: the results; training: the gradients of the mean square of the results, without dropout."""
    for phase in phases:
        yield _phase(model, phase)


def _phase(model: Model, phase: str) -> Case:
    def results_of(model: Model) -> Results:
        _set_mode(model.module, phase)
        if phase == "inference":
            with torch.no_grad():
                return model.forward()
        averages = [(buffer, buffer.clone()) for buffer in model.module.buffers()]
        model.module.zero_grad()
        results = [result for result in model.forward() if result.is_floating_point()]
        torch.stack([result.square().mean() for result in results]).sum().backward()
        gradients = [p.grad.flatten() for p in model.module.parameters() if p.grad is not None]
        for buffer, value in averages:  # each step begins as the first did
            buffer.data.copy_(value)
        # as one tensor: that of a bias before a normalisation is zero, and has an error of any size
        return [*(result.detach() for result in results), torch.cat(gradients)]

    def truth() -> Results:
        return results_of(model.converted(copy.deepcopy(model.module).double(), torch.float64))

    shapes = ", ".join("x".join(map(str, tensor.shape)) for tensor in _tensors(model))
    return Case(model.name, phase, shapes, 1, 0, lambda: results_of(model), truth, model.module, per_tensor=False)


def _set_mode(module: nn.Module, phase: str) -> None:
    module.train(phase == "training")
    for part in module.modules():
        if isinstance(part, nn.modules.dropout._DropoutNd | nn.MultiheadAttention | nn.RNNBase):
            part.eval()  # random numbers of another dtype are others


def _tensors(model: Model) -> list[torch.Tensor]:
    return [value for value in (*model.args, *model.kwargs.values()) if isinstance(value, torch.Tensor)]
