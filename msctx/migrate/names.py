"""What the names of a script stand for, as far as the script itself shows it: modules of MindSpore, literals. Runs nothing."""

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
_READING_FUNCTIONS = {"bool", "len", "print", "repr", "str"}
_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {ast.Add: add, ast.Sub: sub, ast.Mult: mul}
_MEANINGS = 20
"""The most meanings of one name that are followed."""
_MOST = 10_000
"""The most items of a dictionary: those that hold others twice grow without end."""


class Unknown(Exception):
    """The script does not show what a value is; the text explains, or is empty."""


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

    def _put(self, name: str, scope: ast.AST, node: ast.AST, binding: _Binding) -> None:
        self._bound[scope][name].append(binding._replace(line=getattr(node, "lineno", 0)))

    def _bind(self, node: ast.AST) -> None:
        match node:
            case ast.Import(names=names):
                for alias in names:
                    path = alias.name if alias.asname else alias.name.partition(".")[0]
                    self._put(alias.asname or path, next(self._scopes(node)), node, _Binding(path))
            case ast.ImportFrom(names=names):
                module = "." * node.level + (node.module or "")
                for alias in names:
                    if alias.name == "*":
                        self._stars.append((module, node.lineno))
                    else:
                        self._put(
                            alias.asname or alias.name, next(self._scopes(node)), node, _Binding(f"{module}.{alias.name}")
                        )
            case ast.arg(arg=name):
                function = next(outer for outer, *_ in self.script.around(node) if isinstance(outer, _SCOPES))
                self._put(name, function, node, _Binding(is_argument=True))
            case ast.Global(names=several) | ast.Nonlocal(names=several):  # assigned to elsewhere, too
                for scope in self._scopes(node):
                    for name in several:
                        self._put(name, scope, node, _Binding())
            case ast.Name(id=name, ctx=ast.Load()):
                self._uses[name].append(node)
            case ast.Name(id=name):
                self._bind_target(name, node)
            case ast.stmt() | ast.ExceptHandler() | ast.pattern():
                own = getattr(node, "name", None) or getattr(node, "rest", None)  # of a function, a class, a pattern
                if isinstance(own, str):
                    self._put(own, next(self._scopes(node)), node, _Binding())

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
        self._put(name, next(self._scopes(node)), node, _Binding(value=value))

    def _bindings(self, name: ast.Name) -> list[_Binding]:
        for scope in self._scopes(name):
            if name.id in self._bound[scope]:
                return self._bound[scope][name.id]
        return [_Binding(f"{module}.{name.id}") for module, _ in self._stars]

    # --- what expressions stand for -----------------------------------------------------------------------------------

    def paths(self, node: ast.AST | None) -> list[str]:
        """The dotted paths of what is imported that an expression may stand for: ``mindspore.context.set_context``."""
        attributes: list[str] = []
        while isinstance(node, ast.Attribute):
            attributes.insert(0, node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return []
        if node not in self._paths:
            self._paths[node] = []  # of a name that stands for itself
            with suppress(RecursionError):
                several = [[b.path] if b.path else self.paths(b.value) for b in self._bindings(node)]
                self._paths[node] = [*dict.fromkeys(chain(*several))][:_MEANINGS]
        return [".".join((base, *attributes)) for base in self._paths[node]]

    def mindspore(self, node: ast.AST) -> str:
        """The path below ``mindspore`` of what an expression stands for, or ``""``."""
        for path in self.paths(node):
            path = path.removeprefix("msctx.") if path.startswith("msctx.mindspore.") else path
            if path.startswith("mindspore."):
                return path.removeprefix("mindspore.")
        return ""

    def value(self, node: ast.expr) -> Any:
        """The value of an expression made of literals, constants of MindSpore, and names assigned once to such.

        Raises:
            Unknown: the script alone does not show what it is.
        """
        try:
            return self._value(node)
        except (RecursionError, TypeError):  # a name that stands for itself, or very deep brackets; a list as a key
            raise Unknown from None

    def known_pairs(self, node: ast.expr) -> list[tuple[Any, ast.expr]]:
        """The items of a dictionary, or of the one that a name stands for; raises :class:`Unknown` as :meth:`value` does."""
        try:
            return self.pairs(self.follow(node))
        except (RecursionError, TypeError):
            raise Unknown from None

    def word(self, node: ast.expr) -> str:
        """The constant of MindSpore that an expression, whose value is known, stands for by name; else ``""``."""
        word = self._constant(self.follow(node))
        return word if word in CONSTANTS else ""

    def _value(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Tuple(elts=parts):
                return tuple(self._value(part) for part in parts)
            case ast.List(elts=parts):
                return [self._value(part) for part in parts]
            case ast.Dict() | ast.Call():
                return {key: self._value(value) for key, value in self.pairs(node)}
            case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=operand):
                number = self._value(operand)
                if isinstance(number, int | float):
                    return -number if isinstance(sign, ast.USub) else +number
            case ast.BinOp(left=left, op=operator, right=right):
                a, b = self._value(left), self._value(right)
                if isinstance(operator, ast.Add) and isinstance(a, str) and isinstance(b, str):
                    return a + b
                if type(a) is type(b) is int and max(abs(a), abs(b)) < 2**64 and type(operator) in _OPERATORS:
                    return _OPERATORS[type(operator)](a, b)
            case ast.JoinedStr(values=parts):
                return "".join(self._value(part) for part in parts)
            case ast.FormattedValue(value=inner, conversion=-1, format_spec=None):
                value = self._value(inner)
                if isinstance(value, str) or (isinstance(value, int) and abs(value) < 2**64):
                    return str(value)
            case ast.Name() | ast.Attribute() if (word := self._constant(node)) in CONSTANTS:
                return CONSTANTS[word]
            case ast.Name() | ast.Subscript():
                meant = self.follow(node)
                try:
                    return self._value(meant)
                except Unknown as unknown:
                    if str(unknown):
                        raise
                    raise Unknown(f"{self.script.written(node)} = {one_line(self.script.written(meant), 80)}") from None
        raise Unknown

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
                whole, wanted = self.follow(base), self._value(key)
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
        for outer, _, part in self.script.around(use):
            match outer:
                case ast.Subscript(value=base) if base is part:
                    if is_flat or not isinstance(outer.ctx, ast.Load):
                        return not isinstance(outer.ctx, ast.Load)
                case ast.keyword(arg=None) | ast.Attribute(attr="copy" | "get" | "items" | "keys" | "values") if is_flat:
                    return part is not use
                case ast.Dict(keys=keys, values=values) if is_flat and keys[[*map(id, values)].index(id(part))] is None:
                    return False
                case ast.Compare() | ast.FormattedValue() | ast.If():
                    return False
                case ast.Call(func=function):
                    if isinstance(function, ast.Name) and function.id in _READING_FUNCTIONS:
                        return bool(self._bindings(function))
                    return not self.mindspore(function)
                case ast.Dict() | ast.List() | ast.Tuple() | ast.keyword() | ast.BinOp():
                    pass
                case _:
                    return True
        return True

    def pairs(self, node: ast.expr) -> list[tuple[Any, ast.expr]]:
        """The items of a dictionary, written with braces or as ``dict(…)``: keys with expressions."""
        found: list[tuple[Any, ast.expr]] = []
        match node:
            case ast.Dict(keys=keys, values=values):
                items = [(key and self._value(key), value, key is None) for key, value in zip(keys, values, strict=True)]
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
