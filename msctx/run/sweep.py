"""A grid of runs: one process for each point, and one summary."""

from __future__ import annotations

import csv
import hashlib
import io
import itertools
import json
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import yaml

from msctx.errors import Diagnostic, FileError, OptionError, nearest
from msctx.native.children import Children
from msctx.options import OPTIONS, find
from msctx.options.option import device_of
from msctx.options.registry import from_text
from msctx.options.yamlfile import AmbiguousNumber, parse
from msctx.run.ending import Terminated, terminable, undisturbed
from msctx.run.record import Record, plain


class Interrupted(Exception):
    """Ctrl-C: *folder* holds what there is."""

    def __init__(self, folder: Path) -> None:
        super().__init__(str(folder))
        self.folder = folder


Values = Mapping[str, Sequence[Any]]


def read(words: Sequence[str], flag: str = "--sweep") -> dict[str, list[Any]]:
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
            problems.append(Diagnostic(flag, f"{word!r} is not KEY=VALUE,VALUE", "command line"))
        elif find(key) is None and not key.startswith(("args.", "experiment.")):
            names = [spelling for option in OPTIONS.values() for spelling in option.spellings]
            problems.append(
                Diagnostic(flag, f"{key!r} is neither an option nor an argument", "command line", "", nearest(key, names))
            )
        elif any(is_same(key, other) for other in found):
            problems.append(Diagnostic(flag, f"{key} is named twice", "command line", suggestion="name all its values at once"))
        elif (values := _values(key, text, problems, flag)) is None:
            continue
        elif not values:
            problems.append(Diagnostic(flag, f"{key} has no values", "command line"))
        else:
            found[key] = values
    if problems:
        raise OptionError(problems)
    return found


def is_same(key: str, other: str) -> bool:
    """Whether two spellings are one option, of one device or of all."""
    one, two = find(key), find(other)
    return key == other or (one is not None and one is two and device_of(key) == device_of(other))


def _values(key: str, text: str, problems: list[Diagnostic], flag: str) -> list[Any] | None:
    """:func:`values_of`; ``None``, and a problem of the *flag*, where the text cannot be read."""
    try:
        values = values_of(key, text)
    except AmbiguousNumber as error:
        problems.append(Diagnostic(flag, f"{key}={text}: {error}", "command line"))
        return None
    except (OptionError, FileError) as error:
        problems += [Diagnostic(flag, f"{key}={text}: {problem.text}", "command line") for problem in error.problems]
        return None
    if any(value is None for value in values):
        problems.append(Diagnostic(flag, f"{key}={text} has an empty value", "command line"))
        return None
    if len({repr(value) for value in values}) < len(values):
        problems.append(Diagnostic(flag, f"{key}={text} has a value twice", "command line"))
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


def command(file: str, words: Sequence[str], folder: Path) -> list[str]:
    """One run, in a process of its own."""
    return [sys.executable, "-m", "msctx", "run", file, *words, "--out", str(folder), "--json"]


def run_point(children: Children, file: str, words: Sequence[str], folder: Path) -> dict[str, Any]:
    """One run in a process of its own, which ends with this one; what result.json holds, or ``{"status": "failed", "error": …}``."""
    done = children.run(command(file, words, folder))
    return result_of(folder, done.returncode, done.stdout, done.stderr)


def result_of(folder: Path, code: int, out: str, err: str) -> dict[str, Any]:
    """What became of a run that has ended."""
    if (written := _written(folder)) is not None:  # standard output may hold more: a library may write to it beside Python
        return written
    failed = {"status": "failed", "exit_code": code}
    try:
        return {"error": json.loads(out)["message"], **failed}
    except (ValueError, KeyError, TypeError):
        text = err.strip() or f"exit code {code}"
        return {"error": text, "reason": text.splitlines()[-1], **failed}


def _written(folder: Path) -> dict[str, Any] | None:
    for place in (folder, folder / "rank_0"):
        with suppress(OSError, ValueError):
            return dict(json.loads((place / "result.json").read_text(encoding="utf-8")))
    return None


def why(result: Mapping[str, Any]) -> str:
    """One line of why a run did not end well."""
    text = str(result.get("reason") or result.get("error") or result.get("status")).strip()
    return text.partition("\n")[0]


def line(number: int, count: int, point: Mapping[str, Any], result: Mapping[str, Any]) -> str:
    """The report on a run of a grid when it has ended."""
    reason = f": {why(result)}" if result["status"] != "completed" else ""
    return f"{number} of {count}: {' '.join(words_of(point))}: {result['status']}{reason}"


Results = Generator[tuple[int, dict[str, Any]], None, None]
"""Of points, by their numbers, each as soon as it has ended."""
Engine = Callable[[str, Sequence[tuple[int, Sequence[str], Path]], Path], Results]
"""Runs points of a file (number, words, folder), in whatever order; the last argument is a folder for what it needs itself."""


