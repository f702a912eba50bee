"""A grid of runs, and one summary: one process for each point, or jobs of Slurm by submitit."""

from __future__ import annotations

import hashlib
import itertools
import shutil
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml

from msctx.deferred_interrupts import uninterrupted
from msctx.errors import Diagnostic, OptionError, nearest, text_of
from msctx.options import OPTIONS, find
from msctx.options.kinds import BadValue
from msctx.options.registry import from_text
from msctx.options.values_with_places import scalar
from msctx.run.experiment_and_entry import Experiment, flow
from msctx.run.launch import run_point
from msctx.run.record import Record, plain, result_of, resumed, written
from msctx.run.runner import terminable


class Interrupted(Exception):
    """Ctrl-C; its argument is the folder of what there is."""


Values = Mapping[str, Sequence[Any]]
Point = tuple[int, Sequence[str], Path]
"""Its number, its words for ``msctx run``, and its folder."""
Results = Generator[tuple[int, dict[str, Any]], None, None]
"""Of points, by their numbers, each as soon as it has ended."""
Engine = Callable[[str, Sequence[Point]], Results]
"""Runs points of a file, in whatever order."""


def read(words: Sequence[str], flag: str = "--sweep") -> dict[str, list[Any]]:
    """``key=a,b,c`` as a key with its values; keys are what ``msctx run`` takes: options, ``args.NAME``.

    Raises:
        OptionError: with every problem at once.
    """
    found: dict[str, list[Any]] = {}
    problems: list[Diagnostic] = []
    for word in words:
        key, _, text = word.partition("=")
        values, wrong, hint = [], "", ""
        try:
            values = values_of(key, text) if key and text else []
        except BadValue as error:
            wrong = f"{word}: {error}"
        if not wrong and (not values or None in values):
            wrong = f"{word!r} is not KEY=VALUE,VALUE"
        elif find(key) is None and not key.startswith(("args.", "experiment.")):
            names = [spelling for option in OPTIONS.values() for spelling in option.spellings]
            wrong, hint = f"{key!r} is neither an option nor an argument", nearest(key, names)
        elif key in found:
            wrong, hint = f"{key} is named twice", "name all its values at once"
        elif len({*map(repr, values)}) < len(values):
            wrong = f"{word} names a value twice"
        found[key] = values
        if wrong:
            problems.append(Diagnostic(flag, wrong, "command line", suggestion=hint))
    if problems:
        raise OptionError(problems)
    return found


def values_of(key: str, text: str) -> list[Any]:
    """``a,b,c`` as the values of an option; a value that has commas of its own stands in a YAML list: ``['a,b','c']``."""
    if text.startswith("["):
        data = flow(text)
        return list(data) if isinstance(data, list) else [data]
    return [from_text(key, part) for part in text.split(",")]


def points(values: Values) -> list[dict[str, Any]]:
    """The grid: each choice of one value for each key, the last key running fastest."""
    return [dict(zip(values, picked, strict=True)) for picked in itertools.product(*values.values())]


def words_of(options: Mapping[str, Any]) -> list[str]:
    """Options as ``msctx run`` takes them on its command line."""
    return [f"{key}={_word(key, value)}" for key, value in options.items()]


def _word(key: str, value: Any) -> str:
    with suppress(ValueError):
        if isinstance(value, str) and value[:1] not in ("[", "{", "'", '"') and from_text(key, value) == value:
            return str(value)
    text: str = yaml.safe_dump(plain(value), default_flow_style=True, width=10**9)
    return text.removesuffix("\n...\n").strip()


def in_turn(file: str, points: Sequence[Point]) -> Results:
    """One after the other, on this machine."""
    for number, words, folder in points:
        yield number, run_point(file, words, folder)


def run(
    file: str,
    experiment: Experiment,
    words: Sequence[str],
    values: Values,
    out: str | None,
    done: Callable[[int, Mapping[str, Any]], None],
    *,
    engine: Engine = in_turn,
    resume: bool = False,
) -> dict[str, Any]:
    """Run a grid; returns what sweep.json holds. A run that fails does not end it; Ctrl-C keeps what there is, marked partial.

    Raises:
        Interrupted: by Ctrl-C.
        FileError: there is nothing to resume, or it is another grid, or the file or the other arguments have changed.

    Args:
        words: of the command line, the same for each point.
        done: called after each point with its number and its result.
        resume: *out* holds a part of this grid: points that were completed there are not run again.
    """
    source = experiment.file or Path(file.partition(":")[0])  # or a module, which Python finds
    content = hashlib.sha256(source.read_bytes() if source.is_file() else b"").hexdigest()
    requested = plain({key: list(each) for key, each in values.items()})
    given = {"file": str(Path(file).absolute()), "content": content, "words": [*words], "sweep": requested}
    record = (
        resumed(Path(out or "."), given) if resume else Record.create(out, experiment.record_dir, f"{experiment.name}-sweep")
    )
    grid, results, left = points(values), dict[int, dict[str, Any]](), list[Point]()

    def write(partial: bool) -> dict[str, Any]:
        rows = [{"number": n, "point": grid[n - 1], "result": results[n]} for n in sorted(results)]
        record.json("sweep.json", found := {**given, "partial": partial, "points": rows})
        return found

    for number, point in enumerate(grid, 1):
        folder = record.folder / f"{number:0{len(str(len(grid)))}d}"
        if (found := written(folder)) and found["status"] == "completed":
            results[number] = found
        else:
            shutil.rmtree(folder, ignore_errors=True)
            left.append((number, [*words, *words_of(point)], folder))
    write(partial=True)  # a sweep that is killed in its first point can be resumed, too
    with terminable(), closing(engine(file, left)) as ended:
        try:
            for number, result in ended:
                results[number] = result
                write(partial=len(results) < len(grid))
                done(number, result)
        except KeyboardInterrupt:
            raise Interrupted(record.folder) from None
    return write(partial=False) | {"dir": str(record.folder)}


def jobs(name: str, words: Sequence[str], folder: str) -> Engine:
    """Points as jobs of submitit, whose cluster *name* is; the words of ``--job`` are its parameters, *folder* is for its files.

    Raises:
        OptionError: submitit is missing, or refuses the cluster or a parameter.
    """
    parameters = {key: scalar(value) for key, _, value in (word.partition("=") for word in words)}

    def refused(error: Exception) -> OptionError:
        hint = "pip install submitit" * isinstance(error, ImportError)
        return OptionError([Diagnostic("--engine", f"{name}: {text_of(error)}", "command line", suggestion=hint)])

    try:
        submitit: Any = import_module("submitit")
        executor = submitit.AutoExecutor(folder=folder, cluster=name)
        executor.update_parameters(**parameters)
    except Exception as error:
        raise refused(error) from None

    def run(file: str, points: Sequence[Point]) -> Results:
        left: dict[Any, tuple[int, Path]] = {}
        try:
            for number, point, place in points:
                with uninterrupted():  # a job that is not known here could not be cancelled
                    left[executor.submit(run_point, file, point, place)] = number, place
            for job in submitit.helpers.as_completed([*left], poll_frequency=0.5):
                number, place = left.pop(job)
                try:
                    yield number, job.result()
                except Exception as error:  # the job was killed, timed out, or never began: it has no result
                    yield number, result_of(place, 1, f"job {job.job_id}: {text_of(error).strip()}")
        except submitit.core.utils.FailedJobError as error:  # Slurm refuses it
            raise refused(error) from None
        finally:
            for job in left:
                job.cancel()

    return run
