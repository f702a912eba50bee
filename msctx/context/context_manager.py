"""The context itself: how with-blocks and functions that are decorated enter and leave it, and what it reports."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from functools import wraps
from html import escape
from inspect import isasyncgenfunction, isclass, iscoroutinefunction, isgeneratorfunction
from multiprocessing.process import parent_process
from typing import TYPE_CHECKING, Any, TypeVar, cast

from msctx import notices
from msctx.context import rank_agreement
from msctx.context.child_processes import WorkerInit
from msctx.context.open_contexts import Scope, above_base, close, end_stranded, innermost, stack
from msctx.context.plans import explain, ready_plan, refuse, warn_failing, within
from msctx.context.process_wide import BASE, MISSED
from msctx.deferred_interrupts import uninterrupted
from msctx.errors import MsctxWarning, RestoreError, ScopeError
from msctx.graph import report
from msctx.native.counter_lifetimes import counted
from msctx.native.watched_models import Watched
from msctx.notices import warn
from msctx.options import Layer, Settings
from msctx.options.layer_sources import look_up
from msctx.outside_dynamo import outside_dynamo, untraced
from msctx.plan import Plan

if TYPE_CHECKING:
    import torch
    from torch import nn

    from msctx.amp import GradScaler
    from msctx.context.bound_functions import Bound
    from msctx.native.computed_precisions import Precisions
    from msctx.native.policy_and_choices import Choices

F = TypeVar("F", bound=Callable[..., Any])


def refuse_lazy(function: Callable[..., Any]) -> None:
    """Raise for a function whose body does not run while it is called."""
    if any(is_kind(function) for is_kind in (isgeneratorfunction, iscoroutinefunction, isasyncgenfunction)):
        raise TypeError(
            f"{getattr(function, '__qualname__', repr(function))} is a generator or coroutine: its scope would stay open while other "
            "code runs. Use a with-block inside it, around code that does not yield or await."
        )


class Context:
    """Options, and the scopes in which they hold; made by :func:`context`.

    A with-block enters it; so does each call of a function that it decorates. It may be entered again and nested.
    """

    is_unused = False
    """Whether :func:`context` has made it, with options, and they have not been read since."""

    def __init__(self, layers: tuple[Layer, ...] = (), origin: str = "with-block", models: Watched | None = None) -> None:
        self._layers = layers
        self.origin = origin
        self._watched = Watched() if models is None else models
        self._late: dict[str, str] = {}  # switch → why it could not be written when this was last entered
        self.counters: dict[Any, Any] = {}
        """Kind of :class:`ScopeCounter` → the one of this context, once there has been something to count."""

    @property
    def layers(self) -> tuple[Layer, ...]:
        """Its own options; reading them counts as use of the context."""
        self.is_unused = False
        return self._layers

    def __del__(self) -> None:
        """Warn if it was neither entered nor read."""
        if self.is_unused and parent_process() is None:  # a worker enters what it has to
            text = "was never entered, so its options did nothing: put it into a with statement, or decorate a function with it"
            warnings.warn(
                f"the {self.origin} {text}; msctx.set_context sets options for the process", MsctxWarning, stacklevel=2
            )

    @untraced
    def __enter__(self) -> Context:
        entered: list[Scope] = []
        try:
            _enter(self, entered)
            return self
        except BaseException:  # Ctrl-C too: a with-block whose __enter__ raises is never left
            if entered:
                self.__exit__()
            raise

    @untraced
    def __exit__(self, kind: Any = None, error: Any = None, trace: Any = None) -> None:
        has_begun = False
        try:
            if sys.is_finalizing():  # a generator that nobody has closed: nothing computes any more
                return
            with uninterrupted():
                has_begun = True
                _exit(self, error)
        except KeyboardInterrupt as interruption:
            if not has_begun:  # it came before it was deferred
                self.__exit__(KeyboardInterrupt, interruption)
            raise

    def __reduce__(self) -> tuple[type[Context], tuple[tuple[Layer, ...], str]]:
        return type(self), (self.layers, self.origin)  # what was watched and counted in one process means nothing in another

    def __repr__(self) -> str:
        options = [f"{s.spelling}={s.value!r}" for layer in self.layers for s in layer.settings.values()]
        return f"<msctx.Context {', '.join(options) or 'without options'}; {self.origin}{', open' * bool(self._scope)}>"

    def _repr_html_(self) -> str:
        return f"<code>{escape(repr(self))}</code>{self.plan._repr_html_()}"

    def __call__(self, function: F) -> F:
        """Decorate a function: each call runs inside the context."""
        if isclass(function) or not callable(function):
            raise TypeError(f"msctx.context decorates functions, not {function!r}")
        self.is_unused = False
        refuse_lazy(function)

        @wraps(function)
        def inside(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return cast(F, inside)

    @property
    def _scope(self) -> Scope | None:
        return next((s for s in reversed(stack.scopes) if s.context is self), None)

    @property
    def is_open(self) -> bool:
        """Whether this thread is inside the context."""
        return self._scope is not None

    @property
    def settings(self) -> Settings:
        """Every layer that holds inside this context, the base included."""
        scope = self._scope
        return scope.settings if scope else within(innermost().settings, self.layers)

    def acting(self) -> Settings:
        """The settings but for those that are refused, and those of the base that do not act in this thread."""
        settings, plan = self.settings, self.plan
        left = {row.spelling for row in plan.rows if row.reason == MISSED} | {
            r.spelling for r in plan.failing if r.status != "inert"
        }
        if not left:
            return settings
        kept = ({name: s for name, s in layer.settings.items() if name not in left} for layer in settings.layers)
        return Settings([Layer(found) for found in kept if found])

    @property
    def plan(self) -> Plan:
        """The plan of the options: in force if the context is open in this thread, else as if it were entered now.

        What could not be written when it was last entered, such as a folder, is in the plan afterwards, too.
        """
        scope = self._scope
        plan = scope.plan if scope else explain(self.settings).without(self._late)
        if missed := BASE.missed():
            own = {spelling for layer in self.layers for spelling in layer.settings}
            plan = plan.without({s: why for s, why in missed.items() if plan.sources.get(s, own).isdisjoint(own)}, "inert")
        return plan

    @property
    def device(self) -> torch.device:
        """The device that ``device_target`` and ``device_id`` name; torch's default device if they name none."""
        import torch

        plan = self.plan
        if plan.target is None:
            return torch.get_default_device()
        kind = {"CPU": "cpu", "GPU": "cuda", "Ascend": "npu"}[plan.target]
        try:
            return torch.device(kind) if kind == "cpu" or plan.device_id is None else torch.device(kind, plan.device_id)
        except RuntimeError:  # torch knows npu only once torch_npu is there
            refuse(plan)
            raise

    def get(self, name: str) -> Any:
        """The value of an option in force inside this context; see :func:`get_context`."""
        return look_up(name, self.acting(), self.plan.main_device).value

    def choices(self) -> Choices:
        """Which algorithm each convolution and matmul ran while this context was open, and why: a row for each problem."""
        from msctx.native import policy_and_choices

        if self.origin == "base":
            return policy_and_choices.rows()
        return counted(self, policy_and_choices.Tally, policy_and_choices.Tally.choices, policy_and_choices.Choices())

    def precisions(self) -> Precisions:
        """In which dtype each operator computed while this context was open, by which option, and how many casts were inserted."""
        from msctx.native import computed_precisions

        if self.origin == "base":
            return computed_precisions.of_process()
        return counted(self, computed_precisions.Tally, computed_precisions.Tally.precisions, computed_precisions.Precisions())

    def graphs(self) -> report.Graphs:
        """What was compiled while this context was open: graph breaks and what to change, recompilations and why, times, caches.

        By graph mode, by :func:`msctx.jit` and by the program itself (``torch.compile``).
        """
        if self.origin == "base":
            return report.of_process()
        return counted(self, report.Tally, report.Tally.graphs, report.Graphs())

    def grad_scaler(self, **options: Any) -> GradScaler:
        """A GradScaler for :attr:`device`, enabled exactly if a precision_mode computes in float16; *options* are its arguments."""
        from msctx.amp import scaler_for

        return scaler_for(self.plan, self.device.type, options)

    def watch(self, model: nn.Module) -> Context:
        """Name the modules of *model* by their paths in :meth:`choices` and in rules, and let options of memory act on it.

        That holds while this context is open, and again whenever it is entered again: it keeps its models. Contexts inside it act on
        them, too; others do not. Outside every with-block ``msctx.current().watch(model)`` holds for the process.
        """
        with uninterrupted():
            self._watched.watch(model)
        return self

    @property
    def worker_init_fn(self) -> WorkerInit:
        """For ``DataLoader(..., worker_init_fn=ctx.worker_init_fn)``: workers run only under this context, until they end.

        Without it, they run under the options of the thread that starts them. It can be pickled, and called from
        your function.
        """
        scope = self._scope
        return WorkerInit(above_base(scope.settings) if scope else self.layers)

    def bind(self, function: Callable[..., Any]) -> Bound:
        """Carry this context into another thread, or into a worker process (it can be pickled if *function* can)."""
        from msctx.context.bound_functions import Bound

        whole = Context(self.settings.layers, "bound function", self._watched)
        return Bound(function, whole, self._scope, here=not self.layers)


