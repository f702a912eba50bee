"""The built-in list of operators that have an accurate and a fast implementation, as a file to start from for op_precision_mode."""

from __future__ import annotations

from pathlib import Path

from msctx.newfile import write_new
from msctx.options.precision_rules import BY_DEFAULT, CHOOSABLE

HEAD = """\
; Which implementation each operator takes: for op_precision_mode={name}
;   high_precision    16-bit inputs are computed in float32, the result is rounded once
;   high_performance  PyTorch's own kernel for the dtype
; As it stands this is the list of op_select_implmode=high_precision: change the lines that hurt accuracy or speed. Modules go by
; their path in a section [ByNodeName], which ctx.watch(model) makes known: head=high_precision
"""


def text(name: str) -> str:
    lines = [f"{op}=high_{'precision' if op in BY_DEFAULT else 'performance'}" for op in sorted(CHOOSABLE)]
    return HEAD.format(name=name) + "[ByOpType]\n" + "\n".join(lines) + "\n"


def write(name: str) -> Path:
    """Write the list; a file that is there is left alone, and that is an error."""
    path = Path(name)
    write_new(path, text(path.name))
    return path
