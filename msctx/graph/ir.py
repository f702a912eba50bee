"""Writes graphs of torch.fx in the grammar of MindSpore's ``.ir`` files.

Source of the grammar: MindSpore's guide to IR files (tutorials/debug/error_analysis/mindir.md). A node stands there as::

    %0(CNode_0$a) = PrimFunc_Sub(%para1_x, I64(1)) cnode_attrs: {target: "aten.sub.Tensor"}
        : (<Tensor[Float32], (2, 3)>, <Int64, NoShape>) -> (<Tensor[Float32], (2, 3)>)
        # Fullname with scope: (Default/net-Net/Sub-op0)
        # In file t6.py:16/a = x - 1/

After ``$`` comes the name that the node has in torch.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import fx, nn

from msctx.observers.stack_traces import frames

_OURS = f"{Path(__file__).parents[1]}{os.sep}"
NO_TYPE, FUNCTION = "<null>", "<Func, NoShape>"
_UNKNOWN = object()
_DTYPES = {torch.bool: "Bool", torch.bfloat16: "BFloat16", torch.half: "Float16"}
_CONSTANTS: tuple[tuple[type, str, str], ...] = (
    (bool, "Bool", "Bool"),  # before int, which it is
    (int, "I64", "Int64"),
    (float, "F64", "Float64"),
    (complex, "C128", "Complex128"),
)
"""Type of Python → how its values and its type are written."""


def ir_text(gm: fx.GraphModule, name: str, *, classes: bool, attrs: Mapping[str, object] | None = None) -> str:
    """*gm* and the graphs in it.

    Args:
        gm: the graph.
        name: of its entry.
        classes: whether scopes carry the classes of modules, ``Default/net-Net`` instead of ``Default/net``.
        attrs: what else is known about it.
    """
    return _Writer(gm, name, classes).text(attrs or {})


def graphs_in(gm: fx.GraphModule, name: str) -> dict[fx.GraphModule, str]:
    """*gm* by this name, then the graphs that its nodes mean, each once, by names that no other has."""
    found: dict[fx.GraphModule, str] = {}

    def meet(one: fx.GraphModule, wanted: str) -> None:
        if one in found:
            return
        names = (wanted, *(f"{wanted}_{more}" for more in range(1, len(found) + 1)))
        found[one] = next(free for free in names if free not in found.values())
        for node in one.graph.nodes:
            if (inner := inner_graph(one, node)) is not None:
                meet(inner, f"{wanted}_{identifier(node.name)}")

    meet(gm, name)
    return found


class _Writer:
    def __init__(self, gm: fx.GraphModule, name: str, classes: bool) -> None:
        self._classes = classes
        self._operators: Counter[str] = Counter()
        self._parameters = 0
        self._names = graphs_in(gm, name)

    def text(self, attrs: Mapping[str, object]) -> str:
        (entry, name), *_ = self._names.items()
        bodies = [self._subgraph(gm, is_entry=gm is entry) for gm in self._names]
        parameters = [node for node in entry.graph.nodes if node.op == "placeholder"]
        nodes = [node for gm in self._names for node in gm.graph.nodes]
        lines = [f"# IR entry: @{name}", f"# Total subgraphs: {len(self._names)}", "", "# Attrs:"]
        lines += [f"{key}: {_line(value)}" for key, value in attrs.items()]
        lines += ["", f"# Total params: {len(parameters)}", "# Params:"]
        lines += [f"{place}: {type_of(node)}" for place, node in zip(bodies[0].parameters, parameters, strict=True)]
        lines += ["", "Node counting information:", f"Total number of nodes: {len(nodes)}"]
        lines += [f"Total number of cnodes: {sum(node.op not in ('placeholder', 'output') for node in nodes)}"]
        for body in bodies:
            lines += ["", *body.lines, ""]
        return "\n".join(lines)

    def _subgraph(self, gm: fx.GraphModule, *, is_entry: bool) -> _Body:
        body = _Body()
        for node in gm.graph.nodes:
            if node.op == "placeholder":
                self._parameters += 1
                body.places[node] = f"%para{self._parameters}_{identifier(node.name)}"
        body.parameters = [*body.places.values()]
        if not is_entry:
            types = ", ".join(type_of(node) for node in body.places)
            body.lines.append(f"# Parameters: {len(body.places)}, ({types})")
        given = "" if is_entry else ", ".join(body.parameters)
        body.lines.append(f"subgraph @{self._names[gm]}({given}) {{")
        for node in gm.graph.nodes:
            if node.op == "output":
                body.lines += self._output(node, body)
            elif node.op != "placeholder":
                body.lines += self._node(gm, node, body)
        body.lines.append("}")
        return body

    def _output(self, node: fx.Node, body: _Body) -> Iterator[str]:
        values = node.args[0]
        yield f"  Return({self._value(values, body)})"
        yield f"      : ({_type(values)})"

    def _node(self, gm: fx.GraphModule, node: fx.Node, body: _Body) -> Iterator[str]:
        number, call = len(body.places) - len(body.parameters), self._call(gm, node, body)
        body.places[node] = f"%{number}"
        attrs = f" cnode_attrs: {{target: {json.dumps(call.target)}}}" if call.target else ""
        scope = [*scope_of(node, classes=self._classes), f"{call.operator}-op{self._operators[call.operator]}"]
        self._operators[call.operator] += 1
        yield f"  %{number}(CNode_{number}${identifier(node.name)}) = {call.function}({', '.join(call.given)}){attrs}"
        yield f"      : ({', '.join(call.types)}) -> ({call.made})"
        yield f"      # Fullname with scope: ({'/'.join(scope)})"
        for frame in frames(node.meta.get("stack_trace") or ""):
            if frame.file.startswith(_OURS):  # where graph mode calls the module
                continue
            yield f"      # In file {frame.file}:{frame.line}/{_line(frame.code)}/"

    def _call(self, gm: fx.GraphModule, node: fx.Node, body: _Body) -> _Call:
        given = [self._value(value, body) for value in node.args]
        given += [f"{key}={self._value(value, body)}" for key, value in node.kwargs.items()]
        types = [_type(value) for value in (*node.args, *node.kwargs.values())]
        inner = inner_graph(gm, node)
        if inner is not None:
            name, is_call = f"@{self._names[inner]}", node.op == "call_module"
            made = type_of(node) if is_call else FUNCTION
            return _Call(*(("Call", "call") if is_call else ("Partial", "Partial")), [name, *given], [FUNCTION, *types], made)
        if node.op == "get_attr":
            return _Call("GetAttr", "GetAttr", [_constant(node.target)], [_type(node.target)], _attribute_type(gm, node))
        operator = operator_of(node)
        return _Call(operator, f"PrimFunc_{operator}", given, types, type_of(node), target_of(node))

    def _value(self, value: Any, body: _Body) -> str:
        """As an argument of a node."""
        if isinstance(value, fx.Node):
            return body.places[value]
        if isinstance(value, (list, tuple)):
            inside = ", ".join(self._value(one, body) for one in value)
            return f"[{inside}]" if isinstance(value, list) else f"({inside})"
        if isinstance(value, dict):
            return f"{{{', '.join(f'{json.dumps(str(k))}: {self._value(v, body)}' for k, v in value.items())}}}"
        if isinstance(value, slice):
            parts = (value.start, value.stop, value.step)
            return f"Slice({', '.join(self._value(one, body) for one in parts)})"
        return _constant(value)


class _Call(NamedTuple):
    """What is written of a node: its kind, the function, the arguments with their types, the type of the result."""

    operator: str
    function: str
    given: list[str]
    types: list[str]
    made: str
    target: str = ""


class _Body:
    """The lines of one graph, and how its nodes are called there."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.places: dict[fx.Node, str] = {}
        self.parameters: list[str] = []


