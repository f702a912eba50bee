"""The TF32 switches: the only file that knows torch's old and new precision APIs.

Two APIs write the same state. The old one (``allow_tf32``, ``set_float32_matmul_precision``) keeps flags of its own; the new one
(``fp32_precision``) is a tree whose nodes inherit (``"none"``) from their parents. If only a node is written, the old getters, and
with them ``torch.backends.cudnn.flags()``, raise for everybody else in the process (trap 4). So values are written through
the old setters, which write the tree as well, and read from the tree, which never raises. Putting back restores both: first
the flag by its old setter, then the nodes to what they were.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import _C

from msctx.switches.base import Switch

_NODES = {
    "generic": ("all",),
    "cuda": ("all", "matmul", "conv", "rnn"),
    "mkldnn": ("all", "matmul", "conv", "rnn"),
}


def _node(backend: str, op: str) -> str:
    return _C._get_fp32_precision_getter(backend, op)


def _raw_nodes(backend: str, *ops: str) -> dict[str, str]:
    """The nodes' own values. A getter returns the inherited value where a node has none, so the parents step aside."""
    parents = [(b, _node(b, "all")) for b in ("generic", backend)]
    if all(value == "none" for _, value in parents):
        return {op: _node(backend, op) for op in ops}
    own_parent = _own_parent(backend, parents)
    try:
        _C._set_fp32_precision_setter(backend, "all", "none")
        _C._set_fp32_precision_setter("generic", "all", "none")
        return {op: _node(backend, op) for op in ops}
    finally:
        _C._set_fp32_precision_setter("generic", "all", parents[0][1])
        _C._set_fp32_precision_setter(backend, "all", own_parent)


def _own_parent(backend: str, parents: list[tuple[str, str]]) -> str:
    """The own value of ``backend.all``, which inherits from the root as well."""
    generic = parents[0][1]
    if generic == "none":
        return parents[1][1]
    _C._set_fp32_precision_setter("generic", "all", "none")
    try:
        return _node(backend, "all")
    finally:
        _C._set_fp32_precision_setter("generic", "all", generic)


def _legacy(getter: Callable[[], Any], default: Any) -> Any:
    """An old flag; in a process that already mixed both APIs the getter raises, and the flag is what the tree says."""
    try:
        return getter()
    except RuntimeError:
        return default


def _save_matmul() -> tuple[str | None, dict[str, str], dict[str, str]]:
    precision = _legacy(_C._get_float32_matmul_precision, None)
    return precision, _raw_nodes("cuda", "matmul"), _raw_nodes("mkldnn", "matmul")


def _load_matmul(state: tuple[str | None, dict[str, str], dict[str, str]]) -> None:
    precision, cuda, mkldnn = state
    if precision is not None:
        _C._set_float32_matmul_precision(precision)
    for backend, nodes in (("cuda", cuda), ("mkldnn", mkldnn)):
        for op, value in nodes.items():
            _C._set_fp32_precision_setter(backend, op, value)


def _save_cudnn() -> tuple[bool | None, dict[str, str]]:
    return _legacy(_C._get_cudnn_allow_tf32, None), _raw_nodes("cuda", "conv", "rnn")


def _load_cudnn(state: tuple[bool | None, dict[str, str]]) -> None:
    allowed, nodes = state
    if allowed is not None:
        _C._set_cudnn_allow_tf32(allowed)
    for op, value in nodes.items():
        _C._set_fp32_precision_setter("cuda", op, value)


def _is_tf32(*ops: str) -> bool:
    return all(_node("cuda", op) == "tf32" for op in ops)


SWITCHES = (
    Switch(
        name="torch.cuda.matmul.allow_tf32",
        read=lambda: _is_tf32("matmul"),
        write=_C._set_cublas_allow_tf32,
        save=_save_matmul,
        load=_load_matmul,
    ),
    Switch(
        name="torch.cudnn.allow_tf32",
        read=lambda: _is_tf32("conv", "rnn"),
        write=_C._set_cudnn_allow_tf32,
        save=_save_cudnn,
        load=_load_cudnn,
    ),
    Switch(name="torch.float32_matmul_precision", read=lambda: _legacy(_C._get_float32_matmul_precision, "mixed")),
    *(
        Switch(name=f"torch.fp32_precision.{backend}.{op}", read=lambda b=backend, o=op: _node(b, o))
        for backend, ops in _NODES.items()
        for op in ops
    ),
)
