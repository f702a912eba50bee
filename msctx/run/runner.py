"""Runs an experiment under its options, records it, and puts everything back; SIGTERM ends it as Ctrl-C does."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import yaml

from msctx.context import Context, current
from msctx.context.plans import report
from msctx.context.process_wide import BASE
from msctx.deferred_interrupts import uninterrupted
from msctx.errors import Diagnostic, EntryFailed, FileError, RecordError
from msctx.graph.report import explained
from msctx.native import counter_lifetimes
from msctx.options.layer_sources import collected
from msctx.plan import Plan
from msctx.run import launch
from msctx.run.experiment_and_entry import Experiment, in_a_line, resolve, users_traceback
from msctx.run.record import Record, peaks, plain, reset_peaks
from msctx.state_and_environment import diff, environment, state


class Terminated(SystemExit):
    """SIGTERM came. Not a KeyboardInterrupt, which training loops take for a wish to end well."""


@contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM raises :class:`Terminated`, once, unless somebody handles it; the exit code is that of shells."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    process = os.getpid()

    def terminate(number: int, frame: Any) -> None:
        if os.getpid() != process:  # a worker that was forked
            os._exit(128 + number)
        signal.signal(number, signal.SIG_IGN)
        raise Terminated(128 + number)

    signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


T = TypeVar("T")

_active: list[Run] = []
_TEXT, _NUMBER = "tag:yaml.org,2002:str", tuple("+-.0123456789")


class Run:
    """A run in progress, given to an entry that has a parameter named ``run``."""

    def __init__(self, record: Record, plan: Plan, progress: Any = None) -> None:
        self.record, self.plan, self._progress = record, plan, progress

    @property
    def dir(self) -> Path:
        """The run directory: an entry may write its files there."""
        return self.record.folder

    @property
    def device(self) -> Any:
        """The ``torch.device`` that the options name."""
        return current().device

    def log(self, **metrics: Any) -> None:
        """Append one line to metrics.jsonl; usually once per epoch."""
        self.record.metrics(metrics)
        if self._progress is not None:
            self._progress.log(metrics)

    def progress(self, steps: Iterable[T], description: str = "training") -> Iterator[T]:
        """Go through *steps* with a progress bar on a terminal, a line per :meth:`log` elsewhere."""
        if self._progress is None:
            yield from steps
        else:
            yield from self._progress.track(steps, description)


def log(**metrics: Any) -> None:
    """:meth:`Run.log` of the run in progress, for scripts; outside a run it does nothing."""
    if _active:
        _active[-1].log(**metrics)


def run_experiment(
    experiment: Experiment, out: str | None = None, progress: Any = None, announce: Any = None
) -> dict[str, Any]:
    """Run *experiment* and return what result.json holds.

    Args:
        out: the run directory; default: a new one under ``record.dir``. Of several ranks, each has ``rank_0`` and so on in it.
        progress: shows progress (see :class:`msctx.cli.output.Progress`); default: silent.
        announce: called with the run once it is about to start.

    Raises:
        EntryError: the entry cannot be called; nothing was recorded.
        EntryFailed: the entry raised, as the record shows. Everything is restored.
        RecordError: the entry has ended well, and its record cannot be written. Everything is restored.
        KeyboardInterrupt: Ctrl-C; the record is complete and marked interrupted. Everything is restored.
        Terminated: the same after SIGTERM, unless a handler of the caller is there.
    """
    found, unwritten = state(), list[Diagnostic]()
    with terminable(), ExitStack() as recording:
        with BASE.laid_under(experiment.levels) as plan:
            entry = resolve(experiment)
            record = launch.record(out, experiment.record_dir, experiment.name)
            record.json("plan.json", plan.as_dict())
            record.json("state.json", state())
            record.json("environment.json", environment())
            record.text(
                "config.yaml", yaml.dump(plain(config(experiment)), Dumper=_Dumper, sort_keys=False, allow_unicode=True)
            )
            run = Run(record, plan, progress)
            if announce is not None:
                announce(run)
            from msctx.amp import watched  # here: it needs torch

            counted = Context(origin="run")
            counter_lifetimes.begin(counted)
            with watched() as scaled:
                reset_peaks()
                result, error = _call(entry, run, recording)
                result |= scaled() | peaks()
            counter_lifetimes.end(counted)
            with collected(unwritten, FileError):  # it hides neither the entry's result nor its error
                _write_computed(record, counted.precisions(), counted.choices())
        left = _left_changed(found)
        result["restored"] = not left.keys() & plan.assignments.keys()
        if left:
            result["left_changed"] = left  # by the entry itself, or a library that it loads
        result["run_dir"] = str(record.folder)
        with collected(unwritten, FileError):
            record.json("result.json", result)
        recording.close()  # a signal that came after the entry had ended raises here
    if error is not None:
        raise error
    if unwritten:
        raise RecordError([*unwritten, Diagnostic("", f"the entry ended well: {json.dumps(plain(result))}")])
    report(BASE.ended, plan)
    return result


def _write_computed(record: Record, computed: Any, made: Any) -> None:
    """Write what the entry used: precisions, algorithms."""
    if computed:
        record.json("precisions.json", computed.as_dicts())
    if made:
        record.json("choices.json", made.as_dicts())


def _left_changed(found: Mapping[str, Any]) -> dict[str, Any]:
    """The switches that are not as they were found before the run. A device that nobody had used starts as number 0."""
    from msctx.switches import EXACT, SWITCHES  # here: what comes before a run is decided without torch

    changed = {k: v for k, v in diff(found, state()).items() if k in SWITCHES and SWITCHES[k].restore in EXACT}
    started = {k for k, values in changed.items() if k.endswith(".current_device") and values == (None, 0)}
    return {k: {"found": a, "left": b} for k, (a, b) in changed.items() if k not in started}


def _call(entry: Any, run: Run, recording: ExitStack) -> tuple[dict[str, Any], BaseException | None]:
    """Call the entry; return the result so far and what to raise once everything is restored.

    From its end on Ctrl-C and SIGTERM wait until *recording* is closed.
    """
    began, clock = time.strftime("%Y-%m-%dT%H:%M:%S%z"), time.perf_counter()
    result: dict[str, Any] = {"status": "completed", "started": began}
    error: BaseException | None = None
    _active.append(run)
    try:
        try:
            try:
                returned = entry(run)
            finally:  # however it ends: what a signal raises while its exception is read would leave no result
                (unterminated := uninterrupted()).number = signal.SIGTERM
                recording.enter_context(unterminated)
                recording.enter_context(uninterrupted())
            values = {**returned} if isinstance(returned, Mapping) else {} if returned is None else {"value": returned}
            result = {**values, **result}
        except (KeyboardInterrupt, Terminated) as interrupt:
            result["status"], error = "interrupted", interrupt
            if isinstance(interrupt, Terminated):
                result["reason"] = "SIGTERM"
        except SystemExit as end:
            if isinstance(end.__context__, KeyboardInterrupt):  # Lightning's answer to Ctrl-C
                result["status"], error = "interrupted", end.__context__
            elif end.code not in (None, 0):
                error = EntryFailed(f"the entry ended itself with {end.code!r}; the run is recorded in {run.dir}")
                result["status"], result["error"] = "failed", str(error)
        except EntryFailed as failed:
            result["status"], result["error"], error = "failed", str(failed), failed
        except BaseException as raised:
            text = users_traceback(raised)
            if (why := explained(raised, current().get)) is not None:
                text, raised = f"{text}\n{why}", why
            result["status"], result["error"] = "failed", text
            result["reason"] = in_a_line(raised)
            error = EntryFailed(f"the entry raised; the run is recorded in {run.dir}\n{text}")
    finally:
        _active.remove(run)
        sys.stdout.flush()
    result["seconds"] = round(time.perf_counter() - clock, 3)
    return result, error


class _Dumper(yaml.SafeDumper):
    """Quotes texts that YAML 1.2 takes for numbers, too, such as 1e3."""


_Dumper.add_representer(str, lambda dumper, text: dumper.represent_scalar(_TEXT, text, "'" if text[:1] in _NUMBER else None))


def config(experiment: Experiment) -> dict[str, Any]:
    """The experiment with everything resolved: running this file repeats the run."""
    options: dict[str, Any] = {}
    for layer in experiment.settings.layers:
        for setting in layer.settings.values():
            if setting.via:  # it stands in a file that is named
                continue
            group, _, key = setting.spelling.rpartition(".")
            value = setting.value
            if value and (setting.option.names_file or setting.option.is_output):
                value = str(Path(value).expanduser().resolve())
            (options.setdefault(group, {}) if group else options)[key] = value
    entry = experiment.entry or ""
    path, colon, name = entry.partition(":")
    if path.endswith(".py") and experiment.file and (experiment.file.parent / path).is_file():
        entry = f"{(experiment.file.parent / path).resolve()}{colon}{name}"
    return {
        "context": options,
        "experiment": {"name": experiment.name, "entry": entry, "args": experiment.args},
        "record": {"dir": experiment.record_dir},
    }
