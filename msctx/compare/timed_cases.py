"""What is timed: the layers of a workload, or a user's own model from `package.module:function`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from msctx.compare.layer_workload_file import LAST, NetworkLayer, Product, geometry, output_of, text
from msctx.errors import EntryError, EntryFailed, Mark, MsctxError
from msctx.native.policy_and_choices import ConvProblem
from msctx.run.experiment_and_entry import Experiment, resolve, users_traceback


@dataclass
class Model:
    name: str
    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def forward(self) -> list[torch.Tensor]:
        """The tensors of its result."""
        found = self.module(*self.args, **self.kwargs)
        tensors = [leaf for leaf in pytree.tree_leaves(_opened(found)) if isinstance(leaf, torch.Tensor)]
        if not tensors:
            raise ValueError(f"its result, of type {type(found).__name__}, holds no tensor")
        return tensors

    def fresh(self) -> Model:
        """With a copy of its input, which it may write to."""
        return self._with(self.module, torch.clone)

    def to(self, device: torch.device) -> Model:
        """On a device, module and input."""
        return self._with(self.module.to(device), lambda tensor: tensor.to(device))

    def exact(self) -> Model:
        """A copy in float64."""
        return self._with(copy.deepcopy(self.module)._apply(widest), widest)

    def _with(self, module: nn.Module, convert: Any) -> Model:
        def each(value: Any) -> Any:
            return convert(value) if isinstance(value, torch.Tensor) else value

        return replace(self, module=module, args=pytree.tree_map(each, self.args), kwargs=pytree.tree_map(each, self.kwargs))


def widest(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.complex128) if tensor.is_complex() else tensor.double() if tensor.is_floating_point() else tensor


def _opened(found: Any) -> Any:
    """What is in a result: a model output of transformers, and an object of a class of its own with tensors for attributes."""
    if hasattr(found, "to_tuple"):
        return found.to_tuple()
    return pytree.tree_map(lambda leaf: leaf if isinstance(leaf, torch.Tensor) else getattr(leaf, "__dict__", leaf), found)


def load(entry: str, file: Path | None = None, mark: Mark | None = None) -> Model:
    """The model that a function makes, which a *file* names at a *mark*: a path of a .py file is meant from its folder."""
    function = resolve(Experiment(levels={}, file=file, entry=entry, entry_mark=mark))
    try:
        made = function(None)
    except MsctxError:
        raise
    except SystemExit as end:
        raise EntryFailed(f"{entry} ends itself with {end.code!r}") from None
    except Exception as error:
        raise EntryFailed(f"{entry} raised\n{users_traceback(error)}") from None
    if not isinstance(made, tuple | list) or len(made) != 2 or not isinstance(made[0], nn.Module):
        kinds = [type(one).__name__ for one in made] if isinstance(made, tuple | list) else []
        what = f"{len(kinds)} values ({', '.join(kinds)})" if kinds else type(made).__name__
        raise EntryError(f"entry {entry!r}: it returns {what}; it must return a torch.nn.Module and an input for it")
    module, given = made
    kwargs = dict(given) if isinstance(given, Mapping) else {}
    args = () if isinstance(given, Mapping) else tuple(given) if isinstance(given, tuple | list) else (given,)
    inputs = [(f"input {i}", value) for i, value in enumerate(pytree.tree_leaves(given))]
    named = [*module.named_parameters(), *module.named_buffers(), *inputs]
    if empty := next((name for name, value in named if isinstance(value, torch.Tensor) and value.is_meta), ""):
        raise EntryError(
            f"entry {entry!r}: {empty} is on the meta device, which has no values. Return a module and an input "
            "with values, on a CPU or an accelerator (module.to_empty(device='cpu') and initial values, or a checkpoint)"
        )
    return Model(entry.rpartition(":")[2], module, args, kwargs)


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
        yield _case_of_layer(layer, direction, lambda: images(problem, device), _convolving(problem, direction))


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


def _convolving(problem: ConvProblem, direction: str) -> Callable[..., Results]:
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
        results, truth = (partial(_results, model, phase, is_exact=exact) for exact in (False, True))
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


def _results(model: Model, phase: str, is_exact: bool) -> Results:
    torch.manual_seed(0)
    model = model.exact() if is_exact else model
    results = [result.detach() for result in _step(model.fresh(), phase)]
    if phase == "training":
        # as one tensor: that of a bias before a normalisation is zero, and has an error of any size
        results.append(torch.cat([p.grad.flatten() for p in model.module.parameters() if p.grad is not None]))
    return results


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
