"""``support_binary``: code without its source takes part in compilation."""

import py_compile
import sys
from pathlib import Path

import pytest
import torch
from graph_programs import EAGER_GRAPHS, graphs

import msctx


def test_a_module_of_bytecode_alone_is_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "only_bytecode.py"
    source.write_text(
        "from torch import nn\nclass Doubled(nn.Module):\n    def forward(self, x):\n        return (x * 2).relu()\n",
        encoding="utf-8",
    )
    py_compile.compile(str(source), cfile=str(tmp_path / "only_bytecode.pyc"))
    source.unlink()
    monkeypatch.syspath_prepend(tmp_path)
    import only_bytecode  # type: ignore[import-not-found]

    try:
        with msctx.context(**EAGER_GRAPHS, support_binary=True, jit_syntax_level="STRICT") as ctx:
            torch.testing.assert_close(only_bytecode.Doubled()(torch.ones(3)), torch.full((3,), 2.0))
        assert graphs() == 1
        assert ctx.graphs()[0].operators == 2
        (row,) = (row for row in ctx.plan.rows if row.option == "support_binary")
        assert row.status == "approximated"
    finally:
        del sys.modules["only_bytecode"]
