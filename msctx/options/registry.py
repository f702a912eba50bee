"""All options by name and spelling; checks values and turns them into a layer, or reports every problem at once."""

from __future__ import annotations

import copyreg
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from itertools import accumulate, product
from pathlib import Path
from typing import Any

from msctx.errors import MOST, Diagnostic, Mark, Marks, OptionError, nearest
from msctx.options.kinds import INVALID, Bool, Choice, Int, Keys, check, dotted, nowhere, show
from msctx.options.option import Option, Setting, rank_of
from msctx.options.rules import YIELDING, Excludes, about
from msctx.options.settings import Layer
from msctx.options.values_with_places import read_file, scalar
from msctx.shipped import CONFIGS

OPTIONS: dict[str, Option] = {}
_SPELLINGS: dict[str, Option] = {}
_DICTIONARIES: dict[str, None] = {}
"""Keys that hold a dictionary of options: gpu_config, session, device_context.gpu …"""
GE: dict[str, Option] = {}
"""Keys of CANN's graph engine that are options here."""


def declare(options: Iterable[Option]) -> None:
    """Add the options of a theme to the tables."""
    for option in options:
        copyreg.pickle(type(option), lambda option: (option_of, (option.name,)))
        OPTIONS[option.name] = option
        GE.update({option.ge: option} if option.ge else {})
        for spelling in option.spellings:
            _SPELLINGS[spelling] = option
            _DICTIONARIES.update(dict.fromkeys(accumulate(spelling.split(".")[:-1], "{}.{}".format)))


def find(spelling: str) -> Option | None:
    """The option a dotted spelling means, or ``None``."""
    return _SPELLINGS.get(spelling)


def is_dictionary(spelling: str) -> bool:
    """Whether a dotted spelling names a dictionary of options."""
    return spelling in _DICTIONARIES


def option_of(spelling: str) -> Option:
    """The option a dotted spelling means; an unknown one raises :class:`OptionError` with the nearest name."""
    if (option := find(spelling)) is None:
        raise OptionError([_unknown(spelling)])
    return option


def named(name: str) -> Option:
    """:func:`option_of` for any name a person may come with: CANN's key and the environment's spelling, too."""
    spelling = name.removeprefix("MSCTX_").lower().replace("__", ".") if name.startswith("MSCTX_") else name
    return GE.get(name) or option_of(spelling)