def in_turn(file: str, points: Sequence[tuple[int, Sequence[str], Path]], scratch: Path) -> Results:
    """One after the other, on this machine."""
    with Children() as children:
        for number, words, folder in points:
            yield number, run_point(children, file, words, folder)


def sweep(
    file: str,
    name: str,
    words: Sequence[str],
    values: Values,
    out: str | None,
    parent: str,
    done: Callable[[int, Mapping[str, Any], Mapping[str, Any]], None] = lambda number, point, result: None,
    *,
    engine: Engine = in_turn,
    resume: bool = False,
) -> dict[str, Any]:
    """Run the grid; returns what sweep.json holds. A run that fails does not end it; Ctrl-C keeps what there is, marked partial.

    Raises:
        Interrupted: by Ctrl-C.
        FileError: there is nothing to resume, or it is another grid, or the file or the arguments beside the grid have changed.

    Args:
        done: called after each point with its number, the point and its result.
        resume: *out* holds a part of this grid: points that were completed there are not run again.
    """
    grid, asked = points(values), plain({key: list(each) for key, each in values.items()})
    digest = hashlib.sha256(Path(file).read_bytes()).hexdigest()
    asks = {"file": str(Path(file).absolute()), "digest": digest, "words": [*words], "sweep": asked}
    record, known = _resumed(out, asks, len(grid)) if resume else (Record.create(out, parent, f"{name}-sweep"), {})
    found: dict[str, Any] = {**asks, "partial": True, "points": []}
    results = dict(known)

    def write(*, partial: bool) -> None:
        found["points"] = [{"number": n, "point": grid[n - 1], "result": results[n]} for n in sorted(results)]
        found["partial"] = partial
        record.json("sweep.json", found)
        if results:
            record.text("sweep.csv", as_csv(found["points"]))

    write(partial=True)  # who is killed in the first point can go on, too
    folders = {n: next(_folders(record.folder, n, len(grid))) for n in range(1, len(grid) + 1) if n not in known}
    left = [(n, [*words, *words_of(grid[n - 1])], folder) for n, folder in folders.items()]
    with terminable(), closing(engine(file, left, record.folder / "jobs")) as ended:
        try:
            for number, result in ended:
                results[number] = result
                write(partial=len(results) < len(grid))
                done(number, grid[number - 1], result)
        except (KeyboardInterrupt, Terminated):
            with undisturbed():
                write(partial=True)
            raise Interrupted(record.folder) from None
    write(partial=False)
    return found | {"dir": str(record.folder)}


def _folders(parent: Path, number: int, count: int) -> Iterator[Path]:
    """New ones: what earlier attempts have left stays."""
    return (folder for folder in _tries(parent, number, count) if not folder.exists())


def _tries(parent: Path, number: int, count: int) -> Iterator[Path]:
    name = f"{number:0{len(str(count))}d}"
    return (parent / (f"{name}-{which}" if which > 1 else name) for which in itertools.count(1))


def _resumed(out: str | None, asks: Mapping[str, Any], count: int) -> tuple[Record, dict[int, dict[str, Any]]]:
    """The record of a grid that has begun, and the results of the points that were completed, also of those that ended later."""
    path = Path(out or ".") / "sweep.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        before, rows = {key: found[key] for key in asks}, {row["number"]: row["result"] for row in found["points"]}
    except (OSError, ValueError, KeyError, TypeError):
        hint = "name the folder of the sweep with --out"
        raise FileError([Diagnostic("--resume", "there is no sweep to resume", str(path), suggestion=hint)]) from None
    for key, (text, hint) in OTHERWISE.items():
        if before[key] != asks[key]:
            text = text.format(shown=json.dumps(before[key]))
            raise FileError([Diagnostic("--resume", text, str(path), suggestion=hint)])
    for number in range(1, count + 1):
        for folder in itertools.takewhile(Path.exists, _tries(path.parent, number, count)):
            rows[number] = _written(folder) or rows.get(number, {"status": "unknown"})
    return Record(path.parent.absolute()), {number: row for number, row in rows.items() if row["status"] == "completed"}


OTHERWISE = {
    "sweep": ("holds another grid: {shown}", "name the same keys and values, in the same order"),
    "file": ("was begun with another file: {shown}", "name that file, or begin another sweep"),
    "words": ("was begun with other arguments beside the grid: {shown}", "give the same ones, or begin another sweep"),
    "digest": ("was begun before the file was changed", "begin another sweep: runs of two files are no grid"),
}
"""What a sweep that goes on has in common with its beginning → what is wrong where it has not, and what to do."""
