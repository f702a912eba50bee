"""MindSpore's print format: texts and tensors as the bytes of its messages (mindspore/ccsrc/utils/print.proto), and back.

A file is a sequence of messages with one field, ``value``, that repeats; so the messages of all calls read as one. A value is a text
(field 1) or a tensor (field 2): its dims (1), the name of its dtype (2) and its bytes (3).
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch

from msctx.errors import Diagnostic, FileError

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


# --- writing ----------------------------------------------------------------------------------------------------------


def encode(values: Iterable[str | torch.Tensor]) -> bytes:
    """One message: texts, and tensors that lie in the CPU's memory without gaps."""
    return b"".join(_field(1, _text(value) if isinstance(value, str) else _tensor(value)) for value in values)


def _text(value: str) -> bytes:
    return _field(1, value.encode())


def _tensor(value: torch.Tensor) -> bytes:
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
        for number, content in _fields(data):
            ((kind, inner), *_) = [*_fields(_bytes(content)), (0, b"")]
            if number != 1 or kind not in (1, 2):
                raise ValueError("this is no printed value")
            values.append(_bytes(inner).decode(errors="replace") if kind == 1 else _read_tensor(_bytes(inner)))
    except OSError as error:
        raise _error(name, f"it cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise _error(f"{name}, value {len(values) + 1}", str(error)) from None
    return values


def _error(where: str, text: str) -> FileError:
    return FileError([Diagnostic("parse_print", text, where, "a file that Print wrote under print_file_path, whole")])


def _bytes(content: bytes | int) -> bytes:
    if isinstance(content, int):
        raise ValueError("this is no printed value")
    return content


def _fields(data: bytes) -> Iterator[tuple[int, bytes | int]]:
    """The number and content of each field of a message."""
    position = 0
    while position < len(data):
        tag, position = _read_varint(data, position)
        number, form = tag >> 3, tag & 7
        if form not in (_NUMBER, _BYTES) or not number:
            raise ValueError("this is no printed value")
        length, position = _read_varint(data, position)
        if form == _NUMBER:
            yield number, length
            continue
        if position + length > len(data):
            raise ValueError("the file is cut off, or no printed values")
        yield number, data[position : position + length]
        position += length


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    number = shift = 0
    while position < len(data) and shift < 64:
        byte = data[position]
        number |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return number, position
    raise ValueError("the file is cut off, or no printed values")


def _read_tensor(message: bytes) -> torch.Tensor:
    shape, name, content = list[int](), "", b""
    for number, inner in _fields(message):
        if number == 1 and isinstance(inner, int):
            shape.append(inner)
        elif number == 1:  # packed
            position, packed = 0, _bytes(inner)
            while position < len(packed):
                size, position = _read_varint(packed, position)
                shape.append(size)
        elif number == 2:
            name = _bytes(inner).decode(errors="replace")
        elif number == 3:
            content = _bytes(inner)
    if (dtype := _DTYPES.get(name.lower())) is None:
        raise ValueError(f"a tensor has the unknown type {name!r}")
    if shape == [0] and len(content) == dtype.itemsize:  # so MindSpore writes a number
        shape = []
    if math.prod(shape) * dtype.itemsize != len(content) or any(size >= 2**63 for size in shape):
        raise ValueError(f"a tensor of shape {shape} and type {name} has {len(content)} bytes")
    flat = torch.frombuffer(bytearray(content), dtype=dtype) if content else torch.empty(0, dtype=dtype)
    return flat.reshape(shape)
