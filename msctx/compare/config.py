"""A comparison as its YAML file and the command line describe it, checked; all problems are reported at once."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msctx.compare import layer_workload_file
from msctx.compare.layer_workload_file import Workload
from msctx.errors import Diagnostic, FileError, Mark, Marks, OptionError, nearest
from msctx.native.policy_and_choices import ConvProblem
from msctx.options import OPTIONS, find, make_layer
from msctx.options.algorithm_policy import DIRECTIONS, PRODUCT, option_of
from msctx.options.kinds import Choice, Fields, Int, ListOf, Share, TextKind, check, nowhere, number_below
from msctx.options.layer_sources import collected
from msctx.options.yaml_json_ini import load, parse
from msctx.run import sweep
from msctx.run.experiment_and_entry import COMPARED, Experiment, read_document
from msctx.shipped import shipped

PHASES = ("inference", "training")
ALGORITHMS = (*map(option_of, DIRECTIONS), option_of(PRODUCT))
SUBJECTS = ("workload", "model", "experiment")
QUICK_SECONDS, QUICK_TOTAL = 0.15, 40.0
MEANT_FOR = {
    "directions": ("workload",),
    "phases": ("model",),
    "seconds": ("workload", "model"),
    "error_limit": ("workload", "model"),
    "repetitions": ("experiment",),
}
"""The kinds of subjects that some keys apply to."""
AXIS = "an option with a list of values, or a name with sets of options: {plain: {}, fast: {conv_fprop_algo: normal}}"


KEYS = Fields(
    {
        "workload": TextKind("the name of a shipped workload, or a YAML file"),
        "model": TextKind("package.module:function or path/to/file.py:function, which returns a torch.nn.Module and an input"),
        "directions": ListOf(Choice(DIRECTIONS)),
        "phases": ListOf(Choice(PHASES)),
        "seconds": number_below(86400, "seconds, more than 0"),
        "repetitions": Int(1, 1000),
        "error_limit": number_below(1, Share.allowed, null=True),
    }
)
"""What the section ``compare`` holds: seconds are to be spent on each row; repetitions are runs of each choice of an experiment,
after one that is not counted; beyond the error limit a result is wrong, where the algorithm states no bound."""
DEFAULTS: Mapping[str, Any] = {
    "directions": DIRECTIONS,
    "phases": PHASES,
    "seconds": 1.0,
    "repetitions": 3,
    "error_limit": None,
}


@dataclass(frozen=True)
class Point:
    """One choice: its name, and the options that it sets beside those of all."""

    name: str
    options: Mapping[str, Any]


@dataclass
class Given:
    """What the command line gives beside the subject."""

    overrides: Sequence[str] = ()
    axes: Sequence[str] = ()
    seconds: float | None = None
    quick: bool = False
    command: str = ""


@dataclass(frozen=True)
class Comparison:
    """What to compare, with what."""

    name: str
    subject: str
    of: str
    base: Experiment
    """The options that hold for all."""
    points: tuple[Point, ...]
    keys: Mapping[str, Any]
    """Those of :data:`DEFAULTS`."""
    given: Given
    total: float = math.inf
    """Seconds after which no further row is begun."""
    layers: Workload | None = None
    file: Path | None = None
    place: Mark | None = None
    """Where in the file the subject is named."""


def find_file(name: str) -> Path | None:
    """The file of a comparison that a user names: a path, or the name of a shipped one; else ``None``."""
    path = Path(name)
    if path.suffix in (".yaml", ".yml") or (path.is_file() and path.suffix != ".py"):
        return path
    return shipped("compare").get(name)


def read(subject: str, given: Given) -> Comparison:
    """The comparison of a file, or of a workload, a model (``package.module:function``) or an experiment."""
    return _Reading(subject, given).comparison()


class _Reading:
    """The description of one comparison, as far as it is read, and what is wrong with it."""

    def __init__(self, subject: str, given: Given) -> None:
        self.subject, self.given = subject, given
        self.problems: list[Diagnostic] = []
        self.path = find_file(subject)
        self.document = load(self.path, collect=True) if self.path else parse("", "")
        self.data = self.document.data if isinstance(self.document.data, dict) else {}
        self.typed = {} if given.seconds is None else {"seconds": given.seconds}

    def comparison(self) -> Comparison:
        base = self._base()
        section = self.data.get("compare")
        keys = self._keys({} if section is None else section, marks=self.document.under("compare"))
        keys |= self._keys(self.typed, where="command line")
        kind = self._subject(keys, base)
        layers = self._workload(str(keys["workload"])) if kind == "workload" else None
        axes, typed = self._axes(), self._axes_of_words()
        self._check_keys(keys, kind)
        if not axes and not typed and not self.problems:
            axes = _default_axes(kind, layers, keys.get("directions", DIRECTIONS))
        found = self._points(axes, typed)
        if self.problems:
            raise OptionError(sorted(self.problems, key=lambda p: (0, p.mark.line, p.mark.column) if p.mark else (1, 0, 0)))
        of = str(keys.pop(kind))
        if self.given.quick:
            keys |= {"seconds": min(QUICK_SECONDS, keys.get("seconds", QUICK_SECONDS)), "repetitions": 1}
        return Comparison(
            name=self.path.stem if self.path else of,
            subject=kind,
            of=of,
            base=base,
            points=tuple(found),
            keys={**DEFAULTS, **keys},
            total=QUICK_TOTAL if self.given.quick else math.inf,
            layers=layers,
            given=self.given,
            file=self.path,
            place=self.document.mark(("compare", kind)) if self.path else None,
        )

    def _add(self, name: str, text: str, path: tuple[Any, ...] | None = None, allowed: str = "", hint: str = "") -> None:
        """A problem at a path of the file, or of the command line."""
        where = "command line" if path is None else ""
        self.problems.append(Diagnostic(name, text, where, allowed, hint, None if path is None else self.document.mark(path)))

    def _base(self) -> Experiment:
        others = ("workload",) if self.data.keys() == {"workload"} else COMPARED
        with collected(self.problems):
            return read_document(self.document, self.path, self.given.overrides, others=others)
        return Experiment({}, entry="?" if "experiment" in self.data else "")  # it is the subject all the same

    def _keys(self, section: Any, where: str = "", marks: Marks = nowhere) -> dict[str, Any]:
        found, wrong = check(KEYS, section, ("compare",), where, marks)
        self.problems += wrong
        if found is not None:
            return dict(found)
        return {key: section[key] for key in SUBJECTS if isinstance(section, dict) and key in section}

    def _subject(self, keys: dict[str, Any], base: Experiment) -> str:
        """What is compared: named in the file, the file itself, or a word of the command line."""
        if self.path is None:
            keys[_kind_of(self.subject)] = self.subject
        elif self.data.keys() == {"workload"}:
            keys["workload"] = self.path.name
        elif base.entry and not keys.keys() & {*SUBJECTS}:
            keys["experiment"] = str(self.path)
        named = [kind for kind in SUBJECTS if kind in keys]
        if len(named) != 1:
            text = f"give one thing to compare, not {' and '.join(named)}" if named else "give something to compare"
            self._add("compare", text, ("compare",), "workload or model")
        return named[0] if len(named) == 1 else ""

    def _workload(self, name: str) -> Workload | None:
        beside = self.path.parent / name if self.path else None
        try:
            return layer_workload_file.read(str(beside) if beside is not None and beside.is_file() else name)
        except (OptionError, FileError) as error:
            mark = self.document.mark(("compare", "workload"))
            self.problems += [
                p if p.mark else Diagnostic("compare.workload", f"{p.where} {p.text}", "", p.allowed, p.suggestion, mark)
                for p in error.problems
            ]
            return None

    def _check_keys(self, keys: Mapping[str, Any], kind: str) -> None:
        """What does not apply to this kind of subject."""
        for word in self.given.overrides:
            if kind != "experiment" and word.startswith(("args.", "experiment.", "record.")):
                self._add(word, "applies only to an experiment")
        for key, kinds in sorted(MEANT_FOR.items()):
            if kind and key in keys and kind not in kinds:
                name, path = (f"--{key}", None) if key in self.typed else (f"compare.{key}", ("compare", key))
                self._add(name, f"applies only to a {' or a '.join(kinds)}", path)

    def _axes(self) -> dict[str, Any]:
        section, found = self.data.get("axes"), {}
        if section is not None and not isinstance(section, dict):
            self._add("axes", "is not a dictionary", ("axes",), AXIS)
        for key, values in section.items() if isinstance(section, dict) else ():
            is_set = isinstance(values, dict) and all(one is None or isinstance(one, dict) for one in values.values())
            if values and (isinstance(values, list) if find(key) else is_set):
                found[key] = values
            else:
                spellings = [spelling for option in OPTIONS.values() for spelling in option.spellings]
                text = "is not a list of values" if find(key) else "is not an option, and has no sets of options either"
                self._add(f"axes.{key}", text, ("axes", key, ""), AXIS, "" if find(key) else nearest(key, spellings))
        return found

    def _axes_of_words(self) -> dict[str, list[Any]]:
        found: dict[str, list[Any]] = {}
        with collected(self.problems):
            found = sweep.read(self.given.axes, "--axis")
        for key in found:
            if not find(key):
                self._add("--axis", f"{key!r} is not an option: arguments are for msctx run --sweep")
        return found

    def _points(self, axes: Mapping[str, Any], typed: Mapping[str, Any]) -> list[Point]:
        """The grid; each value is checked by itself, so that a mistake is reported once and at its place."""
        before = len(self.problems)
        for key, values in {**axes, **typed}.items():
            sets = values if isinstance(values, Mapping) else {number: {key: one} for number, one in enumerate(values)}
            for place, options in sets.items():
                marks = None if key in typed else self.document.under("axes", key, place)
                with collected(self.problems):
                    make_layer(options or {}, "axes" if marks else "command line", marks)
        found = points({**axes, **typed}) if len(self.problems) == before else []
        for name, count in Counter(point.name for point in found).items():
            if not name and axes:
                self._add("axes", "a choice has no name", ("axes",), AXIS)
            elif count > 1:
                self._add("axes", f"two choices are named {name!r}", ("axes",), hint="name each value once")
        return found


def _default_axes(kind: str, layers: Workload | None, directions: Sequence[str]) -> dict[str, Any]:
    """All algorithms for layers, those that decide for themselves for whole models."""
    if kind == "experiment":
        return {"deterministic": ["OFF", "ON"]}
    if kind == "model":
        every = every_algorithm(DIRECTIONS, products=True)
        return {"algorithm": {name: every[name] for name in ("normal", "performance")}}
    is_convolved = layers is not None and any(isinstance(layer.problem, ConvProblem) for layer in layers.layers)
    return {"algorithm": every_algorithm(directions if is_convolved else (), products=not is_convolved)}


def _kind_of(subject: str) -> str:
    if ":" in subject:
        return "model"
    if subject.endswith(".py"):
        hint = f"name the function that makes the model: {subject}:FUNCTION"
        raise FileError([Diagnostic("", "is a file of Python", subject, suggestion=hint)])
    for kind, folder in (("workload", "workloads"), ("experiment", "experiments")):
        if subject in shipped(folder):
            return kind
    names = sorted(name for folder in ("compare", "experiments", "workloads") for name in shipped(folder))
    allowed = f"a YAML file; package.module:function; {', '.join(names)}"
    text = f"cannot compare {subject!r}: no such file, model, workload or experiment"
    raise FileError([Diagnostic("", text, "", allowed, nearest(subject, names))])


def points(axes: Mapping[str, Any]) -> list[Point]:
    """The product of all axes, the last running fastest: options with their values, and names with named sets of options."""
    found = []
    for picked in itertools.product(*(_choices(key, values) for key, values in axes.items())):
        options: dict[str, Any] = {}
        for _, more in picked:
            options.update(more)
        found.append(Point(", ".join(name for name, _ in picked), options))
    return found


def _choices(key: str, values: Any) -> list[tuple[str, Mapping[str, Any]]]:
    if isinstance(values, Mapping):
        return [(str(name), options or {}) for name, options in values.items()]
    return [(f"{key}={str(value).lower() if isinstance(value, bool) else value}", {key: value}) for value in values]


def relevant(options: Mapping[str, Any], direction: str) -> dict[str, Any]:
    """Those that apply to one direction of a convolution, or to a product: algorithms of the others do not."""
    if direction in PHASES:
        return dict(options)
    own = option_of(PRODUCT if direction == "forward" else direction)
    rules = "conv_algo_rules" if direction == "forward" else "matmul_algo_rules"
    others = {*ALGORITHMS, rules} - {own}
    return {key: value for key, value in options.items() if name_of(key) not in others}


def requested_algorithm(options: Mapping[str, Any], direction: str) -> str:
    """The algorithm that options name for a direction, in MindSpore's own word; ``""`` where they name none."""
    for key, value in options.items():
        if name_of(key) == option_of(direction) and (kind := OPTIONS[name_of(key)].kind):
            return str(kind.parse(value))
    return ""


def besides(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that name no algorithm."""
    return {key: value for key, value in options.items() if name_of(key) not in ALGORITHMS}


def name_of(key: str) -> str:
    """The name of the option that a spelling is of; what is none of ours stays as it is."""
    option = find(key)
    return key if option is None else option.name


def every_algorithm(directions: Sequence[str], *, products: bool) -> dict[str, dict[str, str]]:
    """An axis with each algorithm, for all directions that have it; without the one that checks the others."""
    found: dict[str, dict[str, str]] = {}
    for direction in (*directions, *[PRODUCT] * products):
        for name in getattr(OPTIONS[option_of(direction)].kind, "choices", ()):
            found.setdefault(name, {})[option_of(direction)] = name
    found.pop("reference", None)
    return found