@outside_dynamo
def _enter(context: Context, entered: list[Scope]) -> None:
    from msctx.context import ledger

    scopes, own, context.is_unused = stack.scopes, context._layers, False
    if len(BASE.opened) > len(scopes):
        end_stranded()
    with BASE.lock:  # what is below does not change meanwhile
        if not BASE.read_environment:
            BASE.start()
        around = innermost()
        settings, plan = around.settings, around.plan
        if own:
            settings = within(settings, own)
            refuse(plan := ready_plan(settings, own))
        if (c10d := sys.modules.get("torch.distributed.distributed_c10d")) is not None and c10d.is_initialized():
            rank_agreement.check(plan)
        if own and (plan.failing or plan.incomplete):
            warn_failing(plan, own, around.plan)  # before anything is written: warnings may be errors
        with uninterrupted():
            hold = None
            try:
                context._watched.open()
                if own:
                    new = ledger.Hold(context.origin, sources=plan.sources)
                    hold = ledger.apply(plan.beyond(around.plan, own), new, strict=plan.strict)
                    context._late = hold.late
                    if hold.late:
                        plan = plan.without(hold.late)
                scope = Scope(context, settings, plan, hold)
            except BaseException:
                if hold is not None:
                    ledger.undo(hold, quiet=True)
                context._watched.close()
                raise
            entered.append(scope)  # first: what is on the stack is known to whoever undoes this
            scopes.append(scope)
            BASE.opened.add(scope)


