"""The TF32 switches: the only file that knows torch's old and new precision APIs.

Two APIs write the same state. The old one (``allow_tf32``, ``set_float32_matmul_precision``) keeps two flags of its own; the new
one (``fp32_precision``) is a tree whose nodes inherit (``"none"``) from their parents. The old getters, and with them
``torch.backends.cudnn.flags()``, raise for everybody in the process when flags and nodes disagree (trap 4). So a write sets
both, such that the old getters answer, and a read asks the tree, which never raises. Putting back restores flags and nodes,
also where they disagreed.

Two things of torch's that cannot be helped, and that themes/matmul_and_tf32.py reports: allow_tf32=False after
set_float32_matmul_precision("high" or "medium") must take oneDNN's products back to full precision too, else the getter of that
function raises; and the state in which nobody has set cuDNN's nodes (tf32, until a parent has another value) has no setter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import _C

from msctx.switches.base import Switch

_NODES = {"generic": ("all",), "cuda": ("all", "matmul", "conv", "rnn"), "mkldnn": ("all", "matmul", "conv", "rnn")}

Nodes = dict[tuple[str, str], str]

_get: Callable[[str, str], str] = _C._get_fp32_precision_getter
_set: Callable[[str, str, str], object] = _C._set_fp32_precision_setter


def _set_all(nodes: Nodes) -> None:
    for (backend, op), value in nodes.items():
        _set(backend, op, value)


@contextmanager
def _parents_aside() -> Iterator[Nodes]:
    """Show the nodes' own values: a getter returns the inherited one where a node has none. Yields those of the parents."""
    own: Nodes = {}
    for backend in ("generic", "cuda", "mkldnn"):  # the root first: the others inherit from it
        own[backend, "all"] = _get(backend, "all")
        if own[backend, "all"] != "none":
            _set(backend, "all", "none")
    try:
        yield own
    finally:
        _set_all({node: value for node, value in own.items() if value != "none"})


def _own(*nodes: tuple[str, str]) -> Nodes:
    with _parents_aside() as parents:
        return {node: parents.get(node) or _get(*node) for node in nodes}


def _flag(getter: Callable[[], Any], nodes: Nodes, otherwise: Any = None) -> Any:
    """An old flag, even where its getter raises: it is asked while *nodes* have values with which it does not.

    *otherwise*: what it means if it raises all the same. The nodes are only written when there is no other way: that ends the
    state in which nobody has set them.
    """
    with _parents_aside():
        try:
            return getter()
        except RuntimeError:
            before = {node: _get(*node) for node in nodes}
            _set_all(nodes)
            try:
                return getter()
            except RuntimeError:
                return otherwise
            finally:
                _set_all(before)


_MATMUL = ("cuda", "matmul"), ("mkldnn", "matmul")
_CUDNN = ("cuda", "conv"), ("cuda", "rnn")


def _save_matmul() -> tuple[str, Nodes]:
    return _flag(torch.get_float32_matmul_precision, dict.fromkeys(_MATMUL, "ieee")), _own(*_MATMUL)


def _load_matmul(state: tuple[str, Nodes]) -> None:
    if state != _save_matmul():
        torch.set_float32_matmul_precision(state[0])
        _set_all(state[1])


def _write_matmul(allow: bool) -> None:
    onednn, own = _get("mkldnn", "matmul"), _own(("mkldnn", "matmul"))
    flag = ("medium" if onednn == "bf16" else "high") if allow else "highest"
    torch.set_float32_matmul_precision(flag)  # writes both nodes
    if allow or onednn in ("none", "ieee"):
        _set_all(own)


def _cudnn_allows_tf32() -> bool:
    return torch.backends.cudnn.allow_tf32


_PARENT, _SIBLING = ("cuda", "all"), ("cuda", "matmul")


def _save_cudnn() -> tuple[bool, Nodes, Nodes]:
    flag = _flag(_cudnn_allows_tf32, dict.fromkeys(_CUDNN, "tf32"), otherwise=False)
    return flag, _own(_PARENT, _SIBLING, *_CUDNN), {node: _get(*node) for node in _CUDNN}


def _load_cudnn(state: tuple[bool, Nodes, Nodes]) -> None:
    if state != _save_cudnn():
        flag, own, in_effect = state[0], dict(state[1]), state[2]
        _C._set_cudnn_allow_tf32(flag)
        if _own(_SIBLING)[_SIBLING] != "tf32":  # written since, by whomever matmuls are the business of
            del own[_SIBLING]
        _set_all(own)
        # nodes that nobody had set followed their parents and no longer do: what was in effect is, all the same
        _set_all({node: value for node, value in in_effect.items() if _get(*node) != value})


def _write_cudnn(allow: bool) -> None:
    """The old setter, which torch.backends.cudnn.flags() calls when it is left, leaves the nodes to their parent.

    So that must not allow what is forbidden, now and after any number of flags(); matmuls keep what they had from it.
    """
    if not allow and _get(*_PARENT) == "tf32":
        _set(*_SIBLING, _get(*_SIBLING))
        _set(*_PARENT, "ieee")
    _C._set_cudnn_allow_tf32(allow)
    _set_all(dict.fromkeys(_CUDNN, "tf32" if allow else "ieee"))


def _legacy_matmul_precision() -> str:
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return "mixed"


_WITHOUT_TF32 = ("none", "ieee")
"""Not whatever else torch knows: with its ``bfx9`` cuBLAS emulates float32, and no flag is False for that."""


def _is_tf32(*nodes: tuple[str, str]) -> bool:
    return all(_get(*node) == "tf32" for node in nodes)


def _agree(getters: tuple[Callable[[], Any], ...], allow: bool, *nodes: tuple[str, str]) -> bool:
    """Whether nodes and old getters all read *allow* already, and none raises."""
    try:
        values = [getter() for getter in getters]
    except RuntimeError:
        return False
    return values[0] is allow and all(_get(*node) in (("tf32",) if allow else _WITHOUT_TF32) for node in nodes)


SWITCHES = (
    Switch(
        "torch.cuda.matmul.allow_tf32",
        lambda: _is_tf32(("cuda", "matmul")),
        _write_matmul,
        state=(_save_matmul, _load_matmul),
        restore="together",
        satisfied=lambda allow: _agree(
            (lambda: torch.backends.cuda.matmul.allow_tf32, torch.get_float32_matmul_precision), allow, _MATMUL[0]
        ),
    ),
    Switch(
        "torch.cudnn.allow_tf32",
        lambda: _is_tf32(*_CUDNN),
        _write_cudnn,
        state=(_save_cudnn, _load_cudnn),
        restore="together",
        satisfied=lambda allow: _agree((_cudnn_allows_tf32,), allow, *_CUDNN),
    ),
    Switch("torch.float32_matmul_precision", _legacy_matmul_precision),
    *(
        Switch(f"torch.fp32_precision.{backend}.{op}", partial(_get, backend, op))
        for backend, ops in _NODES.items()
        for op in ops
    ),
)
