"""What is timed: a direction of a layer, or a phase of a model; each with its inputs, what computes it, and the truth in float64."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch import nn

from msctx.compare.model import Model
from msctx.compare.workload import NetworkLayer, Product, output_of, text
from msctx.native.choices import ConvProblem

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
    problem = layer.problem
    if isinstance(problem, Product):
        yield _case_of_layer(layer, "forward", lambda: _matrices(problem, device), lambda a, b: [torch.matmul(a, b)])
        return
    for direction in directions:
        yield _case_of_layer(layer, direction, lambda: images(problem, device), _convolution(problem, direction))


def _case_of_layer(layer: NetworkLayer, direction: str, make: Callable[[], Results], compute: Callable[..., Results]) -> Case:
    inputs = cache(make)  # made when first needed

    def run() -> Results:
        return compute(*inputs())

    def truth() -> Results:
        return compute(*(tensor.double() for tensor in inputs()))

    problem, scope = str(layer.problem), torch.inference_mode
    return Case(layer.name, direction, problem, layer.count, layer.operations, run, run, truth, scope)


def _made(shapes: Sequence[Sequence[int]], dtype: str, device: torch.device) -> Results:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(*shape, generator=generator).to(device, getattr(torch, dtype)) for shape in shapes]


def _matrices(problem: Product, device: torch.device) -> Results:
    a, b = _made((problem.a, problem.b), problem.dtype, device)
    return [a, b.mT.contiguous().mT if problem.b_transposed else b]


def images(problem: ConvProblem, device: torch.device) -> Results:
    """Input, weight and the gradient of the output."""
    made = _made((problem.input, problem.weight, output_of(problem)), problem.dtype, device)
    last = LAST.get(len(problem.input)) if problem.layout == "channels_last" else None
    return [tensor.contiguous(memory_format=last) for tensor in made] if last else made


LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
"""Number of axes → the memory format with channels last."""


def _convolution(problem: ConvProblem, direction: str) -> Callable[..., Results]:
    one = problem
    rest = (one.stride, one.padding, one.dilation, one.transposed, one.output_padding, one.groups)

    def compute(x: torch.Tensor, w: torch.Tensor, g: torch.Tensor) -> Results:
        if direction == "fprop":
            return [torch.convolution(x, w, None, *rest)]
        mask = [direction == "dgrad", direction == "wgrad", False]
        found = torch.ops.aten.convolution_backward(g, x, w, None, *rest, mask)
        return [found[0] if direction == "dgrad" else found[1]]

    return compute


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

    return _case(model, "inference", lambda: results(model, seeded=False), results)


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

    return _case(model, "training", lambda: step(model, seeded=False), with_gradients)


def _case(model: Model, phase: str, run: Callable[[], Any], results: Callable[[Model], Results]) -> Case:
    tensors = [value for value in (*model.args, *model.kwargs.values()) if isinstance(value, torch.Tensor)]
    shapes = ", ".join(text(tensor.shape) for tensor in tensors)
    scope = partial(_mode, model.module, phase)
    found, truth = partial(results, model), lambda: results(_exact(model))
    return Case(model.name, phase, shapes, 1, 0, run, found, truth, scope, model.module, per_value=False)


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
