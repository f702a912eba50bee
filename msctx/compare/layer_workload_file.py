"""A workload: the layers of a network with their shapes, each with how often it occurs, as a YAML file holds them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import yaml

from msctx.errors import Diagnostic, FileError, OptionError, nearest
from msctx.native.policy_and_choices import ConvProblem
from msctx.options.kinds import BadValue, Bool, Choice, Fields, Int, Kind, check, refusal, where
from msctx.options.values_with_places import Document
from msctx.options.yaml_json_ini import load
from msctx.shipped import shipped

Shape = tuple[int, ...]
DTYPES = ("float32", "float64", "bfloat16", "float16")
LAYOUTS = ("channels_first", "channels_last")
LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
"""Number of axes → the memory format with channels last."""


@dataclass(frozen=True)
class Product:
    """Two matrices to multiply, which may have leading axes."""

    a: Shape
    b: Shape
    b_transposed: bool = False
    """Whether ``b`` lies in memory as its transpose does, as the weight of a Linear."""
    dtype: str = "float32"

    def __str__(self) -> str:
        return f"{text(self.a)} @ {text(self.b)}, {self.dtype}" + ", b transposed" * self.b_transposed


def output_of(problem: ConvProblem) -> Shape:
    """The shape of a convolution's result; raises what torch does of shapes that do not fit."""
    x, w = (torch.empty(shape, device="meta") for shape in (problem.input, problem.weight))
    return tuple(torch.convolution(x, w, None, *geometry(problem)).shape)


def geometry(one: ConvProblem) -> tuple[Any, ...]:
    """What torch.convolution takes after input, weight and bias."""
    return one.stride, one.padding, one.dilation, one.transposed, one.output_padding, one.groups


@dataclass(frozen=True)
class NetworkLayer:
    """One problem of a network, and how often it occurs there."""

    name: str
    problem: ConvProblem | Product
    count: int = 1

    @property
    def operations(self) -> int:
        """Multiplications and additions of one direction."""
        one = self.problem
        if isinstance(one, Product):
            return 2 * math.prod(max(one.a[:-2], one.b[:-2], key=math.prod)) * one.a[-2] * one.a[-1] * one.b[-1]
        images = one.input if one.transposed else output_of(one)
        return 2 * math.prod(one.weight) * images[0] * math.prod(images[2:])


@dataclass(frozen=True)
class Workload:
    name: str
    layers: tuple[NetworkLayer, ...]
    source: str = ""
    left_out: tuple[str, ...] = ()
    """Of a captured one: the operators that multiply and are no layer of it, with how often each ran."""


def text(shape: Iterable[int]) -> str:
    return "x".join(map(str, shape))


def _sizes(value: Any, least: int = 1) -> Shape:
    """A list or ``1x3x224x224``."""
    sizes = [int(size) for size in value.split("x")] if isinstance(value, str) and re.fullmatch(r"\d+(x\d+)*", value) else value
    if not isinstance(sizes, list) or not sizes or not all(type(n) is int and n >= least for n in sizes):
        raise refusal(value)
    return tuple(sizes)


def _along(value: Any) -> Shape:
    return _sizes(str(value) if type(value) is int else value, 0)


_SHAPE = Kind("sizes such as 1x3x224x224", _sizes)
_EACH = Kind("a number, or one for each spatial axis, such as 1x1", _along)
_ALONG = ("stride", "padding", "dilation", "output_padding")
_WORD, _ROWS = Kind("text", str), Kind("a list of layers", where(lambda rows: isinstance(rows, list) and bool(rows)))
_WORKLOAD = Fields({"name": _WORD, "source": _WORD, "layers": _ROWS}, needed=("layers",))
_LAYER = {"name": _WORD, "dtype": Choice(DTYPES), "count": Int(1)}
_PRODUCT = Fields({**_LAYER, "a": _SHAPE, "b": _SHAPE, "b_transposed": Bool}, needed=("a", "b"))
_SHAPES = {"input": _SHAPE, "weight": _SHAPE, **dict.fromkeys(_ALONG, _EACH)}
_CONVOLUTION = Fields(
    {**_LAYER, **_SHAPES, "groups": Int(1), "transposed": Bool, "layout": Choice(LAYOUTS)}, needed=("input", "weight")
)
_DEFAULTS: dict[str, Any] = {
    "stride": (1,),
    "padding": (0,),
    "dilation": (1,),
    "output_padding": (0,),
    "groups": 1,
    "transposed": False,
    "dtype": DTYPES[0],
    "layout": LAYOUTS[0],
    "b_transposed": False,
}


def _product(a: Shape, b: Shape, **more: Any) -> Product:
    if min(len(a), len(b)) < 2 or a[-1] != b[-2] or (len(b) > 2 and a[:-2] != b[:-2]):
        raise BadValue(f"{text(a)} @ {text(b)} is not a matmul", path=("b",))
    return Product(a, b, **more)


