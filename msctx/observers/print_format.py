"""MindSpore's print format: texts and tensors as the bytes of its messages (mindspore/ccsrc/utils/print.proto), and back.

A file is a sequence of messages with one field, ``value``, that repeats; so the messages of all calls read as one. A value is a text
(field 1) or a tensor (field 2): its dims (1), the name of its dtype (2) and its bytes (3).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch

from msctx.errors import Diagnostic, FileError

NAMES = {
    torch.bool: "Bool",
    torch.int8: "Int8",
    torch.int16: "Int16",
    torch.int32: "Int32",
    torch.int64: "Int64",
    torch.uint8: "UInt8",
    torch.uint16: "UInt16",
    torch.uint32: "UInt32",
    torch.uint64: "UInt64",
    torch.float16: "Float16",
    torch.float32: "Float32",
    torch.float64: "Float64",
    torch.bfloat16: "BFloat16",
    torch.complex64: "Complex64",
    torch.complex128: "Complex128",
}
"""dtype → MindSpore's name of it."""
_DTYPES = {name.lower(): dtype for dtype, name in NAMES.items()}  # older releases write Uint8

_NUMBER, _EIGHT, _BYTES, _FOUR = 0, 1, 2, 5
"""Wire types of protobuf: how long a field is."""


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
        FileError: the file is missing, empty, cut off, or something else than printed values; the message names the byte.

    Source: ``mindspore.parse_print``.
    """
    name = os.fspath(path)
    try:
        data = memoryview(Path(name).read_bytes())
    except OSError as error:
        raise _error(name, f"it cannot be read: {error.strerror}") from None
    if not data:
        raise _error(name, "the file is empty")
    try:
        return [_value(content, at) for content, at in _only(1, _fields(data, 0))]
    except _Broken as broken:
        raise _error(f"{name}, byte {broken.at}", str(broken)) from None


class _Broken(Exception):
    def __init__(self, text: str, at: int) -> None:
        super().__init__(text)
        self.at = at


def _error(where: str, text: str) -> FileError:
    allowed = "a file that Print wrote under print_file_path, whole"
    return FileError([Diagnostic("parse_print", text, where, allowed)])


_Field = tuple[int, "memoryview | int", int]
"""Its number, its content, and at which byte it begins."""


def _fields(data: memoryview, start: int) -> Iterator[_Field]:
    """The fields of a message that begins at byte *start* of the file."""
    position = 0
    while position < len(data):
        at = start + position
        tag, position = _read_varint(data, position, at)
        number, form = tag >> 3, tag & 7
        if form == _NUMBER:
            content, position = _read_varint(data, position, at)
            yield number, content, at
            continue
        if form not in (_BYTES, _EIGHT, _FOUR) or not number:
            raise _Broken("this is no printed value", at)
        length = {_EIGHT: 8, _FOUR: 4}.get(form)
        if length is None:
            length, position = _read_varint(data, position, at)
        if position + length > len(data):
            raise _Broken("the file is cut off, or no printed values", at)
        yield number, data[position : position + length], start + position
        position += length


def _read_varint(data: memoryview, position: int, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        if position >= len(data) or shift > 63:
            raise _Broken("the file is cut off, or no printed values", at)
        byte = data[position]
        number |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return number, position


def _only(number: int, fields: Iterator[_Field]) -> Iterator[tuple[memoryview, int]]:
    for found, content, at in fields:
        if found != number or isinstance(content, int):
            raise _Broken("this is no printed value", at)
        yield content, at


def _value(content: memoryview, start: int) -> str | torch.Tensor:
    for number, inner, at in _fields(content, start):
        if number == 1 and not isinstance(inner, int):
            return bytes(inner).decode(errors="replace")
        if number == 2 and not isinstance(inner, int):
            return _read_tensor(inner, at)
    raise _Broken("this is no printed value", start)


def _read_tensor(message: memoryview, start: int) -> torch.Tensor:
    shape, name, content = [], "", memoryview(b"")
    for number, inner, at in _fields(message, start):
        if number == 1 and isinstance(inner, int):
            shape.append(inner)
        elif number == 1 and not isinstance(inner, int):  # packed
            position = 0
            while position < len(inner):
                size, position = _read_varint(inner, position, at)
                shape.append(size)
        elif number == 2 and not isinstance(inner, int):
            name = bytes(inner).decode(errors="replace")
        elif number == 3 and not isinstance(inner, int):
            content = inner
    if (dtype := _DTYPES.get(name.lower())) is None:
        raise _Broken(f"a tensor has the unknown type {name!r}", start)
    if shape == [0] and len(content) == dtype.itemsize:  # so MindSpore writes a number
        shape = []
    elements = 1
    for size in shape:
        elements *= size
    if elements * dtype.itemsize != len(content) or any(size >= 2**63 for size in shape):
        raise _Broken(f"a tensor of shape {shape} and type {name} has {len(content)} bytes", start)
    flat = torch.frombuffer(bytearray(content), dtype=dtype) if content else torch.empty(0, dtype=dtype)
    return flat.reshape(shape)
