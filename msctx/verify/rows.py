"""An operator that ran, as the two runs exchange it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from msctx.observers.collector import Row, dtype_of

if TYPE_CHECKING:
    import torch

PARAMETER, GRADIENT = "parameter", "gradient"
"""Stand for operators: what a parameter or buffer holds when its model is called for the first time, or a parameter and its gradient
before the optimizer's step."""


SCRATCH_OUTPUTS = {"aten::mkldnn_rnn_layer": 3, "aten::_cudnn_rnn": 4, "aten::miopen_rnn": 4, "aten::cudnn_batch_norm": 3}
SCRATCH_INPUTS = ("workspace", "reserve", "reserveSpace")
"""Memory of a library's own, of which it may write only a part: the same results leave other bits there."""


class Tensor(NamedTuple):
    argument: str
    dtype: str
    shape: str
    digest: int | None
    """``None``: the collector cannot read it."""

    def __str__(self) -> str:
        return f"{self.argument} {self.dtype}[{self.shape.replace('x', ', ')}]".lstrip()


class Ran(NamedTuple):
    """One operator; *order* grows with the time at which it began."""

    order: float
    thread: int
    operator: str
    overload: str
    module: str
    direction: str
    node: str
    maker: int
    algorithm: str
    inputs: Sequence[Tensor]
    outputs: Sequence[Tensor]

    @property
    def key(self) -> tuple[str, str, str, str]:
        return self.direction, self.module, self.operator, self.overload

    def mark(self) -> int:
        """A digest of what it is and of what came out: of what went in the shapes count, for memory may hold nothing yet."""
        return digest((*self.key, [one[1:3] for one in self.inputs], [one[1:] for one in self.outputs]))


def digest(value: Any) -> int:
    return int.from_bytes(hashlib.blake2b(repr(value).encode(), digest_size=8).digest(), "little")


def digest_of_bits(tensor: torch.Tensor) -> int | None:
    """Of a dense tensor, copied to the host; else ``None``. Of what ``torch.func`` has wrapped: of the tensor inside."""
    import torch

    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    bits = tensor.detach() if type(tensor) in (torch.Tensor, torch.nn.Parameter) else None
    if bits is None or bits.is_meta or bits.is_quantized or bits.layout is not torch.strided:
        return None
    raw = bits.cpu().contiguous().flatten().view(torch.uint8).numpy().data
    return int.from_bytes(hashlib.blake2b(raw, digest_size=8).digest(), "little")


def ran(row: Row) -> Ran:
    """From a row of the collector."""
    fields = [row["id"], *(row[name] for name in Ran._fields[1:-2])]
    inputs = [_tensor(one, is_scratch=one["argument"] in SCRATCH_INPUTS) for one in row["inputs"]]
    scratch = SCRATCH_OUTPUTS.get(row["operator"])
    return from_json([*fields, inputs, [_tensor(one, is_scratch=n == scratch) for n, one in enumerate(row["outputs"])]])


def _tensor(found: dict[str, Any], *, is_scratch: bool) -> tuple[str, str, str, int | None]:
    return found["argument"], dtype_of(found), found["shape"], 0 if is_scratch else found.get("digest")


def from_json(fields: Sequence[Any]) -> Ran:
    *head, inputs, outputs = fields
    return Ran._make([*head, [Tensor._make(one) for one in inputs], [Tensor._make(one) for one in outputs]])
