"""Checksums of tensors: whether two have the same bits, without keeping one of them."""

from __future__ import annotations

import ctypes
from typing import Any
from zlib import crc32

import torch

from msctx.memory.saved import span

Fingerprint = tuple[Any, ...]
WORDS = 61
"""In a row of a large tensor: an odd number, and no part of usual shapes, or changes of sign would cancel out in its sum."""
LARGE = 1 << 16
"""Bytes from which on a tensor's sums are faster than its checksum."""


def fingerprint(tensor: torch.Tensor) -> Fingerprint | None:
    """Of a plain tensor: what it is beside its bits, and a checksum of these."""
    plain = tensor.layout is torch.strided and not (tensor.is_meta or tensor.is_quantized or tensor.is_nested)
    if not plain or type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        return None
    if sum(span(tensor)) > tensor.untyped_storage().nbytes():
        return None  # its memory has been taken away
    with torch.no_grad(), torch._C.DisableTorchFunction():
        kind = tensor.dtype, tensor.shape, tensor.stride(), tensor.is_conj(), tensor.is_neg()
        return *kind, _checksum(_bytes_of(tensor)) if tensor.numel() else 0


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """As they lie in memory, where nothing lies between them."""
    each = tensor.detach()
    for dim, stride in enumerate(tensor.stride()):
        if stride == 0:  # repeated
            each = each.narrow(dim, 0, 1)
    begin, count = span(each)
    if count != each.numel() * each.itemsize:
        each = each.resolve_conj().resolve_neg().contiguous()
        begin, count = span(each)
    return torch.empty(0, dtype=torch.uint8, device=each.device).set_(each.untyped_storage(), begin, (count,), (1,))


def _checksum(data: torch.Tensor) -> int:
    """Of a large tensor, that of the sums of its rows and columns, as fast as memory can be read."""
    if len(data) < LARGE:
        return _crc32(data)
    lead = -data.storage_offset() % 8
    rows = (len(data) - lead) // (8 * WORDS)
    end = lead + rows * 8 * WORDS
    words = data[lead:end].view(torch.int64).view(rows, WORDS)
    found = 0
    for part in (data[:lead], data[end:], words.sum(0), words.sum(1)):
        found = _crc32(part, found)
    return found


def _crc32(data: torch.Tensor, before: int = 0) -> int:
    """Not by ``numpy()``, after which torch resizes the memory of a tensor no more."""
    there = data.cpu().contiguous()
    size = there.numel() * there.itemsize
    return crc32((ctypes.c_char * size).from_address(there.data_ptr()) if size else b"", before)
