"""What waits for a module is called once it has been imported, not when somebody only looks for it; what the first block imports."""

import ast
import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import msctx
from msctx.import_hooks import when_imported


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = "module_of_test_imports"
    (tmp_path / f"{name}.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, name, raising=False)
    return name


def test_it_waits_for_the_import(module: str) -> None:
    finders, seen = [*sys.meta_path], []
    when_imported(module, lambda: seen.append(sys.modules[module].value))
    assert importlib.util.find_spec(module) is not None
    assert not seen
    importlib.import_module(module)
    importlib.import_module(module)
    assert seen == [1]
    assert sys.meta_path == finders
    when_imported(module, lambda: seen.append(2))
    assert seen == [1, 2], "it is there already"


def test_the_first_block_loads_half_of_msctx(passes: Callable[[str], str]) -> None:
    passes("""
        import sys, msctx
        with msctx.context(deterministic="ON"):
            pass
        loaded = [name for name in sys.modules if name.partition(".")[0] == "msctx"]
        assert len(loaded) < 90, sorted(loaded)
        late = {"pydantic", "rich", "typer", "jinja2"} & {*sys.modules}
        assert not late, f"{late} take longer to import than a block to enter"
    """)


def test_a_switch_reads_the_same_before_and_after_its_module_is_loaded(passes: Callable[[str], str]) -> None:
    passes("""
        import importlib, pkgutil, msctx
        from msctx.switches import read_all
        before = read_all()
        for module in pkgutil.walk_packages(msctx.__path__, "msctx."):
            if module.name.split(".")[1] in ("graph", "memory", "native", "observers"):
                importlib.import_module(module.name)
        after = read_all()
        assert after == before, {name: (before[name], after[name]) for name in before if before[name] != after[name]}
    """)


def test_few_imports_stand_in_functions() -> None:
    """Only of what is slow to import, or optional."""

    def inside(node: ast.AST) -> Iterator[ast.AST]:
        return (child for child in ast.walk(node) if isinstance(child, ast.Import | ast.ImportFrom))

    files = [ast.parse(path.read_text(encoding="utf-8")) for path in Path(msctx.__path__[0]).rglob("*.py")]
    functions = [node for file in files for node in ast.walk(file) if isinstance(node, ast.FunctionDef)]
    assert len({node for function in functions for node in inside(function)}) <= 120
