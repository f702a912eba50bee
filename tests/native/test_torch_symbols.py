"""What the glue uses of torch: its public functions and classes, and of its internal namespaces what is listed here."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

from msctx.native import core

PUBLIC = re.compile(r"at|c10|torch|at::_ops::\w+")
"""Namespaces of which everything may be used."""
INTERNAL = {
    "at::autocast": "decrement_nesting get_autocast_dtype increment_nesting is_autocast_enabled set_autocast_dtype "
    "set_autocast_enabled",
    "at::internal": "set_thread_num",
    "at::native": "_determine_backend_memory_format matmul matmul_out resize_output select_conv_backend",
    "c10::detail": "ListImpl deleteNothing maybe_wrap_dim_slow torchCheckFail torchInternalAssertFail",
    "c10::detail::infer_schema": "make_function_schema",
    "c10::impl": "ExcludeDispatchKeyGuard OperatorEntry TorchDispatchModeTLS _force_tls_local_dispatch_key_set "
    "device_guard_impl_registry getGlobalPyInterpreter raw_local_dispatch_key_set tls_is_dispatch_key_excluded "
    "tls_is_dispatch_key_included",
    "c10::ivalue": "ConstantString",
    "caffe2": "TypeMeta",
    "torch::autograd": "get_current_graph_task_id get_current_node",
    "torch::jit": "parseSchema",
}
"""The others: a release of torch may change these, so each is to be looked at before it is added."""
NAME = re.compile(r"\b((?:at|c10|torch|caffe2)(?:::[a-z_]\w*)*)::(\w+)")


def names(symbol: str) -> set[tuple[str, str]]:
    """Namespaces and what is used of them, by a symbol's own name: without its arguments and those of templates."""
    own = symbol.partition("(")[0]
    while "<" in own and (shorter := re.sub(r"<[^<>]*>", "", own)) != own:
        own = shorter
    return {*NAME.findall(own)}


def test_internal_names_are_seen() -> None:
    seen = {
        "at::native::add(at::Tensor const&)",
        "long c10::detail::wrap<long>(long)",
        "vtable for torch::jit::Graph",
        "std::sort",
    }
    assert {name for symbol in seen for name in names(symbol)} == {
        ("at::native", "add"),
        ("c10::detail", "wrap"),
        ("torch::jit", "Graph"),
    }


@pytest.mark.skipif(shutil.which("nm") is None, reason="nm is part of binutils")
def test_the_glue_uses_no_more_internal_names_of_torch(native_core: None) -> None:
    words = ("nm", "-D", "--undefined-only", "--demangle", str(core.load().made.glue))
    lines = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
    used = {name for line in lines for name in names(line.split(maxsplit=1)[1])}
    assert len(used) > 100
    internal = {(space, name) for space, name in used if not PUBLIC.fullmatch(space)}
    assert internal - {(space, name) for space, listed in INTERNAL.items() for name in listed.split()} == set()
