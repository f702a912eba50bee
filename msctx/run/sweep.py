"""A grid of runs: one process for each point, one after the other, and one summary."""

from __future__ import annotations

import csv
import io
import itertools
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from msctx.errors import Diagnostic, FileError, OptionError, nearest
from msctx.native.children import Children
from msctx.options import OPTIONS, find
from msctx.options.option import device_of
from msctx.options.registry import from_text
from msctx.options.yamlfile import AmbiguousNumber, parse
from msctx.run.ending import Terminated, deafen, terminable
from msctx.run.record import Record, plain


class Interrupted(Exception):
    """Ctrl-C: *folder* holds what there is."""

    def __init__(self, folder: Path) -> None:
        super().__init__(str(folder))
        self.folder = folder


Values = Mapping[str, Sequence[Any]]


def read(words: Sequence[str]) -> dict[str, list[Any]]:
    """``key=a,b,c`` as a key with its values; a value that has commas of its own stands in a YAML list: ``key=['a,b','c']``.

    Keys are what ``msctx run`` takes: options, ``args.NAME``, ``experiment.seed``.

    Raises:
        OptionError: with every problem at once.
    """
    found: dict[str, list[Any]] = {}
    problems: list[Diagnostic] = []
    for word in words:
        key, sign, text = word.partition("=")
        if not sign or not key or not text:
            problems.append(Diagnostic("--sweep", f"{word!r} is not KEY=VALUE,VALUE", "command line"))
        elif find(key) is None and not key.startswith(("args.", "experiment.")):
            names = [spelling for option in OPTIONS.values() for spelling in option.spellings]
            problems.append(
                Diagnostic("--sweep", f"{key!r} is neither an option nor an argument", "command line", "", nearest(key, names))
            )
        elif any(is_same(key, other) for other in found):
            problems.append(
                Diagnostic("--sweep", f"{key} is named twice", "command line", suggestion="name all its values at once")
            )
        elif (values := _values(key, text, problems)) is None:
            continue
        elif not values:
            problems.append(Diagnostic("--sweep", f"{key} has no values", "command line"))
        else:
            found[key] = values
    if problems:
        raise OptionError(problems)
    return found


def is_same(key: str, other: str) -> bool:
    """Whether two spellings are one option, of one device or of all."""
    one, two = find(key), find(other)
    return key == other or (one is not None and one is two and device_of(key) == device_of(other))


def _values(key: str, text: str, problems: list[Diagnostic]) -> list[Any] | None:
    """:func:`values_of`; ``None``, and a problem of ``--sweep``, where the text cannot be read."""
    try:
        values = values_of(key, text)
    except AmbiguousNumber as error:
        problems.append(Diagnostic("--sweep", f"{key}={text}: {error}", "command line"))
        return None
    except (OptionError, FileError) as error:
        problems += [Diagnostic("--sweep", f"{key}={text}: {problem.text}", "command line") for problem in error.problems]
        return None
    if any(value is None for value in values):
        problems.append(Diagnostic("--sweep", f"{key}={text} has an empty value", "command line"))
        return None
    if len({repr(value) for value in values}) < len(values):
        problems.append(Diagnostic("--sweep", f"{key}={text} has a value twice", "command line"))
        return None
    return values


def values_of(key: str, text: str) -> list[Any]:
    """``a,b,c`` as the values of an option; a value that has commas of its own stands in a YAML list: ``['a,b','c']``."""
    if text.startswith("["):
        data = parse(text, "command line").data
        return list(data) if isinstance(data, list) else [data]
    return [from_text(key, part) for part in text.split(",")]


def points(values: Values) -> list[dict[str, Any]]:
    """The grid: each choice of one value for each key, the last key running fastest."""
    return [dict(zip(values, picked, strict=True)) for picked in itertools.product(*values.values())]


