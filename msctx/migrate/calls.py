"""Which calls of a script set options, and to what: ``set_context`` by keywords, MindSpore's newer functions one by one."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

from msctx.errors import Diagnostic, Mark, one_line
from msctx.migrate.script import Script
from msctx.migrate.static_values import AT_RUN_TIME, CONSTANTS, UNKNOWN, Names, Unknown
from msctx.mindspore.absent_names import SETTINGS, about_variable
from msctx.options import find
from msctx.options.registry import instead, is_dictionary
from msctx.setter_functions import DEFAULTS, JIT_CONFIG, JIT_LEVELS

HOMES = re.compile(r"^(common\.((seed|api)\.)?|device_manager\.)")
"""Modules of MindSpore whose functions the top level has too, beside ``context``, which many modules import."""

PARAMETERS = {
    "set_device": ("device_target", "device_id"),
    "set_deterministic": ("deterministic",),
    "set_recursion_limit": ("recursion_limit",),
    **dict.fromkeys(("set_seed", "manual_seed"), ("seed",)),
    "runtime.launch_blocking": (),
    "runtime.set_memory": ("init_size", "increase_size", "max_size", "optimize_level", "huge_page_reserve_size"),
}
"""Function → its parameters, in order. All other setters have one parameter, whatever its name."""

NO_COUNTERPART = SETTINGS | {
    "set_dump": "msctx.set_dump(module) marks what dump_config dumps with dump_mode 2",
    "jit": "msctx.mindspore.jit takes these; only jit_level, dynamic and fullgraph have an effect",
}
"""Functions that set something which no option of msctx stands for, and what to do instead."""
ASKING = re.compile("(available|count|synchronize|stream|event|streamctx|stats|reserved|allocated|summary|empty_cache)$")
"""How the names of functions of ``runtime`` and ``device_context`` end that set nothing."""


@dataclass(frozen=True)
class Entry:
    """One option as a call gives it; *reason*: why it cannot be migrated."""

    spelling: str
    value: Any
    written: str
    mark: Mark
    reason: str = ""
    rank: int = 0
    inside: str = ""
    """The conditions and loops around the call, and what stands there in place of the option or value."""
    over: str = ""
    """The other values, given before, that this one replaces."""


@dataclass
class Call:
    """A call that sets options."""

    function: str
    mark: Mark
    inside: str
    """Conditions and loops around it."""
    devices: set[str] = field(default_factory=set)
    """Those that the conditions leave."""
    given: list[Entry] = field(default_factory=list)
    problems: list[Diagnostic] = field(default_factory=list)
    left_out: str = ""
    """Why the call cannot be migrated."""
    options: dict[str, Any] = field(default_factory=dict)
    """What of it msctx takes, by msctx's spelling, though a later call may replace it."""

    def leave_out(self, why: str) -> Call:
        self.left_out = why
        self.problems.append(Diagnostic(self.function, why, mark=self.mark))
        return self

    def as_dict(self) -> dict[str, Any]:
        place = {"line": self.mark.line, "column": self.mark.column}
        return place | {name: getattr(self, name) for name in ("function", "options")}


