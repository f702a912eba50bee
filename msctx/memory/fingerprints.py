"""Whether a forward pass that is computed again saves, to the bit, what the first one saved for the backward pass.

The graph stays that of the first pass: of the second one, the backward pass takes nothing but what is saved. So equal bits of it are
equal gradients.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any
from zlib import crc32

import torch
from torch import _C
from torch.autograd.graph import saved_tensors_hooks

from msctx.memory.saved import span

Kind = tuple[torch.dtype, int]
"""Of a tensor: its dtype, its number of dimensions."""
Fingerprint = tuple[Any, ...]
WORDS = 61
"""In a row of a large tensor: an odd number, and no part of usual shapes, or changes of sign would cancel out in its sum."""
LARGE = 1 << 16
"""Bytes from which on a tensor's sums are faster than its checksum."""


class Fingerprints:
    """Of what a block's forward pass saves, in order; tensors of accelerators are not compared: some of their operators add in no
    fixed order.
    """

    def __init__(self, path: str, known: Collection[int], unset: Collection[Kind]) -> None:
        """*known*: storages that are the same in both passes; *unset*: kinds of tensors of which operators leave parts unset."""
        self._path, self._known, self._unset = path, known, unset
        self._first: list[Fingerprint | None] = []

    @contextmanager
    def taking(self) -> Iterator[None]:
        with _at_each_save(lambda tensor: self._first.append(self._of(tensor))):
            yield

    @contextmanager
    def comparing(self) -> Iterator[None]:
        first = iter([*self._first])

        def compare(tensor: torch.Tensor) -> None:
            # That there are more than before is checkpoint's to notice
            if (wanted := next(first, None)) is not None and wanted != self._of(tensor):
                raise RuntimeError(
                    f"memory_optimize_level=O1: computing block {self._path!r} again for the backward pass gives "
                    "other bits than before: something that it reads was changed in between (an object's attribute, a global "
                    "variable, a tensor refilled in place), or an option that it ran under (an algorithm, the threads), or its "
                    "operators add in no fixed order. "
                    "Change it only after backward(), call backward() inside the same with-block, or leave the block out: "
                    "ctx.watch() the other parts of the model"
                )

        with _at_each_save(compare):
            yield

    def _of(self, tensor: torch.Tensor) -> Fingerprint | None:
        is_constant = tensor.layout is torch.strided and tensor.untyped_storage()._cdata in self._known
        return None if is_constant or kind_of(tensor) in self._unset else fingerprint(tensor)


def kind_of(tensor: torch.Tensor) -> Kind:
    return tensor.dtype, tensor.dim()


@contextmanager
def _at_each_save(see: Any) -> Iterator[None]:
    """Of nested hooks torch calls only the innermost: this one calls the one around it."""
    pack, unpack = _C._autograd._top_saved_tensors_default_hooks(True)

    def seen(tensor: torch.Tensor) -> Any:
        see(tensor)
        return pack(tensor)

    with saved_tensors_hooks(seen, unpack):
        yield


def fingerprint(tensor: torch.Tensor) -> Fingerprint | None:
    """Of a plain tensor on the CPU: what it is beside its bits, and a checksum of these."""
    plain = tensor.layout is torch.strided and tensor.device.type == "cpu" and not tensor.is_quantized
    if not plain or type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        return None
    if sum(span(tensor)) > tensor.untyped_storage().nbytes():
        return None  # its memory has been taken away
    with torch.no_grad():
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
    return torch.empty(0, dtype=torch.uint8).set_(each.untyped_storage(), begin, (count,), (1,))


def _checksum(data: torch.Tensor) -> int:
    """Of a large tensor, that of the sums of its rows and columns, as fast as memory can be read."""
    if len(data) < LARGE:
        return crc32(data.numpy().data)
    lead = -data.storage_offset() % 8
    rows = (len(data) - lead) // (8 * WORDS)
    end = lead + rows * 8 * WORDS
    words = data[lead:end].view(torch.int64).view(rows, WORDS)
    found = 0
    for part in (data[:lead], data[end:], words.sum(0), words.sum(1)):
        found = crc32(part.numpy().data, found)
    return found
