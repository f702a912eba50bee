"""Sessions, which run functions under options."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial, wraps
from os import PathLike
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch

from msctx.context import layers_of, ledger
from msctx.context.bound_functions import Bound
from msctx.context.context_manager import Context, refuse_lazy
from msctx.context.open_contexts import Scope, innermost, stack
from msctx.context.plans import within
from msctx.context.process_wide import BASE
from msctx.deferred_interrupts import Turn, uninterrupted
from msctx.devices import here
from msctx.errors import Diagnostic, OptionError, ScopeError, user_frame
from msctx.native import watched_models
from msctx.native.counter_lifetimes import MET
from msctx.options import Layer, make_layer
from msctx.options.layer_sources import with_preset
from msctx.options.precision_policy import ACCELERATE
from msctx.outside_dynamo import outside_dynamo
from msctx.switches.msctx_own import of_session
from msctx.themes.cann_session import LOW_PRECISION
from msctx.themes.precision import POLICY

if TYPE_CHECKING:
    from torch import nn


F = TypeVar("F", bound=Callable[..., Any])
R = TypeVar("R")
T = TypeVar("T")

VARIABLES = {"step": ("STEP_NOW", "TOTAL_STEP"), "loss": ("LOSS_NOW", "TARGET_LOSS")}
"""What ends the phase in low precision → the variables in which a program says how far it is."""
DEVICE_IDS = ("ASCEND_DEVICE_ID", "DEVICE_ID")
"""The variables that name the device of a session where no option does."""


class Session(Context):
    """A context with :meth:`run`; made by :func:`msctx.session`.

    A function that it decorates is run by it: each call enters it, and :meth:`run` calls the function.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._changed, self._inside = threading.Condition(), list[int]()  # of threads in run()
        self._is_full = False  # the phase in low precision is over

    def __call__(self, function: F) -> F:
        super().__call__(function)  # what cannot be decorated raises

        @wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            return self.run(function, *args, **kwargs)

        return cast(F, super().__call__(run))

    @outside_dynamo
    def run(self, function: Callable[..., R], /, *args: Any, **kwargs: Any) -> R:
        """Call *function*, in any thread, under the options of the session; returns what the last call of it returned.

        ``iterations_per_loop`` sets how often it is called, ``graph_run_mode`` in which mode, ``graph_max_parallel_model_num`` in how
        many threads at a time: others wait. While ``experimental_accelerate_train_mode`` is in its first part, it computes in low
        precision.

        Raises:
            TypeError: *function* is a generator or coroutine, whose body would run after the call.
            ScopeError: the session is not open.
            OptionError: a variable that ``experimental_accelerate_train_mode`` reads is not set, or holds no number.
        """
        refuse_lazy(function)
        scope = self._scope or next((s for s in [*BASE.opened] if s.context is self), None)
        if scope is None:
            raise ScopeError(f"the {self.origin} is not open: call run() inside its with-block")
        bound = Bound(self._run, Context(scope.settings.layers, "bound function", self._watched), scope)
        result: R = bound(scope, function, args, kwargs)
        return result

    def set_iteration_per_loop(self, iterations: int) -> None:
        """Check that *iterations* is the ``iterations_per_loop`` in force: the two must be equal in CANN's TensorFlow adapter.

        Raises:
            OptionError: it is another number.
        """
        set_to = self.get("iterations_per_loop")
        if iterations != set_to:
            hint = f"give the session iterations_per_loop={iterations}"
            raise OptionError(
                [Diagnostic("set_iteration_per_loop", f"{iterations} is not iterations_per_loop={set_to}", suggestion=hint)]
            )

    def _run(self, scope: Scope, function: Callable[..., R], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> R:
        MET["run"] += 1
        iterations = of_session("session.iterations_per_loop") or 1
        with Turn() as turn:
            turn.enter_context(self._place(of_session("session.graph_max_parallel_model_num")))
            _begin_mode(of_session("session.graph_run_mode"), scope, turn)
            for _ in range(iterations):
                with Turn() as phase:
                    if policies := self._low_precision():
                        phase.begin(partial(ledger.apply, policies, ledger.Hold(ACCELERATE)), ledger.undo)
                    result = function(*args, **kwargs)
            for device in (torch.cuda, getattr(torch, "npu", None)) if iterations > 1 else ():
                if device is not None and device.is_initialized():
                    device.synchronize()
        return result

    @contextmanager
    def _place(self, most: int | None) -> Iterator[None]:
        """In this block the thread is one of at most so many, for which it waits unless it is inside already."""
        me = threading.get_ident()
        with self._changed:
            self._changed.wait_for(lambda: most is None or me in self._inside or len({*self._inside}) < most)
            self._inside.append(me)
        try:
            yield
        finally:
            with self._changed:
                self._inside.remove(me)
                self._changed.notify_all()

    def _low_precision(self) -> dict[str, Any]:
        """The policies of the phase in low precision, while that goes on: once over, it does not come back."""
        if (requested := of_session(LOW_PRECISION)) and not self._is_full:
            now, whole = map(_number, VARIABLES[requested["until"]])
            end = requested["ratio"] * whole
            self._is_full = now >= round(end, 9) if requested["until"] == "step" else now <= end
        if not requested or self._is_full:
            return {}
        return {POLICY[device]: text for device, text in requested["policies"].items() if device in here()}


def _models(scope: Scope) -> list[nn.Module]:
    """The watched models that are acted on inside a scope, or inside those that are open in it."""
    scopes = stack.scopes if scope in stack.scopes else scope.around
    found = [model for own in (watched_models.OF_PROCESS, *(s.context._watched for s in scopes)) for model in own.alive()]
    return [*{id(model): model for model in found}.values()]


def _begin_mode(mode: str | None, scope: Scope, turn: Turn) -> None:
    if mode is not None:
        models, is_training = _models(scope), mode == "training"
        turn.begin(partial(_take_mode, models, is_training), _give_back)
        for model in models:
            if not (is_training and model.training):  # one in train mode stays as it is: it may have frozen parts
                model.train(is_training)
        with uninterrupted():
            turn.enter_context(torch.inference_mode(not is_training))  # False: with gradients


_Mode = tuple[int, bool, dict["nn.Module", bool]]
"""Of one run: its thread, whether it trains, and each module → whether it was in train mode."""
_modes: list[_Mode] = []
"""A module has one mode for all threads: runs that want the same share it."""
_lock = threading.Lock()


def _take_mode(models: Iterable[nn.Module], training: bool) -> _Mode:
    """Claim models for train or eval mode.

    Raises:
        ScopeError: another thread wants a model in the other mode. Nothing was changed.
    """
    mode: _Mode = threading.get_ident(), training, {}
    with _lock:
        for model in models:
            found = {module: module.training for _, module in watched_models.paths_of(model)}
            if any(there is not training and thread != mode[0] and found.keys() & held for thread, there, held in _modes):
                wanted, other = ("train", "eval") if training else ("eval", "train")
                raise ScopeError(
                    f"{type(model).__name__} cannot go into {wanted} mode: a session of another thread runs it in {other} mode, "
                    "and a model has one for all threads. Give each thread a copy, or run one after the other."
                )
            mode[2].update(found)
        _modes.append(mode)
    return mode


def _give_back(mode: _Mode) -> None:
    """Put each module back, or leave that to the next run that has it."""
    with _lock:
        place = next(place for place, other in enumerate(_modes) if other is mode)
        later = _modes[place + 1 :]
        del _modes[place]
        for module, was in mode[2].items():
            heir = next((held for _, _, held in later if module in held), None)
            if heir is not None:
                heir[module] = was
            elif module.training is not was:
                module.training = was


def _number(name: str) -> float:
    text = os.environ.get(name)
    with suppress(ValueError):
        if text is not None and not math.isnan(found := float(text)):
            return found
    what = "is not set" if text is None else f"is {text!r}, which is no number"
    hint = f"{ACCELERATE} reads it before each call: set os.environ[{name!r}] in the training loop"
    raise OptionError([Diagnostic(name, what, "environment", suggestion=hint)])


def _by_environment(own: tuple[Layer, ...]) -> tuple[Layer, ...]:
    """The device that a variable names, if no option names one."""
    BASE.start()
    settings = within(innermost().settings, own)
    name = next((name for name in DEVICE_IDS if os.environ.get(name)), None)
    if name is None or settings.get("session_device_id") or settings.get("device_id"):
        return ()
    text = os.environ[name].strip()
    if not (text.isascii() and text.isdecimal()):
        hint = "unset it, or name the device: msctx.session(device_id=0)"
        raise OptionError([Diagnostic(name, f"{text!r} is not the number of a device", "environment", suggestion=hint)])
    return (make_layer({"session_device_id": int(text)}, f"environment {name}"),)


@outside_dynamo
def session(preset: str | PathLike[str] | None = None, /, *, device_id: int | None = None, **options: Any) -> Session:
    """A context that is bound to a device and runs functions: ``with msctx.session(graph_run_mode=0) as s: s.run(model, x)``.

    Args:
        preset: as for :func:`msctx.context`.
        device_id: the device, ``session_device_id`` among the options. Where neither that nor the context's ``device_id`` is set, the
            variables ``ASCEND_DEVICE_ID`` and ``DEVICE_ID`` name it, then it is the current one.
        options: as for :func:`msctx.context`; the session options among them act in :meth:`~msctx.context.session_run.Session.run`.

    Raises:
        OptionError: with every problem at once; nothing was changed.
    """
    if device_id is not None:
        if "session_device_id" in options:
            raise OptionError([Diagnostic("device_id", "means session_device_id here, which is given, too: give one of them")])
        options = {"session_device_id": device_id, **options}
    origin = f"session at {user_frame()[0]}"
    layers = layers_of(with_preset(preset, options), origin)
    return Session(_by_environment(layers) + layers, origin)