def _convolution(input: Shape, weight: Shape, **more: Any) -> ConvProblem:
    axes, fields = len(input), {key: more.get(key, default) for key, default in _DEFAULTS.items() if key != "b_transposed"}
    if axes not in (3, 4, 5) or len(weight) != axes:
        raise BadValue("input and weight must have the same number of axes", allowed="3, 4 or 5 of each", path=("weight",))
    for key in _ALONG:
        sizes, least = fields[key], int(key in ("stride", "dilation"))
        if len(sizes) not in (1, axes - 2) or min(sizes) < least:
            allowed = f"one number from {least} on, or {axes - 2} of them"
            raise BadValue(f"{text(sizes)} does not fit", allowed=allowed, path=(key,))
        fields[key] = sizes * (axes - 2 if len(sizes) == 1 else 1)
    problem = ConvProblem(input, weight, **fields)
    try:
        output_of(problem)
    except (RuntimeError, IndexError) as error:
        raise BadValue(f"does not fit the weight: {str(error).partition(chr(10))[0]}", path=("input",)) from None
    return problem


def read(name: str) -> Workload:
    """The workload of a name, or of a file."""
    path = Path(name)
    if not (path.exists() or path.suffix in (".yaml", ".yml")):
        if name not in (names := shipped("workloads")):
            hint = nearest(name, names)
            raise FileError([Diagnostic("", "is not a workload", name, f"a YAML file; {', '.join(names)}", hint)])
        path = names[name]
    return parse(load(path, collect=True), path.stem)


def parse(document: Document, name: str) -> Workload:
    problems = list(document.problems)
    data = document.data if isinstance(document.data, dict) else {}
    if not isinstance(data.get("workload"), dict):
        problems.append(Diagnostic("workload", "is missing: a file of a workload begins with it", document.file))
        raise OptionError(problems)
    for key in data.keys() - {"workload"}:
        problems.append(Diagnostic(key, "unknown section", allowed="workload", mark=document.mark((key, ""))))
    section, wrong = check(_WORKLOAD, data["workload"], ("workload",), marks=document.under("workload"))
    problems += wrong
    layers: list[NetworkLayer] = []
    rows = data["workload"].get("layers")
    for number, row in enumerate(rows if isinstance(rows, list) else ()):
        marks = document.under("workload", "layers", number)
        is_product = isinstance(row, dict) and "a" in row
        found, wrong = check(_PRODUCT if is_product else _CONVOLUTION, _as_written(row, marks), marks=marks)
        problems += wrong
        if found is None:
            continue
        title, count = found.pop("name", "") or f"layer {number + 1}", found.pop("count", 1)
        try:
            layer = NetworkLayer(title, _product(**found) if is_product else _convolution(**found), count)
        except BadValue as bad:
            problems.append(bad.at(marks=marks))
            continue
        if any(layer.name == other.name for other in layers):
            problems.append(Diagnostic("name", f"another layer is named {layer.name!r}, too", mark=marks(())))
        layers.append(layer)
    if problems or section is None:
        raise OptionError(sorted(problems, key=lambda p: (p.mark.line, p.mark.column) if p.mark else (0, 0)))
    return Workload(section.get("name") or name, tuple(layers), section.get("source", ""))


def _as_written(row: Any, marks: Callable[..., Any]) -> Any:
    """A row with sizes such as 0x1, which are hexadecimal numbers to YAML, as they are written."""
    if not isinstance(row, dict):
        return row
    written = {key: mark.text[mark.column - 1 :][: mark.width] for key in _ALONG if key in row and (mark := marks((key,)))}
    return row | {key: word for key, word in written.items() if type(row[key]) is int and word[:2] in ("0x", "0o")}


def dump(workload: Workload) -> str:
    """The text of a workload's file; what has its default is left out."""
    head = {"name": workload.name} | ({"source": workload.source} if workload.source else {})
    lines = [
        "workload:",
        *(f"  {line}" for line in yaml.safe_dump(head, sort_keys=False, width=10**6).splitlines()),
        *(f"  # not in it: {line}" for line in workload.left_out),
        "  layers:",
    ]
    for layer in workload.layers:
        row = {"name": layer.name, **beside_defaults(layer.problem), **({"count": layer.count} if layer.count != 1 else {})}
        flow = yaml.safe_dump(row, default_flow_style=True, sort_keys=False, width=10**6).strip()
        lines.append(f"    - {flow}")
    return "\n".join(lines) + "\n"


def beside_defaults(problem: ConvProblem | Product) -> dict[str, Any]:
    """Key → value as a file has it, without those that have their default."""
    found: dict[str, Any] = {}
    for key, value in asdict(problem).items():
        one = value[:1] if key in _ALONG and len(set(value)) == 1 else value
        if one != _DEFAULTS.get(key):
            found[key] = one if not isinstance(one, tuple) else one[0] if len(one) == 1 else text(one)
    return found
