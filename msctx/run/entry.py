"""Finds the entry of an experiment, a function or a script, and calls it."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import runpy
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from msctx.errors import EntryError, EntryFailed, did_you_mean
from msctx.run.config import Experiment
from msctx.shipped import CONFIGS

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
            raise EntryError(f"entry {entry!r}: there is no file {target} beside {experiment.file or 'the command'}")
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
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return lambda run: function(**experiment.args)
    wants_run = "run" in signature.parameters and "run" not in experiment.args
    try:
        signature.bind(**experiment.args, **({"run": None} if wants_run else {}))
    except TypeError as wrong:
        raise EntryError(f"entry {experiment.entry!r}: {wrong}; it takes {signature}") from None
    return lambda run: function(**experiment.args, **({"run": run} if wants_run else {}))


def _script(path: Path, args: Mapping[str, Any]) -> Entry:
    """A script runs as ``__main__``; its arguments stand on its command line as ``--name=value``."""

    def call(run: Any) -> dict[str, Any]:
        argv, folder = sys.argv, str(path.parent)
        sys.argv = [str(path), *(f"--{k}={v}" for k, v in args.items())]
        sys.path.insert(0, folder)
        try:
            runpy.run_path(str(path), run_name="__main__")
        except SystemExit as end:
            if end.code not in (None, 0):
                raise EntryFailed(f"{path.name} ended with exit code {end.code}") from None
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
