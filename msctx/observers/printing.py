"""MindSpore's Print: texts and tensors to the screen, or to the file of ``print_file_path``, by one opaque operator."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch._library.effects import EffectType

from msctx.observers import print_file
from msctx.observers.print_format import NAMES, encode


class Print:
    """MindSpore's ``ops.Print``: ``msctx.Print()("loss", loss)``.

    The values go to the file of the option ``print_file_path`` that is in force when the call runs, else to the screen, each on lines
    of its own. A tensor on a GPU is copied, which waits for the device. Compiled code (``torch.compile``) and ``torch.vmap`` call
    the same operator, ``msctx::print``: its calls keep their order, and the compiler does not remove them. A batched call prints
    the whole batch at once.

    Args:
        *values: any number of texts, dense tensors of any shape (bool, integers, float16, bfloat16, float32, float64, complex64,
            complex128), and Python's bool, int and float, which become tensors without dimensions (Bool, Int64, Float32). The values
            in a list or tuple count one by one.

    Returns:
        None.

    Raises:
        TypeError: a value is none of these, an int that needs more than 64 bits, or a tensor on the meta device, which has no values;
            nothing is printed.

    Source: ``mindspore.ops.Print``.
    """

    def __call__(self, *values: Any) -> None:
        tensors: list[torch.Tensor] = []
        texts: list[str] = []
        kinds: list[str] = []
        for value in _each(values):
            if isinstance(value, str):
                texts.append(value.encode(errors="backslashreplace").decode())
                kinds.append("s")
            else:
                tensors.append(_tensor(value))
                kinds.append("t")
        _operator(tensors, texts, "".join(kinds))

    @property
    def file(self) -> str | None:
        """The file that receives the values now, made if it is not there yet; ``None``: the screen does, or no file can be made."""
        return print_file.SLOT.on.made() or None if print_file.SLOT.on else None


def _each(values: Any) -> list[Any]:
    found: list[Any] = []
    for value in values:
        found.extend(_each(value) if isinstance(value, (list, tuple)) else [value])
    return found


def _tensor(value: Any) -> torch.Tensor:
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise TypeError(f"Print: {value} needs more than the 64 bits of an Int64; pass a float or a text")
    if isinstance(value, (bool, int)):
        return torch.tensor(value)
    if isinstance(value, float):
        return torch.tensor(value, dtype=torch.float32)
    if not isinstance(value, torch.Tensor):
        raise TypeError(
            f"Print: a {type(value).__name__} cannot be printed; allowed: tensors, str, bool, int, float, lists of them"
        )
    if value.is_nested or value.layout is not torch.strided or value.dtype not in NAMES:
        layout = "nested" if value.is_nested else value.layout
        raise TypeError(
            f"Print: a tensor of layout {layout} and dtype {value.dtype} cannot be printed; allowed: dense tensors of "
            f"{', '.join(str(dtype).removeprefix('torch.') for dtype in NAMES)}; convert it first"
        )
    if value.is_meta:
        raise TypeError("Print: a tensor on the meta device has no values to print")
    return value.detach()


@torch.library.custom_op("msctx::print", mutates_args=(), schema="(Tensor[] tensors, str[] texts, str kinds) -> Tensor")
def _operator(tensors: list[torch.Tensor], texts: list[str], kinds: str) -> torch.Tensor:
    """Print values; *kinds* has one letter each: ``t`` for the next tensor, ``s`` for the next text.

    Returns an empty tensor: inductor keeps the order of operators only where they have a result.
    """
    left, words = iter(tensors), iter(texts)
    values = [next(words) if kind == "s" else _on_cpu(next(left)) for kind in kinds]
    if print_file.SLOT.on is not None:
        print_file.SLOT.on.append(encode(values))
    elif values:
        print("\n".join(value if isinstance(value, str) else shown(value) for value in values))
    return torch.empty(0)


@_operator.register_fake
def _(tensors: list[torch.Tensor], texts: list[str], kinds: str) -> torch.Tensor:
    return torch.empty(0)


@_operator.register_vmap
def _(info: Any, in_dims: Any, tensors: list[torch.Tensor], texts: list[str], kinds: str) -> tuple[torch.Tensor, None]:
    return _operator(tensors, texts, kinds), None


_operator.register_effect(EffectType.ORDERED)


def _on_cpu(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.cpu().resolve_conj().resolve_neg().contiguous()


def shown(tensor: torch.Tensor) -> str:
    """A tensor as MindSpore prints it."""
    array = (tensor.float() if tensor.dtype is torch.bfloat16 else tensor).numpy()
    text = np.array2string(array, separator=", ", formatter={"float_kind": lambda number: f"{number: .8e}"})
    gap = "\n" if tensor.dim() > 1 else " "
    return f"Tensor(shape={[*tensor.shape]}, dtype={NAMES[tensor.dtype]}, value={gap}{text})"
