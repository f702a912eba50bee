"""An experiment as its YAML file and the command line describe it, checked; all problems are reported at once."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msctx.errors import Diagnostic, FileError, Mark, OptionError, nearest, searching
from msctx.options import Layer, Settings, all_at, find, make_layer
from msctx.options.kinds import INVALID, BadValue, IntKind, Kind, TextKind
from msctx.options.layers import environment_layers, flatten, preset_layer
from msctx.options.registry import from_text, shown
from msctx.options.yamlfile import AmbiguousNumber, Document, load, parse
from msctx.shipped import CONFIGS


class _Arguments(Kind):
    """The entry's arguments: a dictionary with names for keys; the values are the entry's own matter."""

    allowed = "{name: value}"

    def parse(self, value: Any) -> dict[str, Any]:
        if isinstance(value, dict) and all(isinstance(k, str) and k.isidentifier() for k in value):
            return value
        raise BadValue("is not a dictionary of named arguments", allowed=self.allowed)

    def schema(self) -> dict[str, Any]:
        return {"type": "object"}


class _Name(TextKind):
    def parse(self, value: Any) -> str:
        allowed = "letters, digits, dots, dashes and underscores: it names the folder of the run"
        name = super().parse(value)
        if not re.fullmatch(r"[\w.-]+", name) or not name.strip("."):
            raise BadValue(f"{name!r} cannot be a name", allowed=allowed)
        return name


SECTIONS: dict[str, dict[str, Kind]] = {
    "experiment": {
        "name": _Name(),
        "entry": TextKind("package.module:function, path/to/file.py:function, or the path of a script"),
        "args": _Arguments(),
        "seed": IntKind(0, 2**32 - 1),
    },
    "record": {"dir": TextKind("the folder in which run directories are made")},
}
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


def find_file(name: str) -> Path:
    """The YAML file a user names: a path, or the name of a shipped experiment."""
    path = Path(name)
    if path.exists() or path.suffix in (".yaml", ".yml"):
        return path
    known = {p.stem: p for p in sorted((CONFIGS / "experiments").glob("*.yaml"))}
    if name in known:
        near = Path(os.path.relpath(known[name]))
        return known[name] if ".." in near.parts else near
    hint = nearest(name, known) or (f"{name}.yaml" if Path(f"{name}.yaml").exists() else f"{name}=VALUE" if find(name) else "")
    text = "no such file, and no shipped experiment of that name"
    raise FileError([Diagnostic("", text, name, allowed=f"a YAML file; {', '.join(known)}", suggestion=hint)])


def is_file(word: str) -> bool:
    """Whether a word of the command line names a file rather than a ``key=value``."""
    return "=" not in word or word.endswith((".yaml", ".yml"))


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


@searching()
def read_document(
    document: Document,
    path: Path | None,
    overrides: Sequence[str] = (),
    *,
    need_entry: bool = False,
    others: Collection[str] = (),
) -> Experiment:
    """:func:`read` for a file that was read already; sections named in *others* are somebody else's."""
    problems: list[Diagnostic] = list(document.problems)
    sections = _sections(document, problems, others)
    options, marks = sections.pop("context"), document.under("context")
    given = _overrides(overrides, problems)
    for section, values in given.items():
        if section != "context":
            for key, value in values.items():
                if key == "args":
                    value = _merge(sections[section].get("args", {}), value)
                sections[section][key] = value
    levels = _levels(options, marks, given["context"], sections["experiment"], given["experiment"], path, document, problems)
    experiment = sections["experiment"]
    if need_entry and "entry" not in experiment and not problems:
        where = str(path) if path else "command line"
        problems.append(Diagnostic("experiment.entry", "is missing", where, SECTIONS["experiment"]["entry"].allowed))
    try:
        environment = environment_layers(os.environ)
    except OptionError as error:
        problems.extend(error.problems)
        environment = {}
    if problems:
        raise OptionError(sorted(problems, key=lambda p: (0, p.mark.line, p.mark.column) if p.mark else (1, 0, 0)))
    if "preset" not in given["context"]:
        levels.update(environment)
    elif "environment" in environment:
        levels["environment"] = environment["environment"]
    return Experiment(
        levels=levels,
        file=path,
        name=experiment.get("name", path.stem if path else "experiment"),
        entry=experiment.get("entry"),
        args=experiment.get("args", {}),
        record_dir=sections["record"].get("dir", "runs"),
        entry_mark=document.mark(("experiment", "entry")) if "entry" not in given["experiment"] else None,
    )


