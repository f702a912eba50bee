"""A comparison as its YAML file and the command line describe it, checked; all problems are reported at once."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict

from msctx.compare import grid, workload
from msctx.compare.grid import DIRECTIONS, PHASES, Point
from msctx.compare.workload import NetworkLayer, Product, Workload
from msctx.errors import Diagnostic, FileError, Mark, Marks, MsctxError, OptionError, nearest, searching
from msctx.native.choices import ConvProblem
from msctx.options import OPTIONS, all_at, find, make_layer
from msctx.options.kinds import BadValue, IntKind, Kind, ShareKind, TextKind, show
from msctx.options.validation import checked
from msctx.options.yamlfile import AmbiguousNumber, load, parse
from msctx.run.config import COMPARED, Experiment, read_document
from msctx.run.sweep import is_same, values_of
from msctx.shipped import CONFIGS

SUBJECTS = ("workload", "model", "experiment")


@dataclass(frozen=True)
class SomeOf(Kind):
    """A list of some of a few words, or one of them."""

    words: tuple[str, ...]

    @property
    def allowed(self) -> str:
        return f"a list of some of {', '.join(self.words)}"

    def parse(self, value: Any) -> tuple[str, ...]:
        found = [value] if isinstance(value, str) else value
        if not isinstance(found, list) or not found:
            raise BadValue(f"{show(value)} is not a list of words", allowed=self.allowed)
        for word in found:
            if word not in self.words:
                hint = nearest(str(word), self.words)
                raise BadValue(f"{show(word)} is not one of them", allowed=self.allowed, suggestion=hint)
        return tuple(word for word in self.words if word in found)

    def schema(self) -> dict[str, Any]:
        word = {"enum": list(self.words)}
        return {"anyOf": [word, {"type": "array", "items": word, "minItems": 1}]}


@dataclass(frozen=True)
class SecondsKind(Kind):
    allowed: str = "seconds, more than 0"

    def parse(self, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 86400:
            raise BadValue(f"{show(value)} is not a number of seconds", allowed=self.allowed)
        return float(value)

    def schema(self) -> dict[str, Any]:
        return {"type": "number", "exclusiveMinimum": 0}


class Keys(BaseModel):
    """What msctx compare measures; the options of context hold for all choices."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    name: Annotated[str, TextKind("a name for the report")] = ""
    """The name of the report. Unset, it is the name of the file."""
    workload: Annotated[str, TextKind("the name of a shipped workload, or a YAML file")] = ""
    """Layers with their shapes: a shipped workload, or a YAML file of your own."""
    model: Annotated[
        str, TextKind("package.module:function or path/to/file.py:function, which returns a torch.nn.Module and an input")
    ] = ""
    """A function that returns a torch.nn.Module and an input for it."""
    experiment: Annotated[str, TextKind("an experiment: its YAML file, or the name of a shipped one")] = ""
    """A whole experiment: each choice is a run of its own."""
    directions: Annotated[tuple[str, ...], SomeOf(DIRECTIONS)] = DIRECTIONS
    """Which directions of convolutions; unset, all three."""
    phases: Annotated[tuple[str, ...], SomeOf(PHASES)] = PHASES
    """Which phases of a model; unset, both."""
    batch: Annotated[int, IntKind(1, 1 << 20)] = 1
    """How many times a workload's images or rows."""
    seconds: Annotated[float, SecondsKind()] = 1.0
    """To be spent on each row, default 1."""
    repetitions: Annotated[int, IntKind(1, 1000)] = 3
    """Of whole runs, where an experiment is compared, default 3, after one that is not counted."""
    error_limit: Annotated[float | None, ShareKind()] = None
    """The error beyond which a result is wrong and has no time, where the algorithm states no bound. Unset, it is 1e-3, and 0.02 for
    choices that lower the precision."""