@outside_dynamo
def _exit(context: Context, error: Any) -> None:
    scopes = stack.scopes
    mine = next((s for s in reversed(scopes) if s.context is context and not s.leaving), None)
    if mine is None:
        what = f"the {context.origin} is not open in this thread: leave it once, in the thread that entered it"
        if error is None:
            raise ScopeError(f"{what}; msctx.current().bind(fn) carries it into others")
        notices.warn_or_print(what)  # the block's own exception goes on
        return
    inner = scopes[-1]
    if inner is not mine and isinstance(error, GeneratorExit):  # it has passed by none of those inside
        mine.leaving = True
        warn(f"the {context.origin} of a generator that was closed stays in force until the {inner.context.origin} is left")
        return
    why = None
    if error is not None:
        why = report.explained(error, lambda name: look_up(name, mine.settings, mine.plan.main_device).value)
    try:
        close(mine, error)
    except (RestoreError, MsctxWarning) as unrestored:
        if error is None:
            raise
        wrong: BaseException | None = unrestored
        while isinstance(wrong, RestoreError | MsctxWarning):  # the block's own exception goes on
            notices.warn_or_print(str(wrong))
            wrong = wrong.__context__
    if inner is not mine:
        what = f"the {context.origin} was left before the {inner.context.origin} inside it; both are closed"
        if error is None:
            raise ScopeError(f"{what}. Leave the inner one first, as `with` does")
        warn(what)  # an exception has passed by whoever was to leave it
    if why is not None:
        raise why from error
