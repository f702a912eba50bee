"""What the libraries show and take: a plain C interface of the kernels, and of torch's internal names what is listed here."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from msctx.native import core
from msctx.shipped import KERNEL_SOURCES

HEADER = KERNEL_SOURCES / "include/msctx/interface.h"
DECLARED = {*re.findall(r"^MSCTX_API [\w ]+?\W+(msctx_\w+)\(", HEADER.read_text("utf-8"), re.MULTILINE)}
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


def symbols(library: Path, *which: str) -> set[str]:
    """Each with its name, demangled or not, at the end of the line."""
    if shutil.which("nm") is None:
        pytest.skip("nm is part of binutils")
    command = ["nm", "-D", *which, str(library)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return {line[17:].strip().split(maxsplit=1)[1] for line in lines}


def test_a_c_compiler_takes_the_header(tmp_path: Path) -> None:
    if shutil.which("gcc") is None:
        pytest.skip("there is no C compiler")
    source = tmp_path / "uses.c"
    source.write_text(f'#include "{HEADER}"\nint is_on(void) {{ return msctx_in_force(0) != 0; }}\n')
    command = ["gcc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", str(source)]
    assert subprocess.run(command, capture_output=True, text=True, check=False).stderr == ""


def test_the_kernels_show_what_the_header_declares_and_the_glue_takes_nothing_else(native_core: None) -> None:
    assert symbols(core.load().made.kernels, "--defined-only") == DECLARED
    assert len(DECLARED) > 30
    taken = {name for name in symbols(core.load().made.glue, "--undefined-only") if "msctx" in name}
    assert {"msctx_take", "msctx_compute"} <= taken <= DECLARED
    own = {path.name for path in (KERNEL_SOURCES / "glue").glob("*.*") if "msctx/table.h" in path.read_text("utf-8")}
    assert not own, "table.h is of the kernels alone"


def test_the_glue_uses_no_more_internal_names_of_torch(native_core: None) -> None:
    used = {name for symbol in symbols(core.load().made.glue, "--undefined-only", "--demangle") for name in names(symbol)}
    assert len(used) > 100
    internal = {(space, name) for space, name in used if not PUBLIC.fullmatch(space)}
    assert internal - {(space, name) for space, listed in INTERNAL.items() for name in listed.split()} == set()