@dataclass(frozen=True)
class Comparison:
    """What to compare, with what.

    Attributes:
        base: the options that hold for all, as an experiment without an entry.
        points: the choices.
        total: seconds after which no further row is begun.
        overrides: the words of the command line, for an experiment.
        place: where in the file the subject is named.
    """

    name: str
    subject: str
    of: str
    base: Experiment
    points: tuple[Point, ...]
    keys: Keys
    total: float | None = None
    layers: Workload | None = None
    command: str = ""
    overrides: tuple[str, ...] = ()
    file: Path | None = None
    place: Mark | None = None


QUICK_SECONDS, QUICK_TOTAL = 0.15, 40.0
MEANT_FOR = {
    "directions": ("workload",),
    "batch": ("workload",),
    "phases": ("model",),
    "seconds": ("workload", "model"),
    "error_limit": ("workload", "model"),
    "repetitions": ("experiment",),
}
"""The kinds of subjects that some keys apply to."""
AXIS = "an option with a list of values, or a name with sets of options: {plain: {}, fast: {conv_fprop_algo: normal}}"
PRECISIONS = {
    "TF32": {"matmul_allow_tf32": True},
    "bfloat16": {"precision_mode": "allow_mix_precision_bf16"},
    "float16": {"precision_mode": "allow_mix_precision_fp16"},
}
"""What products of matrices are compared in by default."""
ONE_KIND = {"conv": (ConvProblem, "convolutions"), "matmul": (Product, "products of matrices")}
"""Subjects that take the layers of one kind from a workload."""


def find_file(name: str) -> Path | None:
    """The file of a comparison that a user names: a path, or the name of a shipped one; else ``None``."""
    path = Path(name)
    if path.suffix in (".yaml", ".yml") or (path.is_file() and path.suffix != ".py"):
        return path
    return _shipped("compare").get(name)


def _shipped(folder: str) -> dict[str, Path]:
    return {path.stem: path for path in sorted((CONFIGS / folder).glob("*.yaml"))}


@dataclass
class Given:
    """What the command line gives beside the subject."""

    overrides: Sequence[str] = ()
    axes: Sequence[str] = ()
    shapes: Sequence[str] = ()
    keys: Mapping[str, Any] = field(default_factory=dict)
    """Of :class:`Keys`; ``None`` is not given."""
    quick: bool = False
    command: str = ""


@searching()
def read(subject: str, given: Given) -> Comparison:
    """The comparison of a file, of ``conv`` or ``matmul``, of a model (``package.module:function``) or of an experiment.

    Raises:
        FileError: a file is missing, unreadable or not YAML.
        OptionError: everything that is wrong with it and the command line.
    """
    return _Reading(subject, given).comparison()


