"""MindSpore's Print: texts and tensors to the screen, or to the file of ``print_file_path``, by one opaque operator.

A file has MindSpore's print format, the messages of mindspore/ccsrc/utils/print.proto: a sequence of messages with one field,
``value``, that repeats; so the messages of all calls read as one. A value is a text (field 1) or a tensor (field 2): its dims (1),
the name of its dtype (2) and its bytes (3).
"""

from __future__ import annotations

import math
import os
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch._library.effects import EffectType

from msctx.errors import Diagnostic, FileError
from msctx.observers import slots_and_files as files
from msctx.observers.slots_and_files import Slot

NAMES = {
    getattr(torch, name.lower()): name
    for name in (
        *("Bool", "Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32", "UInt64"),
        *("Float16", "Float32", "Float64", "BFloat16", "Complex64", "Complex128"),
    )
}
"""dtype → MindSpore's name of it."""
_DTYPES = {name.lower(): dtype for dtype, name in NAMES.items()}  # older releases write Uint8

_NUMBER, _BYTES = 0, 2
"""Wire types of protobuf."""


class Print:
    """MindSpore's ``ops.Print``: ``msctx.Print()("loss", loss)``.

    The values go to the file of the option ``print_file_path`` that is in force when the call runs, else to the screen, each on
    separate lines. A tensor on a GPU is copied, which waits for the device. Compiled code (``torch.compile``) and ``torch.vmap`` call
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
        found = [*map(_printed, _each(values))]
        tensors, texts = ([value for value in found if isinstance(value, kind)] for kind in (torch.Tensor, str))
        _operator(tensors, texts, "".join("s" if isinstance(value, str) else "t" for value in found))

    @property
    def file(self) -> str | None:
        """The file that receives the values now, made if it is not there yet; ``None``: the screen does, or no file can be made."""
        return SLOT.on.made() or None if SLOT.on else None


def _each(values: Any) -> list[Any]:
    found: list[Any] = []
    for value in values:
        found.extend(_each(value) if isinstance(value, (list, tuple)) else [value])
    return found


def _printed(value: Any) -> str | torch.Tensor:
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
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
    values = [next(words) if kind == "s" else next(left).cpu().resolve_conj().resolve_neg().contiguous() for kind in kinds]
    if SLOT.on is not None:
        SLOT.on.append(encode(values))
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


def shown(tensor: torch.Tensor) -> str:
    """A tensor as MindSpore prints it."""
    array = (tensor.float() if tensor.dtype is torch.bfloat16 else tensor).numpy()
    text = np.array2string(array, separator=", ", formatter={"float_kind": lambda number: f"{number: .8e}"})
    gap = "\n" if tensor.dim() > 1 else " "
    return f"Tensor(shape={[*tensor.shape]}, dtype={NAMES[tensor.dtype]}, value={gap}{text})"


# --- the file -----------------------------------------------------------------------------------------------------------

_lock = threading.RLock()


class PrintFile:
    """A file that its first record makes."""

    def __init__(self, path: str) -> None:
        self.settings = path
        self._wanted = Path(path).expanduser().absolute()
        self._path: str | None = None
        if not os.access(self._wanted.parent, os.W_OK):  # report it now
            self.made()

    def begin(self) -> None:
        """The first record makes the file."""

    def end(self) -> None:
        """Each record is whole."""

    def made(self) -> str:
        """The file that receives the records; ``""``: none can be made."""
        with _lock:
            if self._path is None:
                self._path = ""
                files.guarded("print_file_path", self._wanted, self._make)
            return self._path

    def _make(self) -> None:
        self._path = str(files.reserve(self._wanted))

    def append(self, record: bytes) -> None:
        if path := self.made():
            files.guarded("print_file_path", path, partial(files.append, path, record))


SLOT = Slot(PrintFile)


# --- writing ----------------------------------------------------------------------------------------------------------


def encode(values: Iterable[str | torch.Tensor]) -> bytes:
    """One message: texts, and tensors that lie in the CPU's memory without gaps."""
    return b"".join(_field(1, _field(1, value.encode()) if isinstance(value, str) else _message(value)) for value in values)


def _message(value: torch.Tensor) -> bytes:
    dims = b"".join(_varint(1 << 3 | _NUMBER) + _varint(size) for size in value.shape)
    content = value.reshape(-1).view(torch.uint8).numpy().tobytes()
    return _field(2, dims + _field(2, NAMES[value.dtype].encode()) + _field(3, content))


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | _BYTES) + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*found, number))


# --- reading ----------------------------------------------------------------------------------------------------------


def parse_print(path: str | os.PathLike[str]) -> list[str | torch.Tensor]:
    """Read a file that ``print_file_path`` made, here or in MindSpore.

    Args:
        path: the file. Read it when its writers are done.

    Returns:
        All values in the order of the calls: a ``str`` for a text; for a tensor a ``torch.Tensor`` on the CPU with the shape and
        dtype that it had. A number that MindSpore printed is a tensor without dimensions.

    Raises:
        FileError: the file is missing, empty, cut off, or not a file of printed values; the message names the value.

    Source: ``mindspore.parse_print``.
    """
    name, values = os.fspath(path), list[str | torch.Tensor]()
    try:
        data = Path(name).read_bytes()
        if not data:
            raise ValueError("the file is empty")
        for _, content in _fields(data):
            ((kind, inner), *_) = _fields(content)
            values.append(_read_tensor(inner) if kind == 2 else inner.decode(errors="replace"))
    except OSError as error:
        raise _error(name, f"it cannot be read: {error.strerror}") from None
    except (TypeError, AttributeError, ValueError) as error:  # a number where bytes belong, and what is raised here
        text = str(error) if isinstance(error, ValueError) else CUT_OFF
        raise _error(f"{name}, value {len(values) + 1}", text) from None
    return values


CUT_OFF = "the file is cut off, or no printed values"


def _error(where: str, text: str) -> FileError:
    return FileError([Diagnostic("parse_print", text, where, "a file that Print wrote under print_file_path, whole")])


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """The number of each field of a message, and its content: a number, or bytes."""
    at = 0
    while at < len(data):
        tag, at = _read_varint(data, at)
        size, at = _read_varint(data, at)
        if tag & 7 == _NUMBER:
            yield tag >> 3, size
            continue
        if tag & 7 != _BYTES or at + size > len(data):
            raise ValueError(CUT_OFF)
        yield tag >> 3, data[at : at + size]
        at += size


def _read_varint(data: bytes, begin: int) -> tuple[int, int]:
    """A number, and the place after it."""
    number = 0
    for at in range(begin, min(begin + 10, len(data))):
        number |= (data[at] & 0x7F) << 7 * (at - begin)
        if data[at] < 0x80:
            return number, at + 1
    raise ValueError(CUT_OFF)


def _read_tensor(message: bytes) -> torch.Tensor:
    found = defaultdict[int, list[Any]](list)
    for number, inner in _fields(message):
        found[number].append(inner)
    shape, name, content = found[1], b"".join(found[2]).decode(errors="replace"), b"".join(found[3])
    if (dtype := _DTYPES.get(name.lower())) is None:
        raise ValueError(f"a tensor has the unknown type {name!r}")
    if shape == [0] and len(content) == dtype.itemsize:  # so MindSpore writes a number
        shape = []
    if math.prod(shape) * dtype.itemsize != len(content) or any(size >= 2**63 for size in shape):
        raise ValueError(f"a tensor of shape {shape} and type {name} has {len(content)} bytes")
    flat = torch.frombuffer(bytearray(content), dtype=dtype) if content else torch.empty(0, dtype=dtype)
    return flat.reshape(shape)
