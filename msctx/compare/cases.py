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
from msctx.compare.workload import LAST, NetworkLayer, Product, geometry, output_of, text
from msctx.native.choices import ConvProblem

Results = list[torch.Tensor]


@dataclass
class Case:
    """One row of a comparison.

    Attributes:
        direction: ``fprop``, ``dgrad`` or ``wgrad`` of a convolution, ``forward`` of a product, ``inference`` or ``training``.
        problem: its shapes as text.
        run: computes it; this is what is timed.
        results: computes it and gives what is held against the truth.
        truth: the same in float64.
        scope: entered around everything that is done with it.
        module: what ``ctx.watch`` is to know of.
        per_value: whether the error is that of single values over the largest (as the algorithms' bounds are), or of all in the
            mean square.
    """

    name: str
    direction: str
    problem: str
    count: int
    run: Callable[[], Any]
    results: Callable[[], Results]
    truth: Callable[[], Results]
    scope: Callable[[], AbstractContextManager[Any]] = nullcontext
    module: nn.Module | None = None
    per_value: bool = True


def error_of(found: Results, truth: Results, per_value: bool) -> float:
    """The error against float64: the largest over the largest value; or the root of mean squares over that of the values.

    Infinity: a value is not finite, a shape is another one, or there is nothing but whole numbers and they differ.
    """
    if len(found) != len(truth) or any(a.shape != b.shape for a, b in zip(found, truth, strict=True)):
        return float("inf")
    pairs = [(a, b) for a, b in zip(found, truth, strict=True) if b.is_floating_point() or b.is_complex()]
    if not pairs:  # indices move with roundings, so they count only where there is nothing else
        return 0.0 if all(torch.equal(a, b.to(a.dtype)) for a, b in zip(found, truth, strict=True)) else float("inf")
    return max(_error(one.to(exact.dtype), exact, per_value) for one, exact in pairs)


def _error(one: torch.Tensor, exact: torch.Tensor, per_value: bool) -> float:
    if not exact.numel():
        return 0.0
    if not one.isfinite().all():
        return float("inf")
    sizes = ((one - exact).abs(), exact.abs())
    size, scale = (float(part.max() if per_value else part.norm()) for part in sizes)
    return size / scale if scale else size


def of_layer(layer: NetworkLayer, directions: Sequence[str], device: torch.device) -> Iterator[Case]:
    """A case for each direction; a product has its forward pass alone."""
    problem = layer.problem
    if isinstance(problem, Product):

        def matrices() -> Results:
            a, b = _made((problem.a, problem.b), problem.dtype, device)
            return [a, b.mT.contiguous().mT if problem.b_transposed else b]

        yield _case_of_layer(layer, "forward", matrices, lambda a, b: [torch.matmul(a, b)])
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
    return Case(layer.name, direction, problem, layer.count, run, run, truth, scope)


def _made(shapes: Sequence[Sequence[int]], dtype: str, device: torch.device) -> Results:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(*shape, generator=generator).to(device, getattr(torch, dtype)) for shape in shapes]


def images(problem: ConvProblem, device: torch.device) -> Results:
    """Input, weight and the gradient of the output."""
    made = _made((problem.input, problem.weight, output_of(problem)), problem.dtype, device)
    last = LAST.get(len(problem.input)) if problem.layout == "channels_last" else None
    return [tensor.contiguous(memory_format=last) for tensor in made] if last else made


def _convolution(problem: ConvProblem, direction: str) -> Callable[..., Results]:
    rest = geometry(problem)

    def compute(x: torch.Tensor, w: torch.Tensor, g: torch.Tensor) -> Results:
        if direction == "fprop":
            return [torch.convolution(x, w, None, *rest)]
        mask = [direction == "dgrad", direction == "wgrad", False]
        found = torch.ops.aten.convolution_backward(g, x, w, None, *rest, mask)
        return [found[0] if direction == "dgrad" else found[1]]

    return compute


def of_model(model: Model, phases: Sequence[str]) -> Iterator[Case]:
    """Inference: the results; training: the gradients of the mean square of the results, without dropout."""
    if any(map(torch.nn.parameter.is_lazy, (*model.module.parameters(), *model.module.buffers()))):
        model.fresh().forward()  # they become what they are
    tensors = [value for value in (*model.args, *model.kwargs.values()) if isinstance(value, torch.Tensor)]
    shapes = ", ".join(text(tensor.shape) for tensor in tensors)
    modes = [(part, part.training) for part in model.module.modules()]
    for phase in phases:
        results, truth = partial(_results, model, phase), partial(_truth, model, phase)
        run, scope = partial(_step, model.fresh(), phase), partial(_mode, model.module, phase, modes)
        yield Case(model.name, phase, shapes, 1, run, results, truth, scope, model.module, per_value=False)


def _step(model: Model, phase: str) -> Results:
    if phase == "inference":
        with torch.no_grad():
            return model.forward()
    for parameter in model.module.parameters():
        parameter.grad = None
    results = [r for r in model.forward() if r.is_floating_point() or r.is_complex()]
    if not any(result.requires_grad for result in results):
        raise ValueError("nothing of its result depends on a parameter that is trained: compare phases: [inference]")
    torch.stack([result.abs().square().mean() for result in results]).sum().backward()
    return results


def _results(model: Model, phase: str) -> Results:
    torch.manual_seed(0)
    results = [result.detach() for result in _step(model.fresh(), phase)]
    if phase == "training":
        # as one tensor: that of a bias before a normalisation is zero, and has an error of any size
        results.append(torch.cat([p.grad.flatten() for p in model.module.parameters() if p.grad is not None]))
    return results


def _truth(model: Model, phase: str) -> Results:
    return _results(model.exact(copy.deepcopy(model.module)), phase)


@contextmanager
def _mode(module: nn.Module, phase: str, modes: list[tuple[nn.Module, bool]]) -> Iterator[None]:
    """The mode of a phase, without dropout. Training keeps the *modes* in which the model was given: of frozen parts, or of all."""
    for part, training in modes:
        part.training = training
    if phase == "inference":
        module.eval()
    for part in module.modules():
        if isinstance(part, nn.modules.dropout._DropoutNd | nn.MultiheadAttention | nn.RNNBase):
            part.eval()  # random numbers of another dtype are others
    yield