def inner_graph(gm: fx.GraphModule, node: fx.Node) -> fx.GraphModule | None:
    """The graph that a node gets or calls."""
    if node.op not in ("get_attr", "call_module"):
        return None
    found = _attribute(gm, str(node.target))
    return found if isinstance(found, fx.GraphModule) else None


def _attribute(gm: fx.GraphModule, target: str) -> Any:
    found: Any = gm
    for part in target.split("."):
        found = getattr(found, part, _UNKNOWN)
    return found


# --- names ------------------------------------------------------------------------------------------------------------


def identifier(name: str) -> str:
    return re.sub(r"[^\w.]", "_", name)


def _line(value: object) -> str:
    return " ".join(str(value).splitlines())


def target_of(node: fx.Node) -> str:
    """``aten.sub.Tensor``, ``torch.nn.functional.linear``, ``Tensor.mean``, ``self.conv``."""
    if node.op == "call_method":
        return f"Tensor.{node.target}"
    if node.op == "call_module":
        return f"self.{node.target}"
    if isinstance(node.target, torch._ops.OperatorBase):
        return str(node.target)
    return str(node._pretty_print_target(node.target))


def operator_of(node: fx.Node) -> str:
    """``aten.max_pool2d.default`` → ``MaxPool2d``."""
    name = getattr(node.target, "overloadpacket", node.target)  # its name is without the overload
    name = getattr(name, "__name__", None) or str(name).rpartition(".")[2]
    return "".join(part[0].upper() + part[1:] for part in re.split(r"\W|_", name) if part) or "Operator"


def scope_of(node: fx.Node, *, classes: bool) -> list[str]:
    """The modules around a node, ``Default`` first; of a backward pass those of its forward pass, after ``Gradients``."""
    meta = node.meta
    is_backward = bool(meta.get("autograd_backward")) or "fwd_nn_module_stack" in meta
    stack = [*(meta.get("nn_module_stack") or meta.get("fwd_nn_module_stack") or {}).values()]
    entries = [(*_path(path), kind if isinstance(kind, str) else kind.__name__) for path, kind in stack]
    called = {root for root, parts, _ in entries if not parts}
    found, before = ["Gradients", "Default"] if is_backward else ["Default"], list[str]()
    for root, rest, kind in entries:
        parts = [root, *rest] if root in called - {"self"} else rest
        own = parts[len(before) :] if parts[: len(before)] == before else parts
        if own:
            name = "/".join(map(identifier, own))
            found.append(f"{name}-{kind.rpartition('.')[2]}" if classes else name)
        before = parts
    return found