class Reader:
    """Finds the calls of a script."""

    def __init__(self, script: Script) -> None:
        self.script, self.names = script, Names(script)

    def calls(self) -> Iterator[Call]:
        """Every call that sets something, in the order in which the script has them."""
        nodes = [node for node in self.script.parents if isinstance(node, ast.Call | ast.Name | ast.Attribute | ast.Constant)]
        for node in sorted(nodes, key=lambda n: (n.lineno, n.col_offset)):
            if isinstance(node, ast.Constant):
                line = self.script.lines[node.lineno - 1]
                if isinstance(name := node.value, str) and (why := about_variable(name, line)):
                    yield self._new(name, node).leave_out(why)
            elif not isinstance(node, ast.Call):
                if self._is_handed_on(node):
                    why = "what is called under another name is known only when the script runs"
                    yield self._new("set_context", node).leave_out(why)
            elif made := self._call(node, self._function(node.func)):
                yield made

    def _new(self, name: str, node: ast.AST, width: int = 0) -> Call:
        return Call(name, self.script.mark(node, width), self.script.inside(node), self.script.devices(node))

    def _is_handed_on(self, node: ast.Name | ast.Attribute) -> bool:
        """Whether ``set_context`` stands here for another use than a call, or a name that calls are read by."""
        parent, field = self.script.parents[node]
        is_read = isinstance(node.ctx, ast.Load) and field != "func" and not isinstance(parent, ast.Attribute)
        is_named = isinstance(parent, ast.Assign) and all(isinstance(target, ast.Name) for target in parent.targets)
        return is_read and not is_named and self._function(node) == "set_context"

    def _function(self, node: ast.expr) -> str:
        """The function of MindSpore that an expression stands for, without the module it is at home in."""
        function = f".{self.names.mindspore(node)}".rpartition(".context.")[2].removeprefix(".")
        return HOMES.sub("", function)

    def _call(self, call: ast.Call, function: str) -> Call | None:
        written = self.script.written(call.func)
        found = self._new(written, call, len(written))
        if function == "set_context":
            self._keywords(call, found)
        elif function in PARAMETERS or (find(function) and function.startswith(("runtime.", "device_context."))):
            self._parameters(call, function, found)
        elif why := self._why_not(call, function):
            found.leave_out(why)
        else:
            return None
        return found

    def _why_not(self, call: ast.Call, function: str) -> str:
        """Why a call that sets something cannot be migrated; ``""`` for one that sets nothing."""
        first, _, rest = function.partition(".")
        last = rest.rpartition(".")[2] or first
        method = getattr(call.func, "attr", "")  # of a model or cell, whatever its name
        parts = [f"{part}.{keyword.arg}" for keyword in call.keywords for part in (last, f"Model.{method}")]
        names = [*accumulate(function.split("."), "{}.{}".format), f"{first}.{last}", last, *parts, f"Cell.{method}"]
        reasons = dict.fromkeys(NO_COUNTERPART[name] for name in names if name in NO_COUNTERPART)
        if reasons and not last.startswith("get_") and (function != "jit" or call.keywords):
            return f"not translated: {'; '.join(reasons)}"
        written = self.script.written(call.func)
        if re.fullmatch(r"[\w.]+\.set_context", written) and not self.names.paths(call.func):
            return "whether this is MindSpore's set_context is known only when the script runs"
        match call.func:
            case ast.Attribute(value=ast.Call(func=inner), attr=name):
                if name.startswith("set_") and self._function(inner) == "_context":
                    return "MindSpore's inner context is not read: write these options as arguments of set_context"
        if first in ("runtime", "device_context") and rest and not ASKING.search(rest.lower()):
            return ": ".join(filter(None, ("not translated", instead(last))))
        return ""

    # --- arguments ------------------------------------------------------------------------------------------------------

    def _keywords(self, call: ast.Call, found: Call) -> None:
        for part in call.args:
            text = f"set_context takes options only by name, not {one_line(self.script.written(part), 60)}"
            found.problems.append(Diagnostic(found.function, text, mark=self.script.mark(part)))
        for keyword in call.keywords:
            if keyword.arg is not None:
                self._option(keyword.arg, keyword.value, found)
                continue
            try:
                self._options("", keyword.value, found)
            except UNKNOWN as unknown:
                self._leave_out(f"**{self.script.written(keyword.value)}", keyword.value, found, unknown)
        found.given.sort(key=lambda entry: entry.spelling == "enable_graph_kernel" and not entry.inside)  # wins over jit_level

    def _options(self, prefix: str, node: ast.expr, found: Call) -> None:
        """The items of a dictionary, each on its own: what is known of it is migrated."""
        for key, value in self.names.pairs(self.names.follow(node)):
            self._option(f"{prefix}{key}", value, found)

    def _option(self, spelling: str, node: ast.expr, found: Call) -> None:
        """One option, or a group of them."""
        spelling = f"jit_config.{spelling}" if spelling in JIT_CONFIG else spelling
        if is_dictionary(spelling) or spelling == "jit_config":
            with suppress(*UNKNOWN):  # not a dictionary, or not known: reported as a whole
                self._options(f"{spelling}.", node, found)
                return
        try:
            value = self._as_written(spelling, node)
        except UNKNOWN as unknown:
            self._leave_out(spelling, node, found, unknown)
            return
        entry = Entry(spelling, value, self.script.written(node), self.script.mark(node))
        if spelling == "jit_config.jit_level" and value in [*JIT_LEVELS]:
            level = f"jit_level={entry.written}"
            entry = replace(entry, spelling="enable_graph_kernel", value=JIT_LEVELS[value], written=level, inside=level)
        found.given.append(entry)

    def _as_written(self, spelling: str, node: ast.expr) -> Any:
        """A value; a constant by its word where the option knows that, ``GRAPH_MODE``, else by its number."""
        value, option, word = self.names.value(node), find(spelling), self.names.word(node)
        aliases = dict(getattr(option.kind, "aliases", ())) if option else {}
        return word if word and aliases.get(word) == CONSTANTS[word] else value

    def _leave_out(self, spelling: str, node: ast.AST, found: Call, why: Exception | str) -> None:
        reason = why if isinstance(why, str) else AT_RUN_TIME + f": {why}" * (isinstance(why, Unknown) and bool(str(why)))
        found.given.append(Entry(spelling, None, self.script.written(node), self.script.mark(node), reason))

    def _parameters(self, call: ast.Call, function: str, found: Call) -> None:
        parts: list[ast.expr | ast.keyword] = [*call.args, *call.keywords]
        for part in parts:
            if isinstance(part, ast.Starred) or (isinstance(part, ast.keyword) and part.arg is None):
                self._leave_out(f"{function}(*{self.script.written(part.value)})", part.value, found, Unknown())
                return
        parameters = PARAMETERS.get(function, ("value",))
        names = ["value"]
        if function in PARAMETERS:
            names = [*parameters[: len(call.args)], *(keyword.arg or "" for keyword in call.keywords)]
        is_implied = not parts and function in DEFAULTS
        if not (len({*names}) == len(parts) and {*names} <= {*parameters} and (parts or is_implied)):
            takes = ", ".join(parameters) if function in PARAMETERS else "one value"
            found.leave_out(f"these are not the arguments of {function.rpartition('.')[2]}: it takes {takes or 'none'}")
            return
        for name, part in zip(names, parts, strict=True):
            node = part.value if isinstance(part, ast.keyword) else part
            if isinstance(node, ast.Constant) and node.value is None and name != parameters[0]:
                continue  # a default: not given
            spelling = _spelling(function, name)
            if find(spelling):
                self._option(spelling, node, found)
            else:
                self._leave_out(spelling, node, found, SETTINGS[spelling])
        if is_implied:
            found.given.append(Entry(_spelling(function, next(iter(parameters), "")), DEFAULTS[function], "", found.mark))


def _spelling(function: str, parameter: str) -> str:
    """What a parameter of one of MindSpore's newer functions is called here."""
    dotted = f"{function}.{parameter}"
    return next((spelling for spelling in (dotted, function, parameter) if find(spelling)), dotted)