def as_csv(found: Sequence[Mapping[str, Any]]) -> str:
    """A line for each point: its values, and the numbers and texts of its result."""
    text = io.StringIO()
    keys = dict.fromkeys(key for one in found for key, value in one["result"].items() if isinstance(value, int | float | str))
    lines = csv.DictWriter(text, [*found[0]["point"], *keys], extrasaction="ignore", lineterminator="\n")
    lines.writeheader()
    for one in found:
        lines.writerow({key: unformulated(value) for key, value in {**one["result"], **one["point"]}.items()})
    return text.getvalue()


def unformulated(value: Any) -> Any:
    """A text that a spreadsheet would take for a formula has an apostrophe before it."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value


def words_of(options: Mapping[str, Any]) -> list[str]:
    """Options as ``msctx run`` takes them on its command line."""
    return [f"{key}={_word(key, value)}" for key, value in options.items()]


def _word(key: str, value: Any) -> str:
    if isinstance(value, str) and value[:1] not in ("[", "{", "'", '"') and _reads_as(key, value):
        return str(value)
    text: str = yaml.safe_dump(plain(value), default_flow_style=True, width=10**9)
    return text.removesuffix("\n...\n").strip()


def _reads_as(key: str, text: str) -> bool:
    """Whether a bare word is read as that very text."""
    try:
        found = from_text(key, text)
    except ValueError:
        return False
    return isinstance(found, str) and found == text


def run_point(children: Children, file: str, words: Sequence[str], folder: Path) -> dict[str, Any]:
    """One run in a process of its own, which ends with this one; what result.json holds, or ``{"status": "failed", "error": …}``."""
    command = [sys.executable, "-m", "msctx", "run", file, *words, "--out", str(folder), "--json"]
    done = children.run(command)
    try:  # standard output may hold more than ours: a library may write to it beside Python
        return dict(json.loads((folder / "result.json").read_text(encoding="utf-8")))
    except (OSError, ValueError):
        pass
    failed = {"status": "failed", "exit_code": done.returncode}
    try:
        return {"error": json.loads(done.stdout)["message"], **failed}
    except (ValueError, KeyError, TypeError):
        text = done.stderr.strip() or f"exit code {done.returncode}"
        return {"error": text, "reason": text.splitlines()[-1], **failed}


def why(result: Mapping[str, Any]) -> str:
    """One line of why a run did not end well."""
    text = str(result.get("reason") or result.get("error") or result.get("status")).strip()
    return text.partition("\n")[0]


def line(number: int, count: int, point: Mapping[str, Any], result: Mapping[str, Any]) -> str:
    """The report on a run of a grid when it has ended."""
    reason = f": {why(result)}" if result["status"] != "completed" else ""
    return f"{number} of {count}: {' '.join(words_of(point))}: {result['status']}{reason}"


def sweep(
    file: str,
    name: str,
    words: Sequence[str],
    values: Values,
    out: str | None,
    parent: str,
    done: Callable[[int, Mapping[str, Any], Mapping[str, Any]], None] = lambda number, point, result: None,
) -> dict[str, Any]:
    """Run the grid; returns what sweep.json holds. A run that fails does not end it; Ctrl-C keeps what there is, marked partial.

    Raises:
        Interrupted: by Ctrl-C.

    Args:
        done: called after each point with its number, the point and its result.
    """
    record = Record.create(out, parent, f"{name}-sweep")
    grid = points(values)
    found: dict[str, Any] = {"sweep": {key: list(each) for key, each in values.items()}, "partial": False, "points": []}
    with terminable(), Children() as children:
        try:
            for number, point in enumerate(grid, 1):
                folder = record.folder / f"{number:0{len(str(len(grid)))}d}"
                result = run_point(children, file, [*words, *words_of(point)], folder)
                found["points"].append({"point": point, "result": result})
                record.json("sweep.json", found)
                record.text("sweep.csv", as_csv(found["points"]))
                done(number, point, result)
        except (KeyboardInterrupt, Terminated):
            deafen()
            found["partial"] = True
            record.json("sweep.json", found)
            raise Interrupted(record.folder) from None
    return found | {"dir": str(record.folder)}
