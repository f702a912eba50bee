"""An experiment as its YAML file and the command line describe it, checked; and its entry, a function or a script."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import re
import runpy
import sys
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msctx import devices
from msctx.errors import Diagnostic, EntryError, FileError, Mark, OptionError, did_you_mean, nearest
from msctx.options import Layer, Settings, find, make_layer
from msctx.options.kinds import INVALID, BadValue, DictOf, Fields, Kind, TextKind, check, nowhere, where
from msctx.options.layer_sources import collected, environment_layers, flatten, preset_layer, presets, wrong_section
from msctx.options.registry import from_text
from msctx.options.values_with_places import Document
from msctx.options.yaml_json_ini import load, parse
from msctx.plan import Plan, make
from msctx.shipped import CONFIGS, shipped
from msctx.themes import Facts

_NAME = Kind(
    "letters, digits, dots, dashes and underscores: it names the folder of the run",
    where(lambda value: isinstance(value, str) and bool(re.fullmatch(r"[\w.-]+", value) and value.strip("."))),
    {"pattern": r"\S", "type": "string"},
)
WORDS = "--"
"""Among the arguments of a script: the key of those without a name, which follow these."""
_ARGUMENTS = Kind(  # the values are the entry's own matter
    "a dictionary of named arguments: {name: value}; for a script also {--: [word, …]}",
    where(lambda v: isinstance(v, dict) and all(str(k).isidentifier() or (k == WORDS and isinstance(v[k], list)) for k in v)),
    {"type": "object"},
)
ENTRY = "package.module:function, path/to/file.py:function, or the path of a script"
_EXPERIMENT = {
    "name": _NAME,
    "entry": TextKind(ENTRY),
    "args": _ARGUMENTS,
}
_RECORD = {"dir": TextKind("the folder in which run directories are made")}
SECTIONS = {"experiment": Fields(_EXPERIMENT), "record": Fields(_RECORD)}
"""What a file may hold beside ``context:``."""

COMPARED = ("compare", "axes")
"""Sections of ``msctx compare``, which a run leaves alone."""


@dataclass(frozen=True)
class Experiment:
    """What to run, and under which options."""

    levels: Mapping[str, Layer]
    """The layers of options by level (preset, yaml, command line)."""
    file: Path | None = None
    name: str = "experiment"
    entry: str | None = None
    args: Mapping[str, Any] = field(default_factory=dict)
    record_dir: str = "runs"
    entry_mark: Mark | None = None

    @property
    def settings(self) -> Settings:
        """All of them as one layer."""
        return Settings([flatten(self.levels)])


def prepare_environment(experiment: Experiment) -> Plan:
    """Set what libraries read once, before torch is imported; what the user has set himself stays. Returns the likely plan."""
    plan = make(experiment.settings, Facts(devices=devices.likely()))
    for switch, value in plan.assignments.items():
        if switch.startswith("env.") and value is not None:
            os.environ.setdefault(switch.removeprefix("env."), value)
    return plan


def find_file(name: str) -> Path:
    """The YAML file a user names: a path, or the name of a shipped experiment."""
    path = Path(name)
    if os.path.exists(path) or path.suffix in (".yaml", ".yml"):
        return path
    known = shipped("experiments")
    if name in known:
        return known[name]
    hint = nearest(name, [*known, *presets()]) or (
        f"{name}.yaml" if Path(f"{name}.yaml").exists() else f"{name}=VALUE" if find(name) else ""
    )
    text = "no such file, and no shipped experiment of that name" + "; options follow the file" * ("=" in name)
    raise FileError([Diagnostic("", text, name, allowed=f"a YAML file; {', '.join(known)}", suggestion=hint)])


def is_file(word: str) -> bool:
    """Whether a word of the command line names a file rather than a ``key=value`` or a preset."""
    return os.path.exists(word) or ("=" not in word and word not in presets())


def file_of(words: Sequence[str], command: str) -> tuple[str | None, list[str]]:
    """The one file that words of a command line may name, and the other words."""
    files = [word for word in words if is_file(word)]
    if len(files) > 1:
        raise OptionError([Diagnostic(files[1], f"a second file; {command} takes one", "command line")])
    return next(iter(files), None), [word for word in words if word not in files]


def subject_of(subject: str) -> tuple[str | None, list[str]]:
    """The file of a subject, or the words that name it as the entry: ``package.module:function``, or a file of Python."""
    is_entry = ":" in subject or subject.endswith(".py")
    return (None, [f"experiment.entry={subject}"]) if is_entry else (subject, [])


def read(file: str | None, overrides: Sequence[str] = (), *, need_entry: bool = False) -> Experiment:
    """Read a file (or none), the ``key=value`` words of a command line, and MSCTX_*.

    Bare and dotted keys are context options, ``args.x=…`` arguments of the entry, ``experiment.…`` and ``record.…`` the rest.

    Raises:
        FileError: the file is missing, unreadable or not YAML.
        OptionError: everything that is wrong with it and the command line.
    """
    path = find_file(file) if file else None
    document = load(path, collect=True) if path else parse("", "")
    return read_document(document, path, overrides, need_entry=need_entry, others=COMPARED)


def read_document(
    document: Document,
    path: Path | None,
    overrides: Sequence[str] = (),
    *,
    need_entry: bool = False,
    others: Collection[str] = (),
) -> Experiment:
    """:func:`read` for a file that was read already; the sections named in *others* belong to another command."""
    problems: list[Diagnostic] = list(document.problems)
    file = _Source(str(path), problems, document)
    file.sections(document.data, others)
    words = _Source("command line", problems)
    words.words(overrides)
    levels = _levels(file, words)
    experiment = _merged(file.found["experiment"], words.found["experiment"])
    record = file.found["record"] | words.found["record"]
    if need_entry and "entry" not in experiment and not problems:
        where = str(path) if path else "command line"
        problems.append(Diagnostic("experiment.entry", "is missing", where, ENTRY))
    environment: dict[str, Layer] = {}
    with collected(problems):
        environment = environment_layers(os.environ)
    if problems:
        raise OptionError(sorted(problems, key=lambda p: (0, p.mark.line, p.mark.column) if p.mark else (1, 0, 0)))
    if "preset" in words.found["context"]:  # wins over that of the environment
        environment.pop("preset", None)
    return Experiment(
        levels=levels | environment,
        file=path,
        name=experiment.get("name", path.stem if path else "experiment"),
        entry=experiment.get("entry"),
        args=experiment.get("args", {}),
        record_dir=record.get("dir", "runs"),
        entry_mark=document.mark(("experiment", "entry")) if "entry" not in words.found["experiment"] else None,
    )


class _Source:
    """One place in which an experiment is described: its file, or the command line. What is wrong goes to *problems*."""

    def __init__(self, where: str, problems: list[Diagnostic], document: Document | None = None) -> None:
        self.where, self.problems, self.document = where, problems, document
        self.marks = document.under("context") if document else None
        self.found: dict[str, Any] = {"context": {}, **{name: {} for name in SECTIONS}}

    def mark(self, *path: str) -> Mark | None:
        return self.document.mark(path) if self.document else None

    def report(self, path: str, text: str, *, allowed: str = "", hint: str = "", mark: Mark | None = None) -> None:
        self.problems.append(Diagnostic(path, text, self.where, allowed, hint, mark))

    def sections(self, data: Any, others: Collection[str]) -> None:
        """Take over the sections of a file; those named in *others* are skipped."""
        if not isinstance(data, dict):
            if data is not None and data is not INVALID:
                self.report("", "is not a dictionary", allowed=", ".join(f"{name}:" for name in self.found))
            return
        for key, value in data.items():
            if key in self.found and value is not None and value is not INVALID:
                self.found[key] = value
            elif key not in (*self.found, *others):
                self.problems.append(wrong_section(key, (*self.found, *others), self.where, self.mark(key, "")))
        self._check()

    def words(self, words: Sequence[str]) -> None:
        """Take over ``key=value`` words."""
        given: set[str] = set()
        for word in words:
            key, equals, text = ("preset=" * (word in presets()) + word).partition("=")
            if not equals or not key:
                is_script = str(self.found["experiment"].get("entry")).endswith(".py")
                self.report(word, "is not key=value", hint="arguments of a script follow --" * is_script)
                continue
            if key in given:
                self.report(key, "is given twice")
                continue
            given.add(key)
            try:
                value = _value(key, text)
            except BadValue as error:
                self.report(key, str(error))
                continue
            section, *path = ["experiment"] * key.startswith("args.") + key.split(".")
            if section not in SECTIONS:
                self.found["context"][key] = value
                continue
            for part in reversed(path or [""]):
                value = {part: value}
            self.found[section] = _merged(self.found[section], value)
        self._check()

    def _check(self) -> None:
        for section, kind in {"context": DictOf(), **SECTIONS}.items():
            marks = self.document.under(section) if self.document else nowhere
            found, wrong = check(kind, self.found[section], (section,), self.where, marks)
            self.found[section] = found or {}
            self.problems += wrong

    def layer(self) -> Layer:
        """The options as one layer."""
        values = {key: value for key, value in self.found["context"].items() if key != "preset"}
        with collected(self.problems):
            return make_layer(values, self.where, self.marks)
        return Layer()


def _levels(file: _Source, words: _Source) -> dict[str, Layer]:
    """The options of the file and of the command line as layers. The command line's preset replaces the file's."""
    levels = {"yaml": file.layer(), "command line": words.layer()}
    named = next((source for source in (words, file) if source.found["context"].get("preset") is not None), None)
    if named is not None:
        with collected(file.problems):
            levels["preset"] = preset_layer(named.found["context"]["preset"], named.where, named.marks)
    return {level: layer for level, layer in levels.items() if layer.settings}


def _value(key: str, text: str) -> Any:
    """A value of the command line: a YAML scalar, or a YAML list, dictionary or quoted text."""
    option = find(key)
    is_text = option is not None and option.is_text and text[:1] == "{"  # a text that is JSON itself
    if text[:1] in "[{\"'" and text and not is_text:
        return flow(text)
    return from_text(key, text)


def flow(text: str) -> Any:
    """A YAML list, dictionary or quoted text; one that is not YAML is a :class:`BadValue`."""
    try:
        return parse(text, "command line").data
    except FileError as error:
        raise BadValue(error.problems[0].text) from None


def _merged(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(old)
    for key, value in new.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merged(merged[key], value) if both else value
    return merged


Entry = Callable[..., Any]


def resolve(experiment: Experiment) -> Entry:
    """The entry as a function of the run.

    Raises:
        EntryError: it is not there, cannot be imported, or does not take the arguments given.
    """
    try:
        return _resolve(experiment, experiment.entry or "")
    except EntryError as error:
        mark = experiment.entry_mark
        raise EntryError(f"{mark}  " * bool(mark) + str(error)) from None


def _resolve(experiment: Experiment, entry: str) -> Entry:
    target, _, name = entry.partition(":")
    base = experiment.file.parent if experiment.file else Path()
    if target.endswith(".py"):
        path = next((p for p in (base / target, Path(target)) if os.path.isfile(p)), None)
        if path is None:
            raise EntryError(f"entry {entry!r}: there is no file {target} in {base.absolute()}")
        if not name:
            return _script(path.resolve(), experiment.args)
        function = _import(lambda: _load_file(path.resolve()), entry)
    elif name:
        if "" not in sys.path and str(Path.cwd()) not in sys.path:
            sys.path.insert(0, str(Path.cwd()))
        function = _import(lambda: importlib.import_module(target), entry)
    else:
        raise EntryError(f"entry {entry!r}: write package.module:function, file.py:function, or the path of a .py file")
    for part in name.split("."):
        if not hasattr(function, part):
            names = [n for n in dir(function) if not n.startswith("_")]
            raise EntryError(f"entry {entry!r}: {target} has no {part!r}{did_you_mean(part, names)}")
        function = getattr(function, part)
    if not callable(function):
        raise EntryError(f"entry {entry!r}: {name} is not a function")
    if any(lazy(function) for lazy in (inspect.isgeneratorfunction, inspect.iscoroutinefunction, inspect.isasyncgenfunction)):
        raise EntryError(f"entry {entry!r}: {name} is a generator or coroutine; to call it runs nothing")
    return _with_arguments(function, experiment)


def _import(load: Callable[[], Any], entry: str) -> Any:
    try:
        return load()
    except ModuleNotFoundError as error:
        hint = ": pip install scikit-learn, which the shipped experiments need" if error.name == "sklearn" else ""
        why = f": no module named {error.name!r}{hint}"
    except SystemExit as end:
        why = f" cannot be imported: it ends itself with {end.code!r}"
    except Exception as error:
        why = f" cannot be imported: {in_a_line(error)}\n{users_traceback(error)}"
    raise EntryError(f"entry {entry!r}{why}")


def _load_file(path: Path) -> Any:
    if str(path.parent) not in sys.path:  # as for a script: what stands beside it can be imported, by spawned workers too
        sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    spec.loader.exec_module(module)
    return module


def _with_arguments(function: Entry, experiment: Experiment) -> Entry:
    """Check the arguments against the signature before anything runs; a parameter named ``run`` gets the run itself."""
    args = experiment.args
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return lambda run: function(**args)
    wants_run = "run" in signature.parameters and "run" not in args
    try:
        signature.bind(**args, **({"run": None} if wants_run else {}))
    except TypeError as wrong:
        hint = ": write args.NAME=value" * (WORDS in args)
        raise EntryError(f"entry {experiment.entry!r}: {wrong}; it takes {signature}{hint}") from None
    return lambda run: function(**args, **({"run": run} if wants_run else {}))


def _script(path: Path, args: Mapping[str, Any]) -> Entry:
    """A script runs as ``__main__``; its arguments stand on its command line, those with a name as ``--name=value``."""

    def call(run: Any) -> dict[str, Any]:
        argv, folder = sys.argv, str(path.parent)
        named = [f"--{name}={value}" for name, value in args.items() if name != WORDS]
        sys.argv = [str(path), *named, *map(str, args.get(WORDS, ()))]
        sys.path.insert(0, folder)
        try:
            runpy.run_path(str(path), run_name="__main__")
        finally:
            sys.argv = argv
            with suppress(ValueError):  # the script has taken it out itself
                sys.path.remove(folder)
        return {}

    return call


def users_traceback(error: BaseException) -> str:
    """The traceback of a user's error without our own frames, and without those of the import system."""
    package = Path(__file__).resolve().parents[1]
    hidden = (f"{package}{os.sep}", "<frozen", runpy.__file__, importlib.__file__)
    shown = f"{CONFIGS}{os.sep}"  # what is shipped is a user's like any other
    shown_error = traceback.TracebackException.from_exception(error)
    chained: traceback.TracebackException | None = shown_error
    while chained is not None:
        stack = (f for f in chained.stack if f.filename.startswith(shown) or not f.filename.startswith(hidden))
        chained.stack = traceback.StackSummary.from_list(stack)
        chained = chained.__cause__ or chained.__context__
    return "".join(shown_error.format()).rstrip()


def in_a_line(error: BaseException) -> str:
    return traceback.format_exception_only(error)[-1].strip().partition("\n")[0]
