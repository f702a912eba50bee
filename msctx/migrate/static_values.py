"""What the names of a Python script stand for, as far as it shows that itself without being run."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain
from operator import add, mul, sub
from typing import Any, NamedTuple

from msctx.errors import one_line
from msctx.migrate.script import Script

AT_RUN_TIME = "known only when the script runs"

CONSTANTS = {"GRAPH_MODE": 0, "PYNATIVE_MODE": 1, "STRICT": 0, "COMPATIBLE": 1, "LAX": 2, "RELEASE": 0, "DEBUG": 1}
"""The constants of MindSpore that stand as values of context options."""

_SCOPES = (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
"""What has names of its own; those of a class or a comprehension count as names of what is around it."""
_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {ast.Add: add, ast.Sub: sub, ast.Mult: mul}
_MEANINGS = 20
"""The most meanings of one name that are followed."""
_MOST = 10_000
"""The most items of a dictionary: those that hold others twice grow without end."""


class Unknown(Exception):
    """The script does not show what a value is; the text explains, or is empty."""


UNKNOWN = (Unknown, RecursionError, TypeError)
"""Also a name that stands for itself, very deep brackets, and a list as a key."""


class _Binding(NamedTuple):
    """One place that gives a name its meaning: an import (*path*), an assignment (*value*), or neither is known."""

    path: str = ""
    value: ast.expr | None = None
    line: int = 0
    is_argument: bool = False


class Names:
    """The names of a script, scope by scope."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self._bound: dict[ast.AST, dict[str, list[_Binding]]] = defaultdict(lambda: defaultdict(list))
        self._stars: list[tuple[str, int]] = []
        self._uses: dict[str, list[ast.Name]] = defaultdict(list)
        self._paths: dict[ast.Name, list[str]] = {}
        for node in script.parents:
            self._bind(node)

    # --- where names are bound ----------------------------------------------------------------------------------------

    def _scopes(self, node: ast.AST) -> Iterator[ast.AST]:
        return (outer for outer, field, _ in self.script.around(node) if isinstance(outer, _SCOPES) and field == "body")

    def _put(self, name: str, node: ast.AST, binding: _Binding, scope: ast.AST | None = None) -> None:
        self._bound[scope or next(self._scopes(node))][name].append(binding._replace(line=getattr(node, "lineno", 0)))

    def _bind(self, node: ast.AST) -> None:
        match node:
            case ast.Import(names=names):
                for alias in names:
                    path = alias.name if alias.asname else alias.name.partition(".")[0]
                    self._put(alias.asname or path, node, _Binding(path))
            case ast.ImportFrom(names=names):
                module = "." * node.level + (node.module or "")
                for alias in names:
                    if alias.name == "*":
                        self._stars.append((module, node.lineno))
                    else:
                        self._put(alias.asname or alias.name, node, _Binding(f"{module}.{alias.name}"))
            case ast.arg(arg=name):
                function = next(outer for outer, *_ in self.script.around(node) if isinstance(outer, _SCOPES))
                self._put(name, node, _Binding(is_argument=True), function)
            case ast.Global(names=several) | ast.Nonlocal(names=several):  # assigned to elsewhere, too
                for scope in self._scopes(node):
                    for name in several:
                        self._put(name, node, _Binding(), scope)
            case ast.Name(id=name, ctx=ast.Load()):
                self._uses[name].append(node)
            case ast.Name(id=name):
                self._bind_target(name, node)
            case ast.stmt() | ast.ExceptHandler() | ast.pattern():
                own = getattr(node, "name", None) or getattr(node, "rest", None)  # of a function, a class, a pattern
                if isinstance(own, str):
                    self._put(own, node, _Binding())

    def _bind_target(self, name: str, node: ast.Name) -> None:
        parent = self.script.parents[node][0]
        value: ast.expr | None = None
        match parent:
            case ast.AnnAssign(value=None):  # an annotation alone
                return
            case ast.Assign(value=given) if len(parent.targets) == 1 or not _is_mutable(given):
                value = given
            case ast.AnnAssign(value=given) | ast.NamedExpr(value=given):
                value = given
            case ast.Tuple(elts=targets) | ast.List(elts=targets):
                whole, role = self.script.parents[parent]
                values = getattr(whole, "value", None) if isinstance(whole, ast.Assign) and role == "targets" else None
                parts = getattr(values, "elts", [])
                if len(parts) == len(targets) and not any(isinstance(t, ast.Starred) for t in (*parts, *targets)):
                    value = parts[targets.index(node)]
        self._put(name, node, _Binding(value=value))

    def _bindings(self, name: ast.Name) -> list[_Binding]:
        for scope in self._scopes(name):
            if name.id in self._bound[scope]:
                return self._bound[scope][name.id]
        return [_Binding(f"{module}.{name.id}") for module, _ in self._stars]

    # --- what expressions stand for -----------------------------------------------------------------------------------

    def paths(self, node: ast.AST | None) -> list[str]:
        """The dotted paths of what is imported that an expression may stand for: ``mindspore.context.set_context``."""
        if isinstance(node, ast.Attribute):
            return [f"{path}.{node.attr}" for path in self.paths(node.value)]
        if not isinstance(node, ast.Name):
            return []
        if node not in self._paths:
            self._paths[node] = []  # of a name that stands for itself
            with suppress(RecursionError):
                several = [[b.path] if b.path else self.paths(b.value) for b in self._bindings(node)]
                self._paths[node] = [*dict.fromkeys(chain(*several))][:_MEANINGS]
        return self._paths[node]

    def mindspore(self, node: ast.AST) -> str:
        """The path below ``mindspore`` of what an expression stands for, or ``""``."""
        for path in self.paths(node):
            path = path.removeprefix("msctx.") if path.startswith("msctx.mindspore.") else path
            if path.startswith("mindspore."):
                return path.removeprefix("mindspore.")
        return ""

    def value(self, node: ast.expr) -> Any:
        """The value of an expression made of literals, constants of MindSpore, and names assigned once to such; else one of
        :data:`UNKNOWN`."""
        match node:
            case ast.Constant() | ast.UnaryOp():
                with suppress(ValueError):
                    return ast.literal_eval(node)
            case ast.Tuple(elts=parts):
                return tuple(map(self.value, parts))
            case ast.List(elts=parts):
                return [*map(self.value, parts)]
            case ast.Dict() | ast.Call():
                return {key: self.value(value) for key, value in self.pairs(node)}
            case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _OPERATORS:
                a, b = self.value(left), self.value(right)
                if type(a) is type(b) and isinstance(a, int | str):
                    return _OPERATORS[type(operator)](a, b)
            case ast.JoinedStr(values=parts):
                return "".join(str(self.value(part)) for part in parts)
            case ast.FormattedValue(value=inner, conversion=-1, format_spec=None):
                return self.value(inner)
            case ast.Name() | ast.Attribute() if (word := self._constant(node)) in CONSTANTS:
                return CONSTANTS[word]
            case ast.Name() | ast.Subscript():
                meant = self.follow(node)
                try:
                    return self.value(meant)
                except Unknown as unknown:
                    if str(unknown):
                        raise
                    raise Unknown(f"{self.script.written(node)} = {one_line(self.script.written(meant), 80)}") from None
        raise Unknown

    def word(self, node: ast.expr) -> str:
        """The constant of MindSpore that an expression, whose value is known, stands for by name; else ``""``."""
        word = self._constant(self.follow(node))
        return word if word in CONSTANTS else ""

    def _constant(self, node: ast.expr) -> str:
        """The last part of the path of what an expression can only stand for, in MindSpore."""
        if isinstance(node, ast.Name) and not all(binding.path for binding in self._bindings(node)):
            return ""  # a name assigned to: how often counts
        return self.mindspore(node).rpartition(".")[2]

    def follow(self, node: ast.expr) -> ast.expr:
        """The expression that a name, or an item of a dictionary or list, stands for; others stand for themselves."""
        match node:
            case ast.Name(id=name) if self._constant(node) not in CONSTANTS:
                return self.follow(self._assigned(name, node))
            case ast.Subscript(value=base, slice=key):
                whole, wanted = self.follow(base), self.value(key)
                try:
                    if isinstance(whole, ast.List | ast.Tuple):
                        return self.follow(whole.elts[wanted])
                    return self.follow(dict(self.pairs(whole))[wanted])
                except (LookupError, TypeError):
                    raise Unknown from None
        return node

    def _assigned(self, name: str, node: ast.Name) -> ast.expr:
        bindings = self._bindings(node)
        if len(bindings) > 1:
            lines = ", ".join(dict.fromkeys(str(b.line) for b in bindings))
            raise Unknown(f"{name} is assigned {len(bindings)} times (lines {lines})")
        if not bindings or (value := bindings[0].value) is None:
            raise Unknown(f"{name} is an argument" if bindings and bindings[0].is_argument else "")
        if any(line > bindings[0].line for _, line in self._stars):
            raise Unknown(f"an `import *` after line {bindings[0].line} may replace {name}")
        if _is_mutable(value):
            is_flat = not any(_is_mutable(part) for part in ast.walk(value) if part is not value)
            if use := next((use for use in self._uses[name] if self._may_change(use, is_flat)), None):
                raise Unknown(f"{name} may be changed on line {use.lineno}")
        return value

    def _may_change(self, use: ast.Name, is_flat: bool) -> bool:
        """Whether a list or dictionary, or one that it holds, may be another after a use of its name; when in doubt: yes."""
        parent, field = self.script.parents[use]
        match parent:
            case (
                ast.Subscript(ctx=ast.Load()) | ast.keyword(arg=None) | ast.Attribute(attr="get" | "items" | "keys" | "values")
            ):
                if is_flat:
                    return False
            case ast.Dict(keys=keys, values=values) if is_flat and field == "values" and keys[values.index(use)] is None:
                return False
        calls = (outer.func for outer, *_ in self.script.around(use) if isinstance(outer, ast.Call))
        function = next(calls, None)
        is_reader = isinstance(function, ast.Name) and function.id in ("len", "print")
        return function is None or not (is_reader or self.mindspore(function))

    def pairs(self, node: ast.expr) -> list[tuple[Any, ast.expr]]:
        """The items of a dictionary, written with braces or as ``dict(…)``: keys with expressions."""
        found: list[tuple[Any, ast.expr]] = []
        match node:
            case ast.Dict(keys=keys, values=values):
                items = [(key and self.value(key), value, key is None) for key, value in zip(keys, values, strict=True)]
            case ast.Call(func=ast.Name(id="dict") as function, args=parts) if not self._bindings(function):
                items = [*((None, part, True) for part in parts), *((k.arg, k.value, not k.arg) for k in node.keywords)]
            case _:
                raise Unknown
        for key, value, is_spread in items:
            found += self.pairs(self.follow(value)) if is_spread else [(key, value)]
            if len(found) > _MOST:
                raise Unknown("it has too many parts")
        return found


def _is_mutable(node: ast.AST) -> bool:
    is_dict = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "dict"
    return is_dict or isinstance(node, ast.List | ast.Dict)
