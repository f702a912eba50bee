"""A workload: the layers of a network with their shapes, each with how often it occurs, as a YAML file holds them.

A layer is a convolution (``input``, ``weight`` and what ``torch.nn.functional.conv2d`` takes) or a product of matrices (``a``, ``b``,
which may have leading axes as ``torch.matmul`` takes them). Shapes are written as ``choices()`` shows them: 1x3x224x224.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from msctx.errors import Diagnostic, FileError, OptionError, nearest, searching
from msctx.options.kinds import INVALID
from msctx.options.yamlfile import Document, load
from msctx.shipped import CONFIGS

Shape = tuple[int, ...]
DTYPES = ("float32", "float64", "bfloat16", "float16")
LAYOUTS = ("channels_first", "channels_last")


@dataclass(frozen=True)
class Convolution:
    """The tuples have a number for each spatial axis."""

    name: str
    input: Shape
    weight: Shape
    stride: Shape
    padding: Shape
    dilation: Shape
    output_padding: Shape
    groups: int = 1
    transposed: bool = False
    dtype: str = "float32"
    layout: str = "channels_first"
    count: int = 1

    @property
    def output(self) -> Shape:
        sizes = zip(self.input[2:], self.weight[2:], self.stride, self.padding, self.dilation, self.output_padding, strict=True)
        if self.transposed:
            spatial = [(n - 1) * s - 2 * p + d * (k - 1) + o + 1 for n, k, s, p, d, o in sizes]
            return (self.input[0], self.weight[1] * self.groups, *spatial)
        return (self.input[0], self.weight[0], *((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d, _ in sizes))

    @property
    def operations(self) -> int:
        """Multiplications and additions of one direction."""
        images = self.input if self.transposed else self.output
        return 2 * math.prod(self.weight) * images[0] * math.prod(images[2:])

    def with_batch(self, factor: int) -> Convolution:
        return replace(self, input=(self.input[0] * factor, *self.input[1:]))

    def __str__(self) -> str:
        """As the rows of ``choices()`` have it."""
        from msctx.native.choices import ConvProblem

        shapes = (self.input, self.weight, self.stride, self.padding, self.dilation, self.output_padding)
        return str(ConvProblem(*shapes, self.groups, self.transposed, self.dtype, self.layout))


@dataclass(frozen=True)
class Matmul:
    name: str
    a: Shape
    b: Shape
    dtype: str = "float32"
    b_transposed: bool = False
    """Whether ``b`` lies in memory as its transpose does, as the weight of a Linear."""
    count: int = 1

    @property
    def operations(self) -> int:
        leading = max(self.a[:-2], self.b[:-2], key=math.prod)
        return 2 * math.prod(leading) * self.a[-2] * self.a[-1] * self.b[-1]

    def with_batch(self, factor: int) -> Matmul:
        b = self.b if len(self.b) == 2 else (self.b[0] * factor, *self.b[1:])
        return replace(self, a=(self.a[0] * factor, *self.a[1:]), b=b)

    def __str__(self) -> str:
        return f"{text(self.a)} @ {text(self.b)}, {self.dtype}" + ", b transposed" * self.b_transposed


NetworkLayer = Convolution | Matmul


@dataclass(frozen=True)
class Workload:
    name: str
    layers: tuple[NetworkLayer, ...]
    source: str = ""
    left_out: tuple[str, ...] = ()
    """Of a captured one: the operators that multiply and are no layer of it, with how often each ran."""

    def with_batch(self, factor: int) -> Workload:
        return replace(self, layers=tuple(layer.with_batch(factor) for layer in self.layers))


def text(shape: Iterable[int]) -> str:
    return "x".join(map(str, shape))


# --- files ------------------------------------------------------------------------------------------------------------


def known() -> dict[str, Path]:
    """The workloads that msctx ships, by name."""
    return {path.stem: path for path in sorted((CONFIGS / "workloads").glob("*.yaml"))}


def read(name: str) -> Workload:
    """The workload of a name, or of a file.

    Raises:
        FileError: there is no such file, or it is not YAML.
        OptionError: all that is wrong with what it holds.
    """
    path = Path(name)
    if not (path.exists() or path.suffix in (".yaml", ".yml")):
        if name not in (names := known()):
            hint = nearest(name, names)
            raise FileError([Diagnostic("", "is no workload", name, f"a YAML file; {', '.join(names)}", hint)])
        path = names[name]
    return parse(load(path, collect=True), path.stem)


@searching()
def parse(document: Document, name: str) -> Workload:
    problems = list(document.problems)
    data = document.data if isinstance(document.data, dict) else {}
    section = data.get("workload")
    if not isinstance(section, dict):
        problems.append(Diagnostic("workload", "is missing: a file of a workload begins with it", document.file))
        raise OptionError(problems)
    problems += [
        Diagnostic(key, "unknown section", allowed="workload", mark=document.mark((key, "")))
        for key in data
        if key != "workload"
    ]
    allowed = ("name", "source", "layers")
    for key in section.keys() - set(allowed):
        mark = document.mark(("workload", key, ""))
        problems.append(Diagnostic(f"workload.{key}", "unknown key", "", ", ".join(allowed), nearest(key, allowed), mark))
    rows = section.get("layers")
    if not isinstance(rows, list) or not rows:
        problems.append(Diagnostic("workload.layers", "is not a list of layers", mark=document.mark(("workload", "layers"))))
        raise OptionError(problems)
    found = []
    for number, row in enumerate(rows):
        reader = _Row(document, ("workload", "layers", number), row, problems)
        if (layer := reader.layer(f"layer {number + 1}")) is not None:
            found.append(layer)
    names = [layer.name for layer in found]
    for number, of_layer in enumerate(names):
        if of_layer in names[:number]:
            mark = document.mark(("workload", "layers", number))
            problems.append(Diagnostic("name", f"another layer is named {of_layer!r}, too", mark=mark))
    if problems:
        raise OptionError(sorted(problems, key=lambda p: (p.mark.line, p.mark.column) if p.mark else (0, 0)))
    return Workload(str(section.get("name", name)), tuple(found), str(section.get("source", "")))


class _Row:
    """One layer of a file; what is wrong with it is added to *problems*."""

    KEYS = {
        "input": [
            "name",
            "input",
            "weight",
            "stride",
            "padding",
            "dilation",
            "output_padding",
            "groups",
            "transposed",
            "dtype",
            "layout",
            "count",
        ],
        "a": ["name", "a", "b", "b_transposed", "dtype", "count"],
    }

    def __init__(self, document: Document, path: tuple[Any, ...], row: Any, problems: list[Diagnostic]) -> None:
        self._document, self._path, self._row, self._problems = document, path, row, problems
        self._before = len(problems)

    def layer(self, name: str) -> NetworkLayer | None:
        row = self._row
        if row is INVALID:
            return None
        if not isinstance(row, dict) or ("input" in row) == ("a" in row):
            self._wrong("", "is neither a convolution (input, weight) nor a product (a, b)")
            return None
        keys = self.KEYS["input" if "input" in row else "a"]
        for key in row.keys() - set(keys):
            self._wrong(key, "unknown key", ", ".join(keys), nearest(str(key), keys), of_key=True)
        return self._convolution(name) if "input" in row else self._matmul(name)

    def _convolution(self, name: str) -> Convolution | None:
        x, w = self._shape("input"), self._shape("weight")
        axes = len(x) - 2
        if x and w and (len(x) not in (3, 4, 5) or len(w) != len(x)):
            self._wrong("weight", "input and weight must have the same number of axes", "3, 4 or 5 of each")
        if not self._fine():
            return None
        each: dict[str, Any] = {key: self._axes(key, default, axes) for key, default in DEFAULTS.items()}
        layer = Convolution(
            *(self._name(name), x, w),
            **each,
            groups=self._number("groups", 1),
            transposed=self._one_of("transposed", (False, True)),
            dtype=self._one_of("dtype", DTYPES),
            layout=self._one_of("layout", LAYOUTS),
            count=self._number("count", 1),
        )
        if not self._fine():
            return None
        c = w[0] if layer.transposed else w[1] * layer.groups
        if c != x[1]:
            self._wrong("input", f"has {x[1]} channels, the weight and its groups take {c}")
        elif w[0] % layer.groups:
            self._wrong("groups", f"{layer.groups} does not divide the {w[0]} of the weight")
        elif not layer.transposed and any(layer.output_padding):
            self._wrong("output_padding", "is for transposed convolutions")
        elif min(layer.output[2:]) < 1:
            self._wrong("input", f"is too small for the weight: the result would be {text(layer.output)}")
        return layer if self._fine() else None

    def _matmul(self, name: str) -> Matmul | None:
        a, b = self._shape("a"), self._shape("b")
        if self._fine() and (min(len(a), len(b)) < 2 or a[-1] != b[-2] or (len(b) > 2 and a[:-2] != b[:-2])):
            self._wrong("b", f"{text(a)} @ {text(b)} is no product of matrices")
        if not self._fine():
            return None
        dtype, transposed = self._one_of("dtype", DTYPES), self._one_of("b_transposed", (False, True))
        return Matmul(self._name(name), a, b, dtype, transposed, self._number("count", 1))

    def _fine(self) -> bool:
        return len(self._problems) == self._before

    def _wrong(self, key: str, what: str, allowed: str = "", hint: str = "", of_key: bool = False) -> None:
        place = (*self._path, key) if key else self._path
        mark = self._document.mark((*place, "") if of_key else place)
        self._problems.append(Diagnostic(key or "layer", what, self._document.file, allowed, hint, mark))

    def _name(self, default: str) -> str:
        return str(self._row.get("name", default))

    def _shape(self, key: str) -> Shape:
        value = self._row.get(key)
        if isinstance(value, list) and value and all(type(n) is int and n > 0 for n in value):
            return tuple(value)
        if isinstance(value, str) and re.fullmatch(r"[1-9]\d*(x[1-9]\d*)*", value):
            return tuple(map(int, value.split("x")))
        self._wrong(
            key, "is missing" if value is None else f"{value!r} is no shape", "sizes of at least 1, such as 1x3x224x224"
        )
        return ()

    def _axes(self, key: str, default: int, axes: int) -> Shape:
        value = self._row.get(key, default)
        if type(value) is int and (mark := self._document.mark((*self._path, key))) and key in self._row:
            written = mark.text[mark.column - 1 :]
            value = written[: mark.width] if written[:2] in ("0x", "0o") else value  # YAML's hexadecimals are sizes here
        least = 0 if key in ("padding", "output_padding") else 1
        values = (value,) * axes if type(value) is int else tuple(value) if isinstance(value, list) else ()
        if isinstance(value, str) and re.fullmatch(r"\d+(x\d+)*", value):
            values = tuple(map(int, value.split("x")))
        if len(values) != axes or not all(type(n) is int and n >= least for n in values):
            self._wrong(
                key, f"{value!r} does not fit", f"a number from {least} on, or {axes} of them such as {text([1] * axes)}"
            )
            return (max(default, least),) * axes
        return values

    def _number(self, key: str, default: int) -> int:
        value = self._row.get(key, default)
        if type(value) is not int or value < 1:
            self._wrong(key, f"{value!r} is not a number from 1 on")
            return default
        return value

    def _one_of(self, key: str, allowed: tuple[Any, ...]) -> Any:
        value = self._row.get(key, allowed[0])
        if not any(value is one or (isinstance(one, str) and value == one) for one in allowed):
            self._wrong(
                key, f"{value!r} is not one of them", ", ".join(map(str, allowed)), nearest(str(value), map(str, allowed))
            )
        return value


DEFAULTS = {"stride": 1, "padding": 0, "dilation": 1, "output_padding": 0}


def dump(workload: Workload) -> str:
    """The text of a workload's file; what has its default is left out."""
    rows = [_row_of(layer) for layer in workload.layers]
    head = {"name": workload.name} | ({"source": workload.source} if workload.source else {})
    lines = [
        "workload:",
        *(f"  {line}" for line in yaml.safe_dump(head, sort_keys=False, width=10**6).splitlines()),
        *(f"  # not in it: {line}" for line in workload.left_out),
        "  layers:",
    ]
    for row in rows:
        flow = yaml.safe_dump(row, default_flow_style=True, sort_keys=False, width=10**6).strip()
        lines.append(f"    - {flow}")
    return "\n".join(lines) + "\n"


def _row_of(layer: NetworkLayer) -> Mapping[str, Any]:
    if isinstance(layer, Matmul):
        row: dict[str, Any] = {"name": layer.name, "a": text(layer.a), "b": text(layer.b)}
        row |= {"b_transposed": True} if layer.b_transposed else {}
    else:
        row = {"name": layer.name, "input": text(layer.input), "weight": text(layer.weight)}
        for key, default in DEFAULTS.items():
            values = getattr(layer, key)
            if set(values) != {default}:
                row[key] = values[0] if len(set(values)) == 1 else text(values)
        row |= {"groups": layer.groups} if layer.groups != 1 else {}
        row |= {"transposed": True} if layer.transposed else {}
        row |= {"layout": layer.layout} if layer.layout != LAYOUTS[0] else {}
    row |= {"dtype": layer.dtype} if layer.dtype != DTYPES[0] else {}
    return row | ({"count": layer.count} if layer.count != 1 else {})