@cache
def vocabulary() -> dict[str, dict[str, str]]:
    """What configs/words.yaml says of words that are no options, each word with its text; read where one is met."""
    import yaml

    found = yaml.load((CONFIGS / "words.yaml").read_bytes(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return {part: {word: text for text, words in rows.items() for word in words.split()} for part, rows in found.items()}


def instead(word: str) -> str:
    """The option that is meant by a word of another vocabulary, or by ``option=value``; ``""``: none is known."""
    return vocabulary()["instead"].get(word.replace("'", "").lower(), "")


def later(name: str) -> str:
    """That a later release has a key, and msctx has no option for it; ``""`` of any other."""
    release = vocabulary()["later"].get(name)
    return f"{release}, and msctx has no such option" if release else ""


def _unknown(spelling: str, where: str = "", mark: Mark | None = None, value: Any = "") -> Diagnostic:
    parts, known = spelling.split("."), instead(f"{spelling}={show(value)}") or instead(spelling)
    group = next((g for n in reversed(range(1, len(parts))) if (g := ".".join(parts[:n])) in _DICTIONARIES), "")
    text, allowed, hint = "unknown option", "", ""
    if advice := vocabulary()["ignored"].get(spelling):
        text = f"MindSpore ignores it, and msctx has no such option; {advice}"
    elif newer := next(filter(None, map(later, parts)), ""):
        text, hint = newer, known or instead(parts[-1]) or "leave it out"
    elif group:
        key = parts[group.count(".") + 1]
        keys = list(dict.fromkeys(s[len(group) + 1 :].partition(".")[0] for s in _SPELLINGS if s.startswith(f"{group}.")))
        text, allowed = f"{group} has no such key", ", ".join(keys) if len(keys) < 20 else ""
        places = [f"{key} stands outside it", *_SPELLINGS[key].groups] if key in _SPELLINGS else []
        hint = " or in ".join(places) or nearest(key, keys)
    else:
        word = spelling.removeprefix("context.").lower()
        hint = known or nearest(word, ("preset", *_SPELLINGS, *_DICTIONARIES)) or "`msctx options` lists them all"
    return Diagnostic(spelling, text, where, allowed, hint, mark)


def make_layer(values: Mapping[str, Any], origin: str, marks: Marks | None = None) -> Layer:
    """Check what was set in one place.

    Args:
        values: options by name; groups (``gpu_config={...}``), namespaces (``session={...}``) and what a file or a text holds
            (``graph_kernel_flags={"opt_level": 2}``) are dictionaries, and dotted names (``"gpu_config.conv_allow_tf32"``)
            mean the same.
        origin: the place, as messages name it: ``"set_context"``, ``"train.py:12"``.
        marks: for a file, where each value stands.

    Raises:
        OptionError: with every problem found; nothing was changed.
    """
    if not values:
        return Layer()
    reading = _Reading(origin)
    for path, spelling, value in _flatten(values, ()):
        reading.add(path, spelling, value, marks or nowhere)
    problems = [replace(one, mark=reading.places.get(one.path)) for one in contradictions(reading.settings, origin)]
    if reading.problems or problems:
        raise OptionError([*reading.problems, *problems])
    return Layer(reading.settings)


class _Reading:
    """Collects settings and problems while one place is read."""

    def __init__(self, origin: str) -> None:
        self.origin = origin
        self.problems: list[Diagnostic] = []
        self.settings: dict[str, Setting] = {}
        self.places: dict[str, Mark | None] = {}

    def add(
        self, path: Keys, spelling: str, value: Any, marks: Marks, *, via: str = "", origin: str = "", is_text: bool = False
    ) -> None:
        """One value.

        Args:
            path: where it stands among *marks*.
            spelling: the same as one dotted name.
            via: the spelling of the file or text that holds it: then the same option beside that wins.
            origin: the place that is shown in place of the mark.
            is_text: everything there is text.
        """
        if len(self.problems) >= MOST:
            return
        option = GE.get(path[-1]) if "ge_options." in via else _SPELLINGS.get(spelling)
        mark = marks(path)
        if value is INVALID or (via and spelling in self.settings and not self.settings[spelling].via):
            return
        if option is None:
            if spelling in _DICTIONARIES:
                self._problem(spelling, "needs a dictionary of options", mark, "{key: value}")
            else:
                self.problems.append(_unknown(spelling, self.origin, marks((*path, "")), value))
            return
        given = _from_words(option, value) if is_text else value
        value, wrong = check(option.kind, given, (spelling,), self.origin, lambda at: marks((*path, *at)))
        if wrong:
            hint = instead(f"{option.name}={show(given)}")
            self.problems += [replace(one, suggestion=hint or one.suggestion) for one in wrong]
            return
        first = self.settings.get(spelling)
        if first is not None and first.value != value and bool(first.via) == bool(via):
            self._problem(spelling, f"{value!r} contradicts {first.value!r}; it is set twice", mark)
            return
        if option.is_output:
            value = str(Path(mark.file).parent / Path(value).expanduser()) if mark else value
            if os.path.isdir(os.path.expanduser(value)):
                self._problem(spelling, f"{value!r} is a directory", mark, "the path of a file")
        self.places[spelling] = mark
        setting = Setting(option, spelling, value, origin or (str(mark) if mark else self.origin), via=via)
        self.settings[spelling] = setting
        if option.content and value:
            self._open(setting, mark)
        if option.name.startswith("ge_options."):  # its keys that are options here win over these
            for key, text in value.items():
                if key in GE:
                    self.add((*path, key), f"{spelling}.{key}", text, marks, via=spelling, is_text=True)

    def _problem(self, path: str, text: str, mark: Mark | None, allowed: str = "", hint: str = "") -> None:
        self.problems.append(Diagnostic(path, text, self.origin, allowed, hint, mark))

    def _open(self, setting: Setting, mark: Mark | None) -> None:
        """Read the file that a value names, or the text that it is; its keys may be options themselves."""
        spelling, value, form = setting.spelling, setting.value, setting.option.format
        assert form is not None
        text, file = value, f"{setting.origin}: {spelling}"
        if form.is_file:
            # Beside the file, as the entry of an experiment; os.path answers for what cannot be a path, too
            if mark is not None and os.path.exists(beside := Path(mark.file).parent / value):
                value = str(beside)
            (text, why_not), file = read_file(value), value
            if why_not:
                self._problem(spelling, f"{value!r} cannot be read: {why_not}", mark)
                return
        document = form.parse(text, file)
        for problem in document.problems:
            path = ".".join(filter(None, (spelling, problem.path)))
            self.problems.append(replace(problem, path=path, where=problem.where or self.origin))
        holds_options = spelling in _DICTIONARIES
        self.settings[spelling] = replace(setting, value=value, content=None if holds_options else document.data)
        for (_, *keys), inner, found in _flatten(document.data, (spelling,)) if holds_options else ():
            if any("." in str(key) for key in keys):
                self.problems.append(_unknown(inner, self.origin, document.mark((*keys, ""))))
                continue
            origin = "" if form.is_file else setting.origin
            self.add(tuple(keys), inner, found, document.mark, via=spelling, origin=origin, is_text=not form.is_file)


def from_text(spelling: str, text: Any, *, bits: bool = False) -> Any:
    """The value that a bare word of the environment or the command line means for an option; what is no text, as it is.

    A word for a text option is that text: there are no quotes that would make ``5`` a text. *bits*: 1 and 0 mean true and false.
    """
    option = find(spelling)
    if not isinstance(text, str) or (option is not None and option.is_text):
        return text
    return text == "1" if bits and option is not None and option.kind is Bool and text in ("0", "1") else scalar(text)


GE_WORDS = {"jit_compile": {"auto": "2", "true": "1", "false": "0"}}
"""Option → its values in the graph engine's words, where these are others."""


def _from_words(option: Option, text: Any) -> Any:
    """The value of an option where everything is text, as in CANN's own keys and in flags: ``"1"``, ``"true"``, ``"16"``."""
    if not isinstance(text, str):
        return text
    text = next((value for value, word in GE_WORDS.get(option.name, {}).items() if word == text), text)
    kind = option.kind
    if isinstance(kind, Choice) and kind.takes_truth and not option.choices:
        return {"1": True, "true": True, "on": True, "0": False, "false": False, "off": False}.get(text.lower(), text)
    is_number = isinstance(kind, Int) or any(isinstance(choice, int) for choice in option.choices)
    return int(text) if is_number and re.fullmatch(r"-?[0-9]{1,18}", text) else text


def _flatten(values: Mapping[str, Any], prefix: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str, Any]]:
    """The values of dictionaries within dictionaries: path of keys, the same as one dotted name, value."""
    for key, value in values.items():
        path = (*prefix, key)
        spelling = dotted(path)
        if isinstance(value, Mapping) and spelling in _DICTIONARIES:
            yield from _flatten(value, path)
        else:
            yield path, spelling, value


def contradictions(settings: Mapping[str, Setting], origin: str) -> Iterator[Diagnostic]:
    """Two values for one option, and excluded pairs, in one layer and for the same device."""
    seen: dict[tuple[str, str | None, int], Setting] = {}
    for setting in settings.values():
        first = seen.setdefault((setting.option.name, setting.device, rank_of(setting.spelling)), setting)
        if first.value != setting.value:
            text = f"{setting.value!r} contradicts {first.spelling}={first.value!r}; they are one option: set one of them"
            yield Diagnostic(setting.spelling, text, origin)
    yield from exclusive(settings, origin)


def exclusive(settings: Mapping[str, Setting], origin: str) -> Iterator[Diagnostic]:
    """The pairs that the sources forbid in one layer."""
    able = [s for s in settings.values() if s.option.name in YIELDING]
    for one, other in product(able, able):
        meet = one.device in (None, other.device) or other.device is None
        for why in (rule.why for rule in about(one.option.name, Excludes) if meet and rule.holds(one, other)):
            place = f" from {other.origin}" if other.origin != one.origin else ""
            text = f"cannot be set together with {other.spelling}={other.value!r}{place}: {why}"
            yield Diagnostic(one.spelling, text, origin)