def _sections(document: Document, problems: list[Diagnostic], others: Collection[str] = ()) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {"context": {}, **{name: {} for name in SECTIONS}}
    data = document.data
    if data is None:
        data = {}
    if data is INVALID:
        return found
    if not isinstance(data, dict):
        problems.append(Diagnostic("", "is not a dictionary", document.file, ", ".join(f"{n}:" for n in found)))
        return found
    for key, value in data.items():
        if key in others:
            continue
        if key not in found:
            allowed = ", ".join((*found, *others))
            text = "is an option: it belongs under `context:`" if find(key) else "unknown section"
            hint = "" if find(key) else nearest(key, (*found, *others))
            problems.append(Diagnostic(key, text, allowed=allowed, suggestion=hint, mark=document.mark((key, ""))))
        elif value is None or value is INVALID:
            continue
        elif not isinstance(value, dict):
            problems.append(Diagnostic(key, "is not a dictionary", mark=document.mark((key,))))
        elif key == "context":
            found[key] = value
        else:
            for name, item in value.items():
                mark = document.mark((key, name))
                known = _check(key, name, item, mark, document.mark((key, name, "")), "", problems)
                if known is not None:
                    found[key][name] = known
    return found


def _check(
    section: str, name: str, value: Any, mark: Mark | None, key_mark: Mark | None, where: str, problems: list[Diagnostic]
) -> Any:
    if value is INVALID:
        return None
    kind = SECTIONS[section].get(name)
    path = f"{section}.{name}"
    if kind is None:
        known = SECTIONS[section]
        problems.append(Diagnostic(path, "unknown key", where, ", ".join(known), nearest(name, known), key_mark))
        return None
    try:
        return kind.parse(value)
    except BadValue as bad:
        problems.append(Diagnostic(path, bad.text, where, bad.allowed, shown(bad), mark))
        return None


def _overrides(words: Sequence[str], problems: list[Diagnostic]) -> dict[str, dict[str, Any]]:
    where = "command line"
    found: dict[str, dict[str, Any]] = {"context": {}, **{name: {} for name in SECTIONS}}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not key:
            problems.append(Diagnostic(word, "is not key=value", where))
            continue
        try:
            value = _value(key, text)
        except AmbiguousNumber as error:
            problems.append(Diagnostic(key, str(error), where))
            continue
        except FileError as error:
            problems.append(Diagnostic(key, error.problems[0].text, where))
            continue
        section, _, rest = key.partition(".")
        if section == "args":
            section, rest = "experiment", f"args.{rest}"
        if section not in SECTIONS:
            found["context"][key] = value
            continue
        name, _, inner = rest.partition(".")
        if name == "args" and inner:
            nested: Any = value
            for part in reversed(inner.split(".")):
                nested = {part: nested}
            value = _merge(found[section].get("args", {}), nested)
        checked = _check(section, name, value, None, None, where, problems)
        if checked is not None:
            found[section][name] = checked
    return found


def _value(key: str, text: str) -> Any:
    """A value of the command line: a YAML scalar, or a YAML list, dictionary or quoted text."""
    option = find(key)
    is_text = option is not None and option.is_text and text[:1] == "{"  # a text that is JSON itself
    if text[:1] in "[{\"'" and text and not is_text:
        return parse(text, "command line").data
    return from_text(key, text)


def _merge(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(old)
    for key, value in new.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merge(merged[key], value) if both else value
    return merged


def _levels(
    options: Mapping[str, Any],
    marks: Any,
    given: Mapping[str, Any],
    experiment: Mapping[str, Any],
    given_experiment: Mapping[str, Any],
    path: Path | None,
    document: Document,
    problems: list[Diagnostic],
) -> dict[str, Layer]:
    """The options of the file and of the command line as layers; ``experiment.seed`` is another way to set ``seed``."""
    levels: dict[str, Layer] = {}
    preset, preset_where, preset_marks = given.get("preset"), "command line", None
    if preset is None:
        preset, preset_where, preset_marks = options.get("preset"), str(path), marks
    sources = {
        "yaml": (dict(options), str(path), marks, experiment if "seed" not in given_experiment else {}),
        "command line": (dict(given), "command line", None, given_experiment),
    }
    for level, (values, where, at, section) in sources.items():
        values.pop("preset", None)
        seed = section.get("seed")
        seed_mark = document.mark(("experiment", "seed")) if at else None
        if seed is not None and values.get("seed", seed) != seed:
            text = f"{seed} contradicts context.seed={values['seed']!r}; they are one option"
            problems.append(Diagnostic("experiment.seed", text, where, mark=seed_mark))
        try:
            levels[level] = make_layer(values, where, at)
            if seed is not None and "seed" not in values:
                extra = make_layer({"seed": seed}, where, all_at(seed_mark) if at else None)
                levels[level] = Layer({**levels[level].settings, **extra.settings})
        except OptionError as error:
            problems.extend(error.problems)
    if preset is not None:
        try:
            levels["preset"] = preset_layer(preset, preset_where, preset_marks)
        except OptionError as error:
            problems.extend(error.problems)
    return {level: layer for level, layer in levels.items() if layer.settings}
