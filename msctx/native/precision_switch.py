"""Precision policies as a switch of each thread, and in which dtype operators computed under them: precisions()."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch.utils import checkpoint

from msctx.native import core, counter_lifetimes, module_tracker, precision_in_modules_and_steps, precision_policies
from msctx.native.counter_lifetimes import Held
from msctx.native.precision_policies import Policy
from msctx.options.precision_policy import LEAVE, precision_of
from msctx.outside_dynamo import passed_over
from msctx.tables import Row, Rows

if TYPE_CHECKING:
    import numpy as np

    Counts = dict[int, np.ndarray[Any, Any]]
    """Number of a policy → for each operator what has been counted: see precision.COUNTED."""


@dataclass
class State:
    """What a thread had of one device, to be put back as it was found; or, where an autocast around it has ended, as that left it."""

    policy: Policy | None
    enabled: bool
    dtype: Any
    known: Any


def read(device: str) -> str | None:
    """The canonical text of the policy in force in this thread; with a remark where somebody else switched autocast since."""
    policy = precision_policies.here.now.policies.get(device)
    if policy is None:
        return None
    word = precision_policies.words()[device]
    if (is_on := torch.is_autocast_enabled(word)) == policy.means.is_off:
        return f"{policy.text} (autocast was switched {'on' if is_on else 'off'})"
    dtype = str(torch.get_autocast_dtype(word)).removeprefix("torch.")
    return policy.text if policy.means.low in ("", dtype) else f"{policy.text} (autocast's dtype was set to {dtype})"


def save(device: str) -> State:
    word, known = precision_policies.words()[device], None
    if precision_policies.here.now.policies:
        core.load().c.msctx_precision_here(
            precision_policies.DEVICES.index(device), ctypes.byref(known := precision_policies.Known())
        )
    policy = precision_policies.here.now.policies.get(device)
    return State(policy, torch.is_autocast_enabled(word), torch.get_autocast_dtype(word), known)


def load(device: str, state: State) -> None:
    c, place, word = core.load().c, precision_policies.DEVICES.index(device), precision_policies.words()[device]
    _put(device, state.policy)
    torch.set_autocast_enabled(word, state.enabled)
    torch.set_autocast_dtype(word, state.dtype)
    if state.policy is None:
        c.msctx_precision_restore(place)
        state.enabled, state.dtype = torch.is_autocast_enabled(word), torch.get_autocast_dtype(word)
    c.msctx_precision_know(place, None if state.known is None else ctypes.byref(state.known))
    precision_policies.note_autocast()


def write(device: str, text: str) -> None:
    """Put a policy in force in this thread for the operators of one kind of device."""
    policy, word = precision_policies.policy_of(text), precision_policies.words()[device]
    if not policy.means.is_off:
        precision_policies.install(device)
    _put(device, policy)
    torch.set_autocast_enabled(word, not policy.means.is_off)
    if policy.means.low:
        torch.set_autocast_dtype(word, getattr(torch, policy.means.low))
    core.load().c.msctx_precision_know(precision_policies.DEVICES.index(device), None)
    precision_policies.note_autocast()


def _put(device: str, policy: Policy | None) -> None:
    """For the kernels, for the guards of compiled code, and for what is kept of that on disk."""
    now = precision_policies.here.now
    after = {name: one for name, one in {**now.policies, device: policy}.items() if one is not None}
    for one in (*now.policies.values(), *after.values()):
        one.thaw()
    now.policies, now.number = after, precision_policies.combination_of({name: one.number for name, one in after.items()})
    _install()
    module_tracker.drop_ended()
    now.current = precision_in_modules_and_steps.number_wanted()
    core.load().c.msctx_precision_switch(now.current)
    precision_in_modules_and_steps.policies_changed()


numbers: set[int] = set()
"""Of the policies that are in force in any thread, or around a checkpoint there."""
_threads: WeakKeyDictionary[threading.Thread, list[Policy]] = WeakKeyDictionary()
_lock = threading.Lock()
"""Held while what is installed changes."""


def _install() -> None:
    """What the policies of this thread and of all others need, before they are in force."""
    here = precision_policies.here
    with _lock:
        around = [*here.stack, *filter(None, [here.next])]
        _threads[threading.current_thread()] = [policy for one in around for policy in one.policies.values()]
        found = [policy for thread, policies in _threads.items() if thread.is_alive() for policy in policies]
        wanted = {number for policy in found for number in policy.numbers}
        if not wanted <= numbers:
            numbers.update(wanted)
            counter_lifetimes.note(Tally)
        numbers.intersection_update(wanted)
        for held, wants in (
            (precision_in_modules_and_steps.in_modules, any(p.modules for p in found)),
            (_autocasts, bool(found)),
        ):
            held.want(wants - held.holders)


# --- autocasts and checkpoints ----------------------------------------------------------------------------------------
# Where the dtype of an autocast is the policy's own, nothing that the guards of compiled code look at distinguishes the two: torch
# does not guard how deeply autocasts are nested. And a checkpoint keeps nothing of its forward pass but the autocast around it.
# torch.autocast calls torch.set_autocast_cache_enabled last, when it is entered and when it is left; a checkpoint takes what it will
# enter again from torch.utils.checkpoint._get_autocast_kwargs. While a policy is in force these two note what is overruled, and let a
# checkpoint carry its policy along, also to a backward pass that begins after the block.


class Arguments(dict[str, Any]):
    """The arguments of the autocast that a checkpoint enters last, with the policies of its forward pass.

    That they are taken, by ``**``, shows that the checkpoint is about to be computed again.
    """

    def __init__(self, arguments: dict[str, Any]) -> None:
        super().__init__(arguments)
        now = precision_policies.here.now
        self.carried = precision_policies.InForce(now.policies, core.load().c.msctx_precision_number(), frozenset(now.models))

    def __iter__(self) -> Iterator[str]:  # without it ** would not request the keys
        return super().__iter__()

    def keys(self) -> Any:
        precision_policies.here.next = replace(self.carried)
        _install()
        return super().keys()


@contextmanager
def _replaced() -> Iterator[None]:
    set_cache, arguments_of = torch.set_autocast_cache_enabled, checkpoint._get_autocast_kwargs

    def set_autocast_cache_enabled(*args: Any, **kwargs: Any) -> None:
        set_cache(*args, **kwargs)
        caller = sys._getframe(1).f_locals.get("self")
        depth = len(precision_policies.here.stack)
        precision_policies.note_autocast(caller.device if isinstance(caller, torch.autocast) else None)
        if len(precision_policies.here.stack) < depth:  # a checkpoint has been computed again
            _install()

    def _get_autocast_kwargs(*args: Any, **kwargs: Any) -> Any:
        device, cpu = arguments_of(*args, **kwargs)
        return device, Arguments(cpu) if precision_policies.here.now.policies else cpu

    passed_over(set_autocast_cache_enabled, _get_autocast_kwargs)
    ours = (torch, set_autocast_cache_enabled, set_cache), (checkpoint, _get_autocast_kwargs, arguments_of)
    for module, function, _ in ours:
        setattr(module, function.__name__, function)
    by_jit = torch._C._jit_set_autocast_mode(False)  # TorchScript inserts the casts of torch's own lists into its graphs
    with precision_in_modules_and_steps.acting_in_steps():
        yield
    torch._C._jit_set_autocast_mode(by_jit)
    for module, function, found in ours:
        if getattr(module, function.__name__) is function:  # else somebody has wrapped it since
            setattr(module, function.__name__, found)


_autocasts = Held(_replaced)


@dataclass(frozen=True, slots=True)
class Computed(Row):
    """How the calls of one operator were computed.

    Attributes:
        operator: PyTorch's name, all its overloads together.
        module: the path of the module whose name a rule has, else ``""``.
        dtype: what it computed in: that of its first floating input after casts; ``"traced"``: calls that were traced for compiled
            code, which runs without being counted.
        calls: how often.
        casts: how many casts were inserted for all calls of this operator, of whatever dtype; in its first row.
        computed_again: how many of its calls had no kernel for 16 bits and were repeated in float32.
        backward: whether these calls computed gradients, which have the dtypes of their forward pass.
        why: the option that decided; ``"torch.autocast"``: one inside the block, and *dtype* is that of the result; ``""``: no
            policy applies to it.
    """

    operator: str
    module: str
    dtype: str
    calls: int
    casts: int
    computed_again: int
    why: str
    backward: bool = False


class Precisions(Rows[Computed]):
    """Rows of what computed in which dtype, by operator. Prints as a table."""

    EMPTY = "no operator has run under a precision policy"
    ROW = Computed

    def _table(self) -> tuple[tuple[str, ...], Iterator[list[str]]]:
        again = ("computed_again",) if any(row.computed_again for row in self) else ()
        backward = ("backward",) if any(row.backward for row in self) else ()
        columns = ("operator", "module", *backward, "dtype", "calls", "casts", *again, "why")
        return columns, ([str(getattr(row, name)) for name in columns] for row in self)


class Tally:
    """What was counted while a context was open, by whichever of its scopes."""

    def __init__(self, context: Any) -> None:
        self._since: Counts = {}  # where the policies stood that were in force since
        self._made: Counts = {}

    def begin(self) -> None:
        self._since |= precision_policies.counts(number for number in [*numbers] if number not in self._since)

    def end(self) -> list[str]:
        if not self._since:
            return []
        self._made, self._since = self._sum(), {}
        return precision_in_modules_and_steps.left_over()

    def _sum(self) -> Counts:
        made = {number: found - self._since[number] for number, found in precision_policies.counts(self._since).items()}
        return self._made | {number: self._made.get(number, 0) + found for number, found in made.items()}

    def precisions(self) -> Precisions:
        return Precisions(_rows(self._sum()))


counter_lifetimes.SOURCES[Tally] = numbers


def of_process() -> Precisions:
    """Everything that was computed under policies in this process."""
    return Precisions(_rows(precision_policies.counts([*precision_policies.TEXTS])))


def _rows(made: Counts) -> Iterator[Computed]:
    for number, found in made.items():
        text, module = precision_policies.TEXTS[number]
        policy = precision_of(text)
        rules = {**policy.rules, **policy.modules.get(module, {})}
        for place in dict.fromkeys(found.nonzero()[0]):  # the rows that hold a count
            counted = dict(zip(precision_policies.COUNTED, (int(n) for n in found[place]), strict=True))
            name = precision_policies.OPS[place]
            casts, again = counted.pop("casts"), counted.pop("again")
            for dtype, calls in counted.items():
                if calls and dtype.startswith(precision_policies.AUTOCAST):
                    yield Computed(name, module, dtype.removeprefix(precision_policies.AUTOCAST), calls, 0, 0, "torch.autocast")
                elif calls and dtype.startswith(precision_policies.BACKWARD):
                    yield Computed(
                        name, module, dtype.removeprefix(precision_policies.BACKWARD), calls, 0, 0, "", backward=True
                    )
                elif calls:
                    why = rules.get(name, LEAVE).why or ("enable_reduce_precision" if again else "")
                    yield Computed(name, module, dtype, calls, casts, again, why)
                    casts = again = 0