_KEY = re.compile(r"\[['\"]?([^\]'\"]*)['\"]?\]")


def _path(name: str) -> tuple[str, list[str]]:
    """Dynamo's name of a module or weight: the variable, and what follows. ``L['m']._modules['layers'][0]`` → m, (layers, 0).

    The model that is compiled is a variable that no module is called by: it is left out of scopes.
    """
    _, *found = _KEY.sub(r".\1", name).split(".")
    return "".join(found[:1]), [part for part in found[1:] if part not in ("", "_modules", "_parameters", "_buffers")]


def _weight(node: fx.Node) -> str:
    """``conv.weight``, where Dynamo has kept where it found that."""
    source = getattr(node, "_dynamo_source", None) or getattr(node.meta.get("grapharg"), "source", None)
    name = getattr(source, "name", "")
    _, parts = _path(name() if callable(name) else name)
    return ".".join(map(identifier, parts)) or node.name


# --- values and types -------------------------------------------------------------------------------------------------


def _constant(value: Any) -> str:
    if value is None or value is Ellipsis:
        return "None" if value is None else "..."
    for kind, name, _ in _CONSTANTS:
        if type(value) is kind:
            return f"{name}({int(value) if isinstance(value, bool) else repr(value)})"
    if isinstance(value, str):
        return json.dumps(value)  # with escapes for all that could end a line
    if isinstance(value, torch.dtype):
        return _dtype(value)
    if isinstance(value, torch.Tensor):
        return f"Tensor(shape={[*map(str, value.shape)]}, dtype={_dtype(value.dtype)})".replace("'", "")
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return f"{type(value).__name__}({json.dumps(str(value))})"
    if isinstance(value, (torch.device, torch.layout, torch.memory_format, torch._ops.OperatorBase)):
        return f"{type(value).__name__}({json.dumps(str(value))})"
    return f"{type(value).__name__}({json.dumps(getattr(value, '__qualname__', ''))})"  # a repr may be an address


def _dtype(dtype: torch.dtype) -> str:
    """MindSpore's name: ``Float32``, ``Int64``."""
    name = str(dtype).removeprefix("torch.")
    return _DTYPES.get(dtype) or name[0].upper() + name[1:].replace("int", "Int")


def type_of(node: fx.Node) -> str:
    """Of what a node makes."""
    for key in ("val", "example_value", "tensor_meta"):
        if key in node.meta:
            return _type(node.meta[key], name=_weight(node))
    return NO_TYPE


def _attribute_type(gm: fx.GraphModule, node: fx.Node) -> str:
    found = type_of(node)
    return _type(_attribute(gm, str(node.target)), name=str(node.target)) if found == NO_TYPE else found


def _type(value: Any, name: str = "") -> str:
    if value is _UNKNOWN:
        return NO_TYPE
    if isinstance(value, fx.Node):
        return type_of(value)
    if isinstance(value, torch.Tensor) or hasattr(value, "memory_format"):  # a tensor_meta has no more
        kind = f"Tensor[{_dtype(value.dtype)}]"
        if isinstance(value, nn.Parameter):
            return f"<Ref[{kind}], {_shape(value)}, ref_key={identifier(name)}>"
        return f"<{kind}, {_shape(value)}>"
    if isinstance(value, (list, tuple)):
        kind = "List" if isinstance(value, list) else "Tuple"
        parts = [_parts(_type(one)) for one in value]
        return f"<{kind}[{', '.join(k for k, _ in parts)}], {kind}Shape({', '.join(s for _, s in parts)})>"
    for kind, symbolic in (("Int64", torch.SymInt), ("Float64", torch.SymFloat), ("Bool", torch.SymBool)):
        if isinstance(value, symbolic):
            return f"<{kind}, NoShape, value={value}>"
    return f"<{_kind(value)}, NoShape>"


def _kind(value: Any) -> str:
    for kind, _, name in _CONSTANTS:
        if type(value) is kind:
            return name
    names = {type(None): "None", str: "String", torch.dtype: "TypeType", slice: "Slice", dict: "Dictionary"}
    return names.get(type(value), "External")


def _shape(value: Any) -> str:
    return f"({', '.join(map(str, value.shape))})"


def _parts(text: str) -> tuple[str, str]:
    """``<Tensor[Float32], (2, 3)>`` → its kind and its shape."""
    if text == NO_TYPE:
        return "null", "NoShape"
    depth = 0
    for place, letter in enumerate(text):
        depth += (letter in "[(") - (letter in "])")
        if letter == "," and depth == 0:
            return text[1:place], text[place + 2 : -1]
    raise AssertionError(text)
