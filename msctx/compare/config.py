"""A comparison as its YAML file and the command line describe it, checked; all problems are reported at once."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msctx.compare import grid, workload
from msctx.compare.grid import DIRECTIONS, Axes, Point
from msctx.compare.workload import Workload
from msctx.errors import Diagnostic, FileError, Mark, MsctxError, OptionError, nearest, searching
from msctx.options import all_at, find, make_layer
from msctx.options.kinds import BadValue, IntKind, Kind, ShareKind, TextKind, show
from msctx.options.yamlfile import Document, load, parse
from msctx.run.config import COMPARED, Experiment, read_document
from msctx.run.sweep import is_same, values_of
from msctx.shipped import CONFIGS

PHASES = ("inference", "training")
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
                raise BadValue(
                    f"{show(word)} is not one of them", allowed=self.allowed, suggestion=nearest(str(word), self.words)
                )
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


KEYS: dict[str, Kind] = {
    "name": TextKind("a name for the report"),
    "workload": TextKind("the name of a shipped workload, or a YAML file"),
    "model": TextKind("package.module:function or path/to/file.py:function, which returns a torch.nn.Module and an input"),
    "experiment": TextKind("an experiment: its YAML file, or the name of a shipped one"),
    "directions": SomeOf(DIRECTIONS),
    "phases": SomeOf(PHASES),
    "batch": IntKind(1, 1 << 20),
    "seconds": SecondsKind(),
    "repetitions": IntKind(1, 1000),
    "error_limit": ShareKind(),
    "budget": ShareKind(),
}
"""What stands under ``compare:``."""


@dataclass(frozen=True)
class Comparison:
    """What to compare, with what.

    Attributes:
        base: the options that hold for all, as an experiment without an entry.
        points: the choices.
        seconds: of measuring for one row.
        repetitions: of whole runs, where the subject is an experiment, after one that is not counted.
        error_limit: the error beyond which a result is wrong where the algorithm states no bound; ``None``: 1e-3, and 0.02 for
            choices that lower the precision.
        budget: the error that a per-layer setting may have on the whole model.
        total: seconds after which no further row is begun.
    """

    name: str
    subject: str
    of: str
    base: Experiment
    axes: Axes
    points: tuple[Point, ...]
    directions: tuple[str, ...] = DIRECTIONS
    phases: tuple[str, ...] = PHASES
    batch: int = 1
    seconds: float = 1.0
    repetitions: int = 3
    error_limit: float | None = None
    budget: float | None = None
    total: float | None = None
    layers: Workload | None = None
    command: str = ""
    overrides: tuple[str, ...] = ()
    """The words of the command line, for an experiment."""
    file: Path | None = None
    place: Mark | None = None
    """Where in the file the subject is named."""


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


def find_file(name: str) -> Path | None:
    """The file of a comparison that a user names: a path, or the name of a shipped one; else ``None``."""
    path = Path(name)
    if path.suffix in (".yaml", ".yml") or (path.is_file() and path.suffix != ".py"):
        return path
    return {p.stem: p for p in sorted((CONFIGS / "compare").glob("*.yaml"))}.get(name)


@dataclass
class Given:
    """What the command line gives beside the subject."""

    overrides: Sequence[str] = ()
    axes: Sequence[str] = ()
    shapes: Sequence[str] = ()
    keys: Mapping[str, Any] = field(default_factory=dict)
    """Of :data:`KEYS`, those that were given."""
    quick: bool = False
    command: str = ""


@searching()
def read(subject: str, given: Given) -> Comparison:
    """The comparison of a file, of ``conv`` or ``matmul``, of a model (``package.module:function``) or of an experiment.

    Raises:
        FileError: a file is missing, unreadable or not YAML.
        OptionError: everything that is wrong with it and the command line.
    """
    problems: list[Diagnostic] = []
    path = find_file(subject) if subject not in ("conv", "matmul") else None
    document = load(path, collect=True) if path else parse("", "")
    run_words = [word for word in given.overrides if word.startswith(("args.", "experiment.", "record."))]
    data = document.data if isinstance(document.data, dict) else {}
    is_workload = data.keys() == {"workload"}
    try:
        base = read_document(document, path, given.overrides, others=("workload",) if is_workload else COMPARED)
    except OptionError as error:
        problems += error.problems
        base = Experiment({}, entry="" if "experiment" not in data else "?")  # what it names is the subject all the same
    keys = _keys(data.get("compare"), document, problems)
    for key, value in given.keys.items():
        if value is not None:
            _check(key, value, problems, where="command line", into=keys)
    if path is not None and is_workload:
        keys.setdefault("workload", path.name)
    elif path is not None and base.entry and not any(kind in keys for kind in SUBJECTS):
        keys["experiment"] = str(path)
    elif path is None and subject not in ("conv", "matmul"):
        if (kind := _kind_of(subject)) in keys:
            problems.append(
                Diagnostic(f"--{kind}", f"{subject} is a {kind}, too", "command line", suggestion="name one of them")
            )
        keys[kind] = subject
    axes, marks = _axes(data.get("axes"), document, problems), document.under("axes")
    named_in_words = _axes_of_words(given.axes, problems)
    axes |= named_in_words
    if subject == "conv" and given.shapes:
        problems.append(Diagnostic("--shape", "is of a product of matrices", "command line", suggestion="msctx compare matmul"))
    layers = _shapes(given.shapes if subject != "conv" else (), problems)
    named = [kind for kind in SUBJECTS if kind in keys]
    if subject in ("conv", "matmul") and not named and layers is None and not given.shapes:
        what = "--workload NAME" + (" or --shape MxKxN" if subject == "matmul" else "")
        problems.append(
            Diagnostic("", f"msctx compare {subject} needs a subject", "command line", f"{what}: {', '.join(workload.known())}")
        )
    elif len(named) + bool(given.shapes) != 1:
        said = [*named, *(["--shape"] if given.shapes else [])]
        what = "nothing is named" if not said else f"{' and '.join(said)} are named"
        place = str(path) if path else "command line"
        problems.append(Diagnostic("compare", f"{what} to be compared", place, f"one of {', '.join(SUBJECTS)}"))
    elif named == ["workload"]:
        layers = _workload(str(keys["workload"]), path, document, problems)
    if layers is not None and subject in ("conv", "matmul"):
        only = workload.Convolution if subject == "conv" else workload.Matmul
        layers = Workload(layers.name, tuple(layer for layer in layers.layers if isinstance(layer, only)), layers.source)
        if not layers.layers:
            what = "convolutions" if subject == "conv" else "products of matrices"
            problems.append(Diagnostic("", f"{layers.name} has no {what} to compare", "command line"))
    if not axes and not problems:
        axes = _default_axes(subject, named, tuple(keys.get("directions", DIRECTIONS)))
    kind = named[0] if named else "workload"
    if run_words and kind != "experiment":
        problems += [Diagnostic(word, f"says nothing of a {kind}", "command line") for word in run_words]
    for key in sorted(keys.keys() & {key for key, of in MEANT_FOR.items() if kind not in of}):
        article = "an" if kind[0] == "e" else "a"
        problems.append(_of_key(key, f"says nothing of {article} {kind}", given, document))
    if "budget" in keys and named != ["model"]:
        text = "a budget is for the error of a whole model: compare package.module:function"
        problems.append(_of_key("budget", text, given, document))
    if given.quick and given.keys.get("seconds") is not None:
        problems.append(
            Diagnostic("--seconds", "--quick says how long a row takes, too", "command line", suggestion="give one of them")
        )
    points = _points(axes, lambda place: None if place[0] in named_in_words else marks(place), problems)
    if problems:
        raise OptionError(sorted(problems, key=lambda p: (0, p.mark.line, p.mark.column) if p.mark else (1, 0, 0)))
    if layers is not None:
        layers = layers.with_batch(int(keys.get("batch", 1)))
    if kind == "experiment" and path and (path.parent / str(keys[kind])).is_file():
        keys[kind] = str(path.parent / str(keys[kind]))  # meant from the folder of the file that names it
    of = str(keys[kind]) if named else layers.name if layers else ""
    more: dict[str, Any] = {
        key: keys[key]
        for key in ("directions", "phases", "batch", "seconds", "repetitions", "error_limit", "budget")
        if key in keys
    }
    if given.quick:
        more |= {"seconds": min(QUICK_SECONDS, more.get("seconds", QUICK_SECONDS)), "total": QUICK_TOTAL, "repetitions": 1}
    name = str(keys.get("name", path.stem if path else layers.name if layers else of))
    more |= {"layers": layers, "command": given.command, "overrides": tuple(given.overrides), "file": path}
    more["place"] = document.mark(("compare", kind)) if path else None
    return Comparison(name, kind, of, base, axes, tuple(points), **more)


def _of_key(key: str, text: str, given: Given, document: Document) -> Diagnostic:
    """A problem of a key, where it was given."""
    if given.keys.get(key) is not None:
        return Diagnostic(f"--{key}", text, "command line")
    return Diagnostic(f"compare.{key}", text, mark=document.mark(("compare", key)))


def _kind_of(subject: str) -> str:
    if ":" in subject:
        return "model"
    if subject.endswith(".py"):
        hint = f"name the function that makes the model: {subject}:FUNCTION"
        raise FileError([Diagnostic("", "is a file of Python", subject, suggestion=hint)])
    if subject in workload.known():
        return "workload"
    names = {p.stem for p in (CONFIGS / "experiments").glob("*.yaml")}
    if subject in names:
        return "experiment"
    comparisons = {p.stem for p in (CONFIGS / "compare").glob("*.yaml")}
    allowed = (
        f"a YAML file; conv, matmul; package.module:function; {', '.join(sorted({*comparisons, *names, *workload.known()}))}"
    )
    hint = nearest(subject, {*comparisons, *names, *workload.known(), "conv", "matmul"})
    raise FileError([Diagnostic("", "is nothing that can be compared", subject, allowed, hint)])


# --- sections ---------------------------------------------------------------------------------------------------------


def _keys(section: Any, document: Document, problems: list[Diagnostic]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if section is None:
        return found
    if not isinstance(section, dict):
        problems.append(Diagnostic("compare", "is not a dictionary", mark=document.mark(("compare",))))
        return found
    for key, value in section.items():
        if key not in KEYS:
            mark = document.mark(("compare", key, ""))
            problems.append(Diagnostic(f"compare.{key}", "unknown key", "", ", ".join(KEYS), nearest(str(key), KEYS), mark))
        else:
            _check(key, value, problems, mark=document.mark(("compare", key)), into=found)
    return found


def _check(
    key: str, value: Any, problems: list[Diagnostic], *, where: str = "", mark: Mark | None = None, into: dict[str, Any]
) -> None:
    try:
        into[key] = KEYS[key].parse(value)
    except BadValue as bad:
        problems.append(Diagnostic(f"compare.{key}", bad.text, where, bad.allowed, str(bad.suggestion or ""), mark))


AXIS = "an option with a list of values, or a name with sets of options: {plain: {}, fast: {conv_fprop_algo: normal}}"


def _axes(section: Any, document: Document, problems: list[Diagnostic]) -> dict[str, Any]:
    if section is None:
        return {}
    if not isinstance(section, dict):
        problems.append(Diagnostic("axes", "is not a dictionary", document.file, AXIS, mark=document.mark(("axes",))))
        return {}
    found = {}
    for key, values in section.items():
        fine = (
            isinstance(values, list)
            if find(key)
            else isinstance(values, dict) and all(value is None or isinstance(value, dict) for value in values.values())
        )
        if fine and values:
            found[key] = values
        else:
            text = "is not a list of values" if find(key) else "is no option, and has no sets of options either"
            hint = "" if find(key) else nearest(key, _names())
            problems.append(Diagnostic(f"axes.{key}", text, "", AXIS, hint, document.mark(("axes", key, ""))))
    return found


def _names() -> list[str]:
    from msctx.options import OPTIONS

    return [spelling for option in OPTIONS.values() for spelling in option.spellings]


def _axes_of_words(words: Sequence[str], problems: list[Diagnostic]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for word in words:
        key, sign, text = word.partition("=")
        try:
            values = values_of(key, text) if sign and text and find(key) else []
        except FileError as error:
            problems += [Diagnostic("--axis", f"{key}={text}: {problem.text}", "command line") for problem in error.problems]
            continue
        if any(value is None for value in values):
            problems.append(Diagnostic("--axis", f"{key}={text} has an empty value", "command line"))
            continue
        if any(is_same(key, other) for other in found):
            problems.append(
                Diagnostic("--axis", f"{key} is named twice", "command line", suggestion="name all its values at once")
            )
        elif not values:
            hint = "" if not sign or find(key) else nearest(key, _names())
            what = "is no option" if sign and text and not find(key) else "is not KEY=VALUE,VALUE"
            what += ": arguments are for msctx run --sweep" if key.startswith("args.") else ""
            problems.append(Diagnostic("--axis", f"{word!r} {what}", "command line", "an option with its values", hint))
        found[key] = values
    return found


def _shapes(words: Sequence[str], problems: list[Diagnostic]) -> Workload | None:
    layers = []
    for word in words:
        sizes = word.lower().split("x")
        if len(sizes) != 3 or not all(size.isdecimal() and len(size) < 10 and int(size) for size in sizes):
            problems.append(
                Diagnostic("--shape", f"{word!r} is no shape of a product", "command line", "MxKxN, such as 1024x1024x1024")
            )
            continue
        m, k, n = map(int, sizes)
        layers.append(workload.Matmul(word, (m, k), (k, n)))
    return Workload("matmul", tuple(layers)) if layers else None


def _workload(name: str, path: Path | None, document: Document, problems: list[Diagnostic]) -> Workload | None:
    beside = path.parent / name if path else None
    try:
        return workload.read(str(beside) if beside is not None and beside.is_file() else name)
    except (OptionError, FileError) as error:
        mark = document.mark(("compare", "workload"))
        problems += [
            p if p.mark else Diagnostic("compare.workload", f"{p.where} {p.text}", "", p.allowed, p.suggestion, mark)
            for p in error.problems
        ]
        return None


PRECISIONS = {
    "TF32": {"matmul_allow_tf32": True},
    "bfloat16": {"precision_mode": "allow_mix_precision_bf16"},
    "float16": {"precision_mode": "allow_mix_precision_fp16"},
}
"""What products of matrices are compared in by default."""


def _default_axes(subject: str, named: list[str], directions: tuple[str, ...]) -> dict[str, Any]:
    """What is compared by default: all algorithms for layers, those that decide for themselves for whole models."""
    if subject == "matmul":
        return {"precision": PRECISIONS}
    every = grid.every_algorithm(directions)
    if named == ["workload"]:
        return {"algorithm": every}
    if named == ["experiment"]:
        return {"deterministic": ["OFF", "ON"]}
    return {"algorithm": {name: every[name] for name in ("normal", "performance")}}


def _points(axes: Axes, marks: Any, problems: list[Diagnostic]) -> list[Point]:
    """The grid; each value is checked by itself, so that a mistake is reported once and at its place."""
    before = len(problems)
    for key, values in axes.items():
        sets = values.values() if isinstance(values, Mapping) else [{key: value} for value in values]
        for number, options in enumerate(sets):
            mark = marks((key, list(values)[number] if isinstance(values, Mapping) else number))
            try:
                make_layer(options or {}, "axes" if mark else "command line", all_at(mark) if mark else None)
            except OptionError as error:
                problems += error.problems
    found = grid.points(axes) if len(problems) == before else []
    names = sorted(point.name for point in found)
    problems += [Diagnostic("axes", "a choice has no name", allowed=AXIS)] * ("" in names and bool(axes))
    twice = dict.fromkeys(a for a, b in itertools.pairwise(names) if a == b)
    problems += [Diagnostic("axes", f"two choices are named {name!r}", suggestion="name each value once") for name in twice]
    return found


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
    whole = [given | canonical(point.options) for point in comparison.points]
    found = []
    for (one, a), (other, b) in itertools.combinations(zip(comparison.points, whole, strict=True), 2):
        first, second = a.get(option), b.get(option)
        if first != second and {**a, option: None} == {**b, option: None}:
            found.append((one, other, first, second))
    return found


def canonical(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options by their own names, in their own words; one that is of a single device keeps its spelling. Contradictions: as given."""
    try:
        settings = make_layer(options, "axes").settings.values()
    except MsctxError:
        return dict(options)
    return {setting.spelling if setting.device else setting.option.name: setting.value for setting in settings}
