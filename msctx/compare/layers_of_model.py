"""The convolutions and products of a model, as a workload: what one run of it computes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.module_tracker import ModuleTracker

from msctx.compare.layer_workload_file import DTYPES, LAST, NetworkLayer, Product, Workload
from msctx.compare.timed_cases import Model
from msctx.errors import EntryFailed
from msctx.native.policy_and_choices import ConvProblem
from msctx.run.experiment_and_entry import users_traceback

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
            inside = max(self._tracker.parents - {"Global"}, key=len, default="")  # the innermost module that computes now
            path = inside.partition(".")[2].replace("_orig_mod.", "")  # without the class of the outermost
            self.found.append(NetworkLayer(path, problem))
        elif make is not None or any(word in function.name() for word in _MULTIPLYING):
            self.left_out[str(function)] += 1
        return function(*args, **(kwargs or {}))


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
