"""What is timed: a direction of a layer, or a phase of a model; each with its inputs, what computes it, and the truth in float64."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from msctx.compare.model import Model
from msctx.compare.workload import Convolution, Matmul, NetworkLayer

Results = list[torch.Tensor]
PHASES = ("inference", "training")


@dataclass
class Case:
    """One row of a comparison.

    Attributes:
        name: the layer's or the model's.
        direction: ``fprop``, ``dgrad`` or ``wgrad`` of a convolution, ``forward`` of a product, ``inference`` or ``training``.
        problem: its shapes as text.
        count: how often it occurs.
        operations: multiplications and additions, 0 where they are not counted.
        run: computes it; this is what is timed.
        results: computes it and gives what is held against the truth.
        truth: the same in float64.
        scope: entered around everything that is done with it: puts back what it changes of a user's model.
        module: what ``ctx.watch`` is to know of.
        per_value: whether the error is that of single values over the largest (as the algorithms' bounds are), or of all in the
            mean square.
    """

    name: str
    direction: str
    problem: str
    count: int
    operations: int
    run: Callable[[], Any]
    results: Callable[[], Results]
    truth: Callable[[], Results]
    scope: Callable[[], AbstractContextManager[Any]] = nullcontext
    module: nn.Module | None = None
    per_value: bool = True


def error_of(found: Results, truth: Results, per_value: bool) -> float:
    """The error against float64: the largest over the largest value; or the root of mean squares over that of the values.

    Infinity: a value is not finite where float64's is, a shape is another one, or there is nothing but whole numbers and they differ.
    """
    if len(found) != len(truth) or any(a.shape != b.shape for a, b in zip(found, truth, strict=True)):
        return float("inf")
    pairs = [(a, b) for a, b in zip(found, truth, strict=True) if b.is_floating_point() or b.is_complex()]
    if not pairs:  # indices move with roundings, so they count only where there is nothing else
        return 0.0 if all(torch.equal(a, b.to(a.dtype)) for a, b in zip(found, truth, strict=True)) else float("inf")
    return max(_error(_real(one.detach()).double(), _real(exact.detach()).double(), per_value) for one, exact in pairs)


def _real(tensor: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def _error(one: torch.Tensor, exact: torch.Tensor, per_value: bool) -> float:
    if not exact.numel():
        return 0.0
    there = exact.isfinite()
    if not torch.equal(one.isfinite(), there) or not torch.equal(one[~there].nan_to_num(0), exact[~there].nan_to_num(0)):
        return float("inf")
    difference, exact = (one - exact)[there], exact[there]
    if not exact.numel():
        return 0.0
    size, scale = (difference.abs().max(), exact.abs().max()) if per_value else (difference.norm(), exact.norm())
    return float(size) / float(scale) if float(scale) else float(size)


# --- layers -----------------------------------------------------------------------------------------------------------


def of_layer(layer: NetworkLayer, directions: Sequence[str], device: torch.device) -> Iterator[Case]:
    """A case for each direction; a product has its forward pass alone."""
    if isinstance(layer, Matmul):
        yield _product(layer, device)
        return
    for direction in directions:
        yield _convolution(layer, direction, device)


def _made(shapes: Sequence[Sequence[int]], dtype: str, device: torch.device) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(*shape, generator=generator).to(device, getattr(torch, dtype)) for shape in shapes]


def _convolution(layer: Convolution, direction: str, device: torch.device) -> Case:
    tensors: list[torch.Tensor] = []

    def inputs() -> list[torch.Tensor]:
        """Input, weight and the gradient of the output; made when first needed."""
        if not tensors:
            made = _made((layer.input, layer.weight, layer.output), layer.dtype, device)
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

    def run() -> Results:
        return compute(*inputs())

    def truth() -> Results:
        return compute(*(tensor.double() for tensor in inputs()))

    return Case(layer.name, direction, str(layer), layer.count, layer.operations, run, run, truth, torch.inference_mode)


_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def _product(layer: Matmul, device: torch.device) -> Case:
    tensors: list[torch.Tensor] = []

    def inputs() -> list[torch.Tensor]:
        if not tensors:
            a, b = _made((layer.a, layer.b), layer.dtype, device)
            tensors.extend((a, b.mT.contiguous().mT if layer.b_transposed else b))
        return tensors

    def run() -> Results:
        return [torch.matmul(*inputs())]

    def truth() -> Results:
        a, b = inputs()
        return [a.double() @ b.double()]

    return Case(layer.name, "forward", str(layer), layer.count, layer.operations, run, run, truth, torch.inference_mode)


# --- models -----------------------------------------------------------------------------------------------------------


def of_model(model: Model, phases: Sequence[str]) -> Iterator[Case]:
    """Inference: the results; training: the gradients of the mean square of the results, without dropout."""
    if any(map(torch.nn.parameter.is_lazy, (*model.module.parameters(), *model.module.buffers()))):
        model.look()  # they become what they are
    for phase in phases:
        yield (_inference if phase == "inference" else _training)(model)


def _inference(model: Model) -> Case:
    def results(model: Model, seeded: bool = True) -> Results:
        with torch.no_grad():
            return model.forward(seeded=seeded)

    return _case(
        model, "inference", lambda: results(model, seeded=False), lambda: results(model), lambda: results(_exact(model))
    )


def _training(model: Model) -> Case:
    def step(model: Model, seeded: bool = True) -> Results:
        for parameter in model.module.parameters():
            parameter.grad = None
        results = [r for r in model.forward(seeded=seeded) if r.is_floating_point() or r.is_complex()]
        if not any(result.requires_grad for result in results):
            raise ValueError("nothing of its result depends on a parameter that is trained: compare phases: inference")
        torch.stack([result.abs().square().mean() for result in results]).sum().backward()
        return results

    def with_gradients(model: Model) -> Results:
        results = step(model)
        gradients = [_real(p.grad).flatten() for p in model.module.parameters() if p.grad is not None]
        # as one tensor: that of a bias before a normalisation is zero, and has an error of any size
        return [*(result.detach() for result in results), torch.cat(gradients)]

    return _case(
        model,
        "training",
        lambda: step(model, seeded=False),
        lambda: with_gradients(model),
        lambda: with_gradients(_exact(model)),
    )


def _case(
    model: Model, phase: str, run: Callable[[], Any], results: Callable[[], Results], truth: Callable[[], Results]
) -> Case:
    tensors = [value for value in (*model.args, *model.kwargs.values()) if isinstance(value, torch.Tensor)]
    shapes = ", ".join("x".join(map(str, tensor.shape)) for tensor in tensors)
    scope = partial(_mode, model.module, phase)
    return Case(model.name, phase, shapes, 1, 0, run, results, truth, scope, model.module, per_value=False)


def _exact(model: Model) -> Model:
    def widest(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(torch.complex128) if tensor.is_complex() else tensor.double() if tensor.is_floating_point() else tensor

    return model.converted(copy.deepcopy(model.module)._apply(widest), torch.float64)


@contextmanager
def _mode(module: nn.Module, phase: str) -> Iterator[None]:
    """The mode of a phase, without dropout; what a phase changes of the module is put back afterwards.

    A model that trains already keeps the modes of its parts, such as normalisations that somebody has frozen.
    """
    modes = [(part, part.training) for part in module.modules()]
    buffers = [(buffer, buffer.clone()) for buffer in module.buffers()]
    gradients = [(parameter, parameter.grad) for parameter in module.parameters()]
    try:
        if phase == "inference" or not module.training:
            module.train(phase == "training")
        for part in module.modules():
            if isinstance(part, nn.modules.dropout._DropoutNd | nn.MultiheadAttention | nn.RNNBase):
                part.eval()  # random numbers of another dtype are others
        yield
    finally:
        for part, training in modes:
            part.training = training
        for buffer, value in buffers:
            buffer.data.copy_(value)
        for parameter, gradient in gradients:
            parameter.grad = gradient