class _Reading:
    """The description of one comparison, as far as it is read, and what is wrong with it."""

    def __init__(self, subject: str, given: Given) -> None:
        self.subject, self.given = subject, given
        self.problems: list[Diagnostic] = []
        self.path = None if subject in ONE_KIND else find_file(subject)
        self.document = load(self.path, collect=True) if self.path else parse("", "")
        self.data = self.document.data if isinstance(self.document.data, dict) else {}
        self.typed = {key: value for key, value in given.keys.items() if value is not None}

    def comparison(self) -> Comparison:
        base = self._base()
        section = self.data.get("compare")
        keys = self._keys({} if section is None else section, marks=self.document.under("compare"))
        keys |= self._keys(self.typed, where="command line")
        self._name_subject(keys, base)
        axes, points = self._axes(), self._axes_of_words()
        layers = self._layers(keys)
        named = [kind for kind in SUBJECTS if kind in keys]
        kind = named[0] if named else "workload"
        self._check_keys(keys, kind)
        if not axes and not points and not self.problems:
            axes = self._default_axes(named, tuple(keys.get("directions", DIRECTIONS)))
        found = self._points(axes, points)
        if self.problems:
            raise OptionError(sorted(self.problems, key=lambda p: (0, p.mark.line, p.mark.column) if p.mark else (1, 0, 0)))
        of = str(keys[kind]) if named else layers.name if layers else ""
        if kind == "experiment" and self.path and (self.path.parent / of).is_file():
            of = str(self.path.parent / of)  # meant from the folder of the file that names it
        more = {}
        if self.given.quick:
            more = {"seconds": min(QUICK_SECONDS, keys.get("seconds", QUICK_SECONDS)), "repetitions": 1}
        return Comparison(
            name=str(keys.get("name", self.path.stem if self.path else layers.name if layers else of)),
            subject=kind,
            of=of,
            base=base,
            points=tuple(found),
            keys=Keys.model_construct(**keys | more),
            total=QUICK_TOTAL if self.given.quick else None,
            layers=layers.with_batch(int(keys.get("batch", 1))) if layers else None,
            command=self.given.command,
            overrides=tuple(self.given.overrides),
            file=self.path,
            place=self.document.mark(("compare", kind)) if self.path else None,
        )

    def _word(self, word: str, text: str, allowed: str = "", hint: str = "") -> None:
        self.problems.append(Diagnostic(word, text, "command line", allowed, hint))

    def _key(self, key: str, text: str) -> None:
        """Something is wrong with a key, wherever it was given."""
        if key in self.typed:
            self._word(f"--{key}", text)
        else:
            self.problems.append(Diagnostic(f"compare.{key}", text, mark=self.document.mark(("compare", key))))

    def _base(self) -> Experiment:
        others = ("workload",) if self.data.keys() == {"workload"} else COMPARED
        try:
            return read_document(self.document, self.path, self.given.overrides, others=others)
        except OptionError as error:
            self.problems += error.problems
            return Experiment(
                {}, entry="" if "experiment" not in self.data else "?"
            )  # what it names is the subject all the same

    def _keys(self, section: Any, where: str = "", marks: Marks = lambda path: None) -> dict[str, Any]:
        found = checked(Keys, section, self.problems, section="compare", where=where, marks=marks)
        if found is not None:
            return found.model_dump(exclude_unset=True)
        each = section.items() if isinstance(section, dict) else ()
        right = [(key, checked(Keys, {key: value}, [])) for key, value in each if key in Keys.model_fields]
        return {key: getattr(one, key) for key, one in right if one is not None}

    def _name_subject(self, keys: dict[str, Any], base: Experiment) -> None:
        """Put down what is compared where that is the file itself or a word of the command line."""
        if self.path is not None and self.data.keys() == {"workload"}:
            keys.setdefault("workload", self.path.name)
        elif self.path is not None and base.entry and not keys.keys() & {*SUBJECTS}:
            keys["experiment"] = str(self.path)
        elif self.path is None and self.subject not in ONE_KIND:
            if (kind := _kind_of(self.subject)) in keys:
                self._word(f"--{kind}", f"{self.subject} is a {kind}, too", hint="name one of them")
            keys[kind] = self.subject

    def _layers(self, keys: Mapping[str, Any]) -> Workload | None:
        """The layers to compare, of a workload or of shapes on the command line; ``None`` for other subjects."""
        shapes = self.given.shapes
        if self.subject == "conv" and shapes:
            self._word("--shape", "is of a product of matrices", hint="msctx compare matmul")
        layers = self._shapes() if self.subject != "conv" else None
        named = [kind for kind in SUBJECTS if kind in keys] + ["--shape"] * bool(shapes)
        if self.subject in ONE_KIND and not named:
            what = "--workload NAME" + " or --shape MxKxN" * (self.subject == "matmul")
            self._word("", f"compare {self.subject}: give {what}", f"NAME is a YAML file; {', '.join(workload.known())}")
        elif len(named) != 1:
            text = f"give one thing to compare, not {' and '.join(named)}" if named else "give something to compare"
            place = str(self.path) if self.path else "command line"
            self.problems.append(Diagnostic("compare", text, place, f"one of {', '.join(SUBJECTS)}"))
        elif named == ["workload"]:
            layers = self._workload(str(keys["workload"]))
        if layers is not None and self.subject in ONE_KIND:
            only, plural = ONE_KIND[self.subject]
            layers = replace(layers, layers=tuple(layer for layer in layers.layers if isinstance(layer.problem, only)))
            if not layers.layers:
                self._word("", f"{layers.name} has no {plural} to compare")
        return layers

    def _shapes(self) -> Workload | None:
        layers = []
        for word in self.given.shapes:
            if not re.fullmatch(r"0*[1-9]\d{,8}x0*[1-9]\d{,8}x0*[1-9]\d{,8}", word.lower()):
                self._word("--shape", f"{word!r} is not the shape of a product", "MxKxN, such as 1024x1024x1024")
                continue
            m, k, n = map(int, word.lower().split("x"))
            layers.append(NetworkLayer(word, Product((m, k), (k, n))))
        return Workload("matmul", tuple(layers)) if layers else None

    def _workload(self, name: str) -> Workload | None:
        beside = self.path.parent / name if self.path else None
        try:
            return workload.read(str(beside) if beside is not None and beside.is_file() else name)
        except (OptionError, FileError) as error:
            mark = self.document.mark(("compare", "workload"))
            self.problems += [
                p if p.mark else Diagnostic("compare.workload", f"{p.where} {p.text}", "", p.allowed, p.suggestion, mark)
                for p in error.problems
            ]
            return None

    def _check_keys(self, keys: Mapping[str, Any], kind: str) -> None:
        """What does not apply to this kind of subject."""
        article = "an" if kind[0] == "e" else "a"
        for word in self.given.overrides:
            if kind != "experiment" and word.startswith(("args.", "experiment.", "record.")):
                self._word(word, f"does not apply to a {kind}")
        for key, kinds in sorted(MEANT_FOR.items()):
            if key in keys and kind not in kinds:
                self._key(key, f"does not apply to {article} {kind}")
        if self.given.quick and "seconds" in self.typed:
            self._word("--seconds", "--quick sets how long a row takes, too", hint="give one of them")

    def _axes(self) -> dict[str, Any]:
        section = self.data.get("axes")
        if section is not None and not isinstance(section, dict):
            mark = self.document.mark(("axes",))
            self.problems.append(Diagnostic("axes", "is not a dictionary", self.document.file, AXIS, mark=mark))
        found = {}
        for key, values in section.items() if isinstance(section, dict) else ():
            is_set = isinstance(values, dict) and all(one is None or isinstance(one, dict) for one in values.values())
            if values and (isinstance(values, list) if find(key) else is_set):
                found[key] = values
            else:
                text = "is not a list of values" if find(key) else "is not an option, and has no sets of options either"
                hint = "" if find(key) else nearest(key, _spellings())
                self.problems.append(Diagnostic(f"axes.{key}", text, "", AXIS, hint, self.document.mark(("axes", key, ""))))
        return found

    def _axes_of_words(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        allowed = "an option with its values, such as conv_fprop_algo=gemm,winograd"
        for word in self.given.axes:
            key, _, text = word.partition("=")
            if text and not find(key):
                more = ": arguments are for msctx run --sweep" if key.startswith("args.") else ""
                self._word("--axis", f"{key!r} is not an option{more}", allowed, nearest(key, _spellings()))
                continue
            try:
                values = values_of(key, text) if text else []
            except (OptionError, FileError) as error:
                for problem in error.problems:
                    self._word("--axis", f"{key}={text}: {problem.text}")
                continue
            except AmbiguousNumber as error:
                self._word("--axis", f"{key}: {error}")
                continue
            if not values:
                self._word("--axis", f"{word!r} is not KEY=VALUE,VALUE", allowed)
            elif any(value is None for value in values):
                self._word("--axis", f"{key}={text} has an empty value")
            elif any(is_same(key, other) for other in found):
                self._word("--axis", f"{key} is named twice", hint="name all its values at once")
            else:
                found[key] = values
        return found

    def _default_axes(self, named: list[str], directions: tuple[str, ...]) -> dict[str, Any]:
        """All algorithms for layers, those that decide for themselves for whole models."""
        if self.subject == "matmul":
            return {"algorithm": grid.every_product() | PRECISIONS}
        every = grid.every_algorithm(directions)
        if named == ["workload"]:
            return {"algorithm": every}
        if named == ["experiment"]:
            return {"deterministic": ["OFF", "ON"]}
        return {"algorithm": {name: every[name] | {"matmul_algo": name} for name in ("normal", "performance")}}

    def _points(self, axes: Mapping[str, Any], typed: Mapping[str, Any]) -> list[Point]:
        """The grid; each value is checked by itself, so that a mistake is reported once and at its place."""
        before, marks = len(self.problems), self.document.under("axes")
        for key, values in {**axes, **typed}.items():
            sets = values if isinstance(values, Mapping) else {number: {key: one} for number, one in enumerate(values)}
            for place, options in sets.items():
                mark = None if key in typed else marks((key, place))
                try:
                    make_layer(options or {}, "axes" if mark else "command line", all_at(mark) if mark else None)
                except OptionError as error:
                    self.problems += error.problems
        found = grid.points({**axes, **typed}) if len(self.problems) == before else []
        for name, count in Counter(point.name for point in found).items():
            if not name and axes:
                self.problems.append(Diagnostic("axes", "a choice has no name", allowed=AXIS))
            elif count > 1:
                text = f"two choices are named {name!r}"
                self.problems.append(Diagnostic("axes", text, suggestion="name each value once"))
        return found


def _kind_of(subject: str) -> str:
    if ":" in subject:
        return "model"
    if subject.endswith(".py"):
        hint = f"name the function that makes the model: {subject}:FUNCTION"
        raise FileError([Diagnostic("", "is a file of Python", subject, suggestion=hint)])
    if subject in workload.known():
        return "workload"
    if subject in _shipped("experiments"):
        return "experiment"
    names = sorted({*_shipped("compare"), *_shipped("experiments"), *workload.known()})
    allowed = f"a YAML file; conv, matmul; package.module:function; {', '.join(names)}"
    hint = nearest(subject, [*names, *ONE_KIND])
    raise FileError(
        [Diagnostic("", f"cannot compare {subject!r}: no such file, model, workload or experiment", "", allowed, hint)]
    )


def _spellings() -> list[str]:
    return [spelling for option in OPTIONS.values() for spelling in option.spellings]


def combined(points: Sequence[Point]) -> dict[str, str]:
    """Point → why its options cannot stand together."""
    found = {}
    for point in points:
        try:
            make_layer(point.options, "axes")
        except MsctxError as error:
            found[point.name] = str(error).partition("\n")[0]
    return found


def pairs(comparison: Comparison, option: str) -> list[tuple[Point, Point, Any, Any]]:
    """The pairs of points that differ in what holds of one option alone, whatever it is spelled, and what that is."""
    given = {name: setting.value for name in comparison.base.settings if (setting := comparison.base.settings.get(name))}
    whole = [(point, given | canonical(point.options)) for point in comparison.points]
    return [
        (one, other, a.get(option), b.get(option))
        for (one, a), (other, b) in itertools.combinations(whole, 2)
        if a.get(option) != b.get(option) and {**a, option: None} == {**b, option: None}
    ]


def canonical(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options by their own names, in their own words; one that is of a single device keeps its spelling. Contradictions: as given."""
    try:
        settings = make_layer(options, "axes").settings.values()
    except MsctxError:
        return dict(options)
    return {setting.spelling if setting.device else setting.option.name: setting.value for setting in settings}
