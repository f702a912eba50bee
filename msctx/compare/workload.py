"""A workload: the layers of a network with their shapes, each with how often it occurs, as a YAML file holds them.

A layer is a convolution (``input``, ``weight`` and what ``torch.nn.functional.conv2d`` takes) or a product of matrices (``a``, ``b``,
which may have leading axes as for ``torch.matmul``). Shapes are written as ``choices()`` shows them: 1x3x224x224.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from msctx.errors import Diagnostic, FileError, OptionError, nearest, searching
from msctx.native.choices import ConvProblem
from msctx.options.kinds import BadValue, Bool, ChoiceKind, Int, Kind, show
from msctx.options.validation import Misfit, checked
from msctx.options.yamlfile import Document, load
from msctx.shipped import CONFIGS

Shape = tuple[int, ...]
DTYPES = ("float32", "float64", "bfloat16", "float16")
LAYOUTS = ("channels_first", "channels_last")


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
    """The shape of a convolution's result."""
    one = problem
    sizes = zip(one.input[2:], one.weight[2:], one.stride, one.padding, one.dilation, one.output_padding, strict=True)
    if one.transposed:
        spatial = [(n - 1) * s - 2 * p + d * (k - 1) + o + 1 for n, k, s, p, d, o in sizes]
        return (one.input[0], one.weight[1] * one.groups, *spatial)
    return (one.input[0], one.weight[0], *((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d, _ in sizes))


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

    def with_batch(self, factor: int) -> NetworkLayer:
        one = self.problem
        if isinstance(one, ConvProblem):
            return replace(self, problem=replace(one, input=_times(one.input, factor)))
        b = one.b if len(one.b) == 2 else _times(one.b, factor)
        return replace(self, problem=replace(one, a=_times(one.a, factor), b=b))


def _times(shape: Shape, factor: int) -> Shape:
    return (shape[0] * factor, *shape[1:])


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


# --- what a file holds ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SizesKind(Kind):
    """Sizes as a list or as ``1x3x224x224``; a single number is one for all axes."""

    allowed: str = "sizes of at least 1, such as 1x3x224x224"
    least: int = 1
    single: bool = False

    def parse(self, value: Any) -> Shape:
        sizes = [value] if self.single and type(value) is int else value
        if isinstance(value, str) and re.fullmatch(r"\d+(x\d+)*", value):
            sizes = [int(size) for size in value.split("x")]
        if not isinstance(sizes, list) or not sizes or not all(type(n) is int and n >= self.least for n in sizes):
            raise BadValue(
                f"{show(value)} is no shape" if not self.single else f"{show(value)} does not fit", allowed=self.allowed
            )
        return tuple(sizes)

    def schema(self) -> dict[str, Any]:
        pattern = r"^[1-9]\d*(x[1-9]\d*)*$" if self.least else r"^\d+(x\d+)*$"
        number = {"type": "integer", "minimum": self.least}
        forms = [{"type": "string", "pattern": pattern}, {"type": "array", "items": number, "minItems": 1}]
        return {"anyOf": [number, *forms] if self.single else forms}


_Shape = Annotated[Shape, SizesKind()]
_Positive = Annotated[Shape, SizesKind("a number from 1 on, or one for each spatial axis, such as 1x1", 1, True)]
_Natural = Annotated[Shape, SizesKind("a number from 0 on, or one for each spatial axis, such as 1x1", 0, True)]
_ALONG = ("stride", "padding", "dilation", "output_padding")


class Row(BaseModel):
    """One layer of a file: a convolution or a product."""

    model_config = ConfigDict(
        extra="forbid",
        use_attribute_docstrings=True,
        json_schema_extra={"oneOf": [{"required": ["input", "weight"]}, {"required": ["a", "b"]}]},
    )

    name: Annotated[str, BeforeValidator(str)] = ""
    """Its name in the report."""
    input: _Shape = ()
    """The shape of a convolution's input, such as 1x3x224x224."""
    weight: _Shape = ()
    """The shape of its weight, such as 64x3x7x7."""
    stride: _Positive = (1,)
    """One number, or one for each spatial axis."""
    padding: _Natural = (0,)
    """One number, or one for each spatial axis."""
    dilation: _Positive = (1,)
    """One number, or one for each spatial axis."""
    output_padding: _Natural = (0,)
    """One number, or one for each spatial axis; of transposed convolutions."""
    groups: Int(1) = 1  # type: ignore[valid-type]
    """Into how many groups the channels fall."""
    transposed: Bool = False
    """Whether it is a transposed convolution."""
    layout: Annotated[str, ChoiceKind(LAYOUTS)] = LAYOUTS[0]
    """The memory format of images."""
    a: _Shape = ()
    """The shape of a product's first matrix; leading axes are batches."""
    b: _Shape = ()
    """The shape of its second matrix."""
    b_transposed: Bool = False
    """Whether it lies in memory as its transpose: a weight of Linear."""
    dtype: Annotated[str, ChoiceKind(DTYPES)] = DTYPES[0]
    """The dtype of its tensors."""
    count: Int(1) = 1  # type: ignore[valid-type]
    """How often it occurs."""

    @property
    def problem(self) -> ConvProblem | Product:
        if self.a:
            return Product(self.a, self.b, self.b_transposed, self.dtype)
        along = {key: getattr(self, key) * (len(self.input) - 2 if len(getattr(self, key)) == 1 else 1) for key in _ALONG}
        return ConvProblem(
            self.input,
            self.weight,
            **along,
            groups=self.groups,
            transposed=self.transposed,
            dtype=self.dtype,
            layout=self.layout,
        )

    @model_validator(mode="after")
    def _is_one_problem(self) -> Row:
        given = self.model_fields_set
        if ("input" in given) == ("a" in given):
            raise Misfit("", "is neither a convolution (input, weight) nor a product (a, b)")
        of_product = {"a", "b", "b_transposed"}
        own = of_product if self.a else Row.model_fields.keys() - of_product
        known = [key for key in Row.model_fields if key in own | {"name", "dtype", "count"}]
        for key in given - set(known):
            raise Misfit(key, "unknown key", ", ".join(known))
        for key in ("b",) if self.a else ("weight",):
            if key not in given:
                raise Misfit(key, "is missing")
        if self.a:
            a, b = self.a, self.b
            if min(len(a), len(b)) < 2 or a[-1] != b[-2] or (len(b) > 2 and a[:-2] != b[:-2]):
                raise Misfit("b", f"{text(a)} @ {text(b)} is not a product of matrices")
        else:
            self._check_convolution()
        return self

    def _check_convolution(self) -> None:
        x, w = self.input, self.weight
        if len(x) not in (3, 4, 5) or len(w) != len(x):
            raise Misfit("weight", "input and weight must have the same number of axes", "3, 4 or 5 of each")
        for key in _ALONG:
            if len(getattr(self, key)) not in (1, len(x) - 2):
                raise Misfit(key, f"{text(getattr(self, key))} does not fit", f"one number, or {len(x) - 2} of them")
        channels = w[0] if self.transposed else w[1] * self.groups
        if channels != x[1]:
            raise Misfit("input", f"has {x[1]} channels, the weight and its groups take {channels}")
        if w[0] % self.groups:
            raise Misfit("groups", f"{self.groups} does not divide the {w[0]} of the weight")
        if not self.transposed and any(self.output_padding):
            raise Misfit("output_padding", "is for transposed convolutions")
        output = output_of(self.problem)  # type: ignore[arg-type]
        if min(output[2:]) < 1:
            raise Misfit("input", f"is too small for the weight: the result would be {text(output)}")


class Section(BaseModel):
    """Layers of a network for msctx compare."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    name: Annotated[str, BeforeValidator(str)] = ""
    """The name of the workload."""
    source: Annotated[str, BeforeValidator(str)] = ""
    """Where the shapes come from."""
    layers: list[Any] = Field(min_length=1)
    """Convolutions (input, weight …) and products of matrices (a, b), each with how often it occurs."""


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
            raise FileError([Diagnostic("", "is not a workload", name, f"a YAML file; {', '.join(names)}", hint)])
        path = names[name]
    return parse(load(path, collect=True), path.stem)


@searching()
def parse(document: Document, name: str) -> Workload:
    problems = list(document.problems)
    data = document.data if isinstance(document.data, dict) else {}
    if not isinstance(data.get("workload"), dict):
        problems.append(Diagnostic("workload", "is missing: a file of a workload begins with it", document.file))
        raise OptionError(problems)
    problems += [
        Diagnostic(key, "unknown section", allowed="workload", mark=document.mark((key, "")))
        for key in data
        if key != "workload"
    ]
    section = checked(Section, data["workload"], problems, section="workload", marks=document.under("workload"))
    layers: list[NetworkLayer] = []
    rows = data["workload"].get("layers")
    for number, row in enumerate(rows if isinstance(rows, list) else ()):
        marks = document.under("workload", "layers", number)
        if (one := checked(Row, _as_written(row, marks), problems, marks=marks)) is None:
            continue
        layer = NetworkLayer(one.name or f"layer {number + 1}", one.problem, one.count)
        if any(layer.name == other.name for other in layers):
            problems.append(Diagnostic("name", f"another layer is named {layer.name!r}, too", mark=marks(())))
        layers.append(layer)
    if problems or section is None:
        raise OptionError(sorted(problems, key=lambda p: (p.mark.line, p.mark.column) if p.mark else (0, 0)))
    return Workload(section.name or name, tuple(layers), section.source)


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
        flow = yaml.safe_dump(_row_of(layer), default_flow_style=True, sort_keys=False, width=10**6).strip()
        lines.append(f"    - {flow}")
    return "\n".join(lines) + "\n"


def _row_of(layer: NetworkLayer) -> dict[str, Any]:
    row = {"name": layer.name, **beside_defaults(layer.problem)}
    return row | ({"count": layer.count} if layer.count != 1 else {})


def beside_defaults(problem: ConvProblem | Product) -> dict[str, Any]:
    """Key → value as a file has it, without those that have their default."""
    found: dict[str, Any] = {}
    for key, value in asdict(problem).items():
        default = Row.model_fields[key].default
        if key in _ALONG and len(set(value)) == 1:
            value = value[:1]
        if value != default:
            found[key] = value if not isinstance(value, tuple) else value[0] if len(value) == 1 else text(value)
    return found
