"""The operators that precision policies govern, by PyTorch's names and by CANN's, and what kind of operator each is.

An overload is governed with its name (``sum`` and ``sum.dim_IntList``); forms that write into a given tensor (``add_``, ``out=``) are
not, they have its dtype. An operator that is not here is made of others that are, as ``outer`` is a ``mul``, or only moves values.
"""

from __future__ import annotations

import json
from functools import cache, partial

from msctx.errors import nearest_of
from msctx.options.kinds import BadValue, TextKind, show
from msctx.shipped import CONFIGS

_DATA = json.loads((CONFIGS / "operators.json").read_bytes())
CLASSES: dict[str, list[str]] = _DATA["classes"]
"""Class → its operators, in the order in which the native core knows them.

matrix: matrix multiplications, for the cube unit of an Ascend, tensor cores, AMX. sensitive: they need float32 under mixed precision,
by PyTorch's lists for CUDA and CPU; avg_pool3d has no other kernel. strict: of the other vector operators those that want all their
inputs in one dtype, the widest of them where a policy sets no other. vector: the other operators that compute. moving: they only move
values, or add them up; they keep their dtype, the widest of several. quantizing: they take only float32.
"""
MATRIX, SENSITIVE, STRICT, VECTOR, MOVING, QUANTIZING = CLASSES.values()
CLASS_OF = {name: kind for kind, names in CLASSES.items() for name in names}
EXACT: list[str] = _DATA["exact"]
"""The vector operators that give one of their inputs' values, or round nothing: they have one implementation."""
BACKWARD: list[str] = _DATA["backward"]
"""Of what computes gradients alone, the usual operators: only counted. Other gradients are made of the operators above."""
ALIASES: dict[str, str] = _DATA["aliases"]
"""Other names that PyTorch itself has for an operator."""
CANN: dict[str, list[str]] = _DATA["cann"]
"""CANN's type of operator → the names that PyTorch has for it.

None: PyTorch has no operator for it (it computes an LRN of others, RoI alignment is torchvision's), it is a gradient, which computes
in the dtypes of its forward pass, or it computes nothing.
"""


def resolve(name: str) -> tuple[str, ...] | None:
    """PyTorch's operators for a name of PyTorch's (``aten::mm``, ``mm``, ``mm.default``) or a type of CANN's; ``None``: unknown."""
    if name in CANN:
        return tuple(CANN[name])
    plain = name.removeprefix("aten::").partition(".")[0]
    plain = ALIASES.get(plain, plain)
    return (plain,) if plain in CLASS_OF else None


@cache
def _known() -> dict[str, str]:
    return {name.lower(): name for name in (*CLASS_OF, *ALIASES, *CANN)}


def _operator(text: str) -> str:
    name = text.strip()
    if resolve(name) is None:
        raise BadValue(f"{show(name)} is no operator that policies govern", suggestion=partial(_nearest, name))
    return name


def _nearest(name: str) -> str:
    return " or ".join(_known()[found] for found in nearest_of(name.removeprefix("aten::").lower(), _known(), 3))


_ALLOWED = "PyTorch's name of an operator (mm, conv2d, softmax …) or CANN's type (MatMul, Conv2D, SoftmaxV2 …)"
Operator = TextKind(_ALLOWED, check=_operator)
Operators = TextKind(_ALLOWED, ",", check=lambda text: ",".join(map(_operator, text.split(","))))
"""Several of them, separated by commas."""
