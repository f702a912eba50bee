"""What holds outside every with-block: presets, YAML, MSCTX_*, the command line and set_context, until they are reset."""

from __future__ import annotations

import atexit
import json
import os
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from msctx.context.plans import NOTHING, Moment, now, ready_plan, refuse, warn_failing
from msctx.context.unused_options import unmet
from msctx.deferred_interrupts import uninterrupted
from msctx.errors import OptionError, ScopeError
from msctx.graph import report as graphs
from msctx.native import policy_and_choices
from msctx.notices import put_off, warn
from msctx.options import Layer, Setting, Settings
from msctx.options.layer_sources import environment_layers, flatten, note_process
from msctx.options.registry import exclusive
from msctx.plan import Plan

if TYPE_CHECKING:
    from msctx.context.ledger import Hold


MISSED = (
    "PyTorch keeps this per thread, and set_context reached only the thread that called it; "
    "msctx.current().bind(function), called there, carries it into other threads"
)


class Base:
    """The layers below all scopes, by level, and what they have written."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.levels: dict[str, Layer] = {}
        self.settings = Settings()
        self.read_environment = False
        self.plan = NOTHING
        self.hold: Hold | None = None
        self.opened: set[Any] = set()  # the open scopes of every thread, guests left out
        self.tally = policy_and_choices.Tally(Settings())  # of the rules that are set here
        self.since: dict[str, tuple[Setting, Moment]] = {}  # spelling → what is set here, since when
        self.ended: list[str] = []
        atexit.register(self.report_last)

    def start(self) -> None:
        """Read MSCTX_* at the first use of msctx in this process, never at import."""
        with self.lock:
            if not self.read_environment:
                self.read_environment = True  # first: it may import torch, and be called by that
                try:
                    self.change(environment_layers(os.environ))
                except BaseException:
                    self.read_environment = False
                    raise

    def check_closed(self) -> None:
        """Raise where a with-block is open: what lies below it never changes."""
        for scope in [scope for scope in [*self.opened] if scope.who.is_alive()]:
            where = "" if scope.who is threading.current_thread() else " in another thread"
            raise ScopeError(
                f"the {scope.context.origin} is open{where}: set_context and reset_context act outside of all with-blocks. "
                "Leave it first, or set the options in a with-block inside it. Nothing was changed."
            )

    def change(self, levels: Mapping[str, Layer], *, absent: bool = False) -> None:
        """Lay new values over each level's.

        Args:
            absent: a target that is not on this machine may be set: then the options are planned, and nothing is written
                until the target is one that is here.
        """
        if not any(layer.settings for layer in levels.values()):
            return
        with self.lock:
            new = dict(self.levels)
            for level, layer in levels.items():
                new[level] = new.get(level, Layer()).under(layer)
                if problems := list(exclusive(new[level].settings, level)):
                    raise OptionError(problems)
            spellings = {spelling for layer in levels.values() for spelling in layer.settings}
            self._become(new, spellings, absent=absent)

    def missed(self) -> dict[str, str]:
        """Switch → why what is set here does not act in this thread: PyTorch keeps it per thread, and another thread has set it."""
        return dict.fromkeys(self.hold.missed() if self.hold else (), MISSED)

    def take_back(self, level: str, spellings: Collection[str]) -> None:
        """Take settings of one level back, and what the files hold that they name."""
        with self.lock:
            old = self.levels.get(level, Layer())
            kept = {k: s for k, s in old.settings.items() if k not in spellings and s.via not in spellings}
            if len(kept) < len(old.settings):
                self._become({**self.levels, level: Layer(kept, old.lost)}, absent=self.plan.missing)

    def replace(self, level: str, layer: Layer) -> None:
        """Have this layer in the place of a level's."""
        with self.lock:
            new = {**self.levels, level: layer}
            if layer.settings or level in self.levels:
                self._become({name: found for name, found in new.items() if found.settings})

    def reset(self) -> None:
        """Put back what was found before the first value was set, for good: the environment is not read again."""
        from msctx.context import ledger

        with self.lock:
            ledger.settle()
            if self.levels or (self.hold is not None and self.hold.records):
                self._become({})
            self.read_environment = True  # what was taken back would come again with the next use

    @contextmanager
    def laid_under(self, levels: Mapping[str, Layer]) -> Iterator[Plan]:
        """Lay layers under everything a program sets itself (``msctx run``), and take them away with what it set.

        They are all there is below it: MSCTX_* is among them already. :attr:`ended` has what found nothing to act on.
        """
        with self.lock:
            self.read_environment = True
            before = dict(self.levels)
            self.change(levels)
        try:
            yield self.plan
        finally:
            with self.lock:
                self.ended = self.follow(flatten(before))
                self._become(before)
                self.read_environment = bool(before)

    def _become(self, levels: dict[str, Layer], just_set: Collection[str] = (), *, absent: bool = False) -> None:
        from msctx.context import ledger

        self.check_closed()
        settings = Settings([whole := flatten(levels)])
        plan = ready_plan(settings, settings.layers) if settings else NOTHING
        if self.hold is None:
            self.hold = ledger.Hold("set_context", base=True)
        if not plan.missing or not (absent or (self.plan.missing and "device_target" not in just_set)):
            refuse(plan)
        warn_failing(plan, None, told=[r for r in (*self.plan.failing, *self.plan.incomplete) if r.spelling not in just_set])
        fresh = {switch for switch, sources in plan.sources.items() if sources & set(just_set)}
        with put_off(), uninterrupted():  # values and switches change together
            ledger.check_base(plan.written, self.hold, fresh)
            ledger.settle()
            ledger.apply(plan.written, self.hold, strict=plan.strict, fresh=fresh)
            self.hold.sources = plan.sources
            for text in self.follow(whole):
                warn(text)
            self.levels, self.plan, self.settings = levels, plan.without(self.hold.late), settings
            graphs.listen(self, bool(settings))

    def follow(self, new: Layer) -> list[str]:
        """What of the present settings is not among *new* ones and has found nothing to act on; those are followed from now on."""
        kept = {name for name, (one, _) in self.since.items() if name in new.settings and new.settings[name].value == one.value}
        found = self.idle(kept)
        self.since = {name: self.since[name] if name in kept else (one, now()) for name, one in new.settings.items()}
        tally = policy_and_choices.Tally(Settings([new]))
        if tally.rules != self.tally.rules:
            found += self.tally.end()
            self.tally = tally
            if tally.rules and policy_and_choices.IN_FORCE:
                tally.begin()
        return found

    def idle(self, kept: Collection[str] = ()) -> list[str]:
        """What is set here, but for rules and what is *kept*, and has found nothing to act on yet."""
        return [
            text for name, (one, since) in self.since.items() if name not in kept for text in unmet(self.plan, [one], since)
        ]

    def report_last(self) -> None:
        """At the end of the process; ``msctx exec`` reports what did nothing in any of its processes."""
        found = self.idle()
        is_told = bool(self.since) and note_process(os.environ, json.dumps(found))
        for text in (*self.tally.end(), *([] if is_told else found)):
            warn(text)


BASE = Base()
