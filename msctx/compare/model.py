"""The user's own model, ``package.module:function``, which returns a module and an input; and the layer problems that it has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.module_tracker import ModuleTracker

from msctx.compare.workload import DTYPES, LAST, NetworkLayer, Product, Workload
from msctx.errors import EntryError, EntryFailed, Mark, MsctxError
from msctx.native.choices import ConvProblem
from msctx.run.config import Experiment
from msctx.run.entry import resolve, users_traceback


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

    def exact(self, module: nn.Module) -> Model:
        """In float64, *module* being a copy of its own."""
        return self._with(module._apply(widest), widest)

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


aten = torch.ops.aten


def capture(model: Model) -> Workload:
    """Run a model once, in evaluation mode, and count its convolutions and products; equal ones are one layer.

    A layer has the path of the first module that computes it for a name. What multiplies and is no convolution and no product
    of matrices (attention or an LSTM that is one operator, for instance) is not in it; the workload lists these.
    """
    model.module.eval()
    try:
        with ModuleTracker() as tracker, _Recorder(tracker) as recorder:
            model.forward()  # with gradients: without them PyTorch's encoder computes a layer in one operator
    except (Exception, SystemExit) as error:
        raise EntryFailed(f"the model raised\n{users_traceback(error)}") from None
    layers: dict[ConvProblem | Product, NetworkLayer] = {}
    for layer in recorder.found:
        if (first := layers.get(layer.problem)) is None:
            name, taken = layer.name or "model", {other.name for other in layers.values()}
            names = (name, *(f"{name}#{number}" for number in range(2, len(taken) + 2)))
            layers[layer.problem] = replace(layer, name=next(one for one in names if one not in taken))
        else:
            layers[layer.problem] = replace(first, count=first.count + 1)
    skipped = tuple(f"{name} x{count}" for name, count in sorted(recorder.left_out.items()))
    return Workload(model.name, tuple(layers.values()), f"one forward pass of {model.name}", skipped)


class _Recorder(TorchDispatchMode):
    def __init__(self, tracker: ModuleTracker) -> None:
        super().__init__()
        self.found: list[NetworkLayer] = []
        self.left_out: Counter[str] = Counter()
        self._tracker = tracker

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        make = _PROBLEMS.get(function)
        if make is not None and (problem := make(*args)) is not None:
            self.found.append(NetworkLayer(self._path(), problem))
        elif make is not None or any(word in function.name() for word in _MULTIPLYING):
            self.left_out[str(function)] += 1
        return function(*args, **(kwargs or {}))

    def _path(self) -> str:
        """Of the innermost module that computes now, without the class of the outermost."""
        inside = max(self._tracker.parents - {"Global"}, key=len, default="")
        return inside.partition(".")[2].replace("_orig_mod.", "")


def _convolution(x: torch.Tensor, weight: torch.Tensor, bias: Any, *rest: Any) -> ConvProblem | None:
    stride, padding, dilation, transposed, output_padding, groups = rest

    def along(values: list[int]) -> tuple[int, ...]:
        return tuple(values) * (x.ndim - 2 if len(values) == 1 else 1)

    if not (dtype := _dtype(x)):
        return None
    last = x.ndim in LAST and not x.is_contiguous() and x.is_contiguous(memory_format=LAST[x.ndim])
    layout = "channels_last" if last else "channels_first"
    shapes = (tuple(x.shape), tuple(weight.shape), along(stride), along(padding), along(dilation), along(output_padding))
    return ConvProblem(*shapes, groups, transposed, dtype, layout)


def _product(*tensors: torch.Tensor) -> Product | None:
    a, b = tensors[-2:]  # after what is added
    dtype = _dtype(a)
    if not dtype or not b.numel():
        return None
    b = b[:, None] if b.ndim == 1 else b
    return Product(tuple(a.shape), tuple(b.shape), b.mT.is_contiguous() and not b.is_contiguous(), dtype)


def _dtype(tensor: torch.Tensor) -> str:
    name = str(tensor.dtype).removeprefix("torch.")
    return name if name in DTYPES and tensor.numel() else ""


_PROBLEMS: dict[Any, Callable[..., ConvProblem | Product | None]] = {
    aten.convolution.default: _convolution,
    **dict.fromkeys((aten.mm.default, aten.bmm.default, aten.mv.default), _product),
    **dict.fromkeys((aten.addmm.default, aten.baddbmm.default, aten.addmv.default), _product),
}
_MULTIPLYING = (
    *("::_scaled_dot_product", "::_scaled_mm", "::_grouped_mm", "::_int_mm", "::_weight_int", "::_sparse_mm"),
    *("rnn", "::lstm", "::gru", "::_addmm_activation", "quantized::", "flash_attn"),
    *("::_native_multi_head_attention", "::_transformer_encoder_layer"),
)
"""Words in the names of operators that multiply matrices, or convolve, in ways of their own."""
