"""The models that :meth:`msctx.Context.watch` names: while one of the contexts that watch a model is open, it is acted on."""

from __future__ import annotations

import itertools
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from msctx import locks
from msctx.native import named_modules, watching

if TYPE_CHECKING:
    from torch import nn

lock = locks.reentrant()
_numbers: weakref.WeakKeyDictionary[nn.Module, int] = weakref.WeakKeyDictionary()
"""Each model that was ever watched has a number."""
_next = itertools.count(1)
_open: Counter[int] = Counter()
"""Number of a model → how many open contexts watch it."""
_times = 0
"""How often a model has begun or ceased to be acted on."""
_gone: deque[int] = deque()
"""Numbers of models that have died. Garbage collection may report one at any moment: whoever asks next forgets them."""

Listener = Callable[["nn.Module"], None]
_begins: list[Listener] = []
_ends: list[Listener] = []


class Watched:
    """The models of one context: it keeps them from entry to entry. Of the base, which is never left, they are for the process."""

    def __init__(self, *, is_open: bool = False) -> None:
        self._models: dict[int, weakref.ref[nn.Module]] = {}
        self._entries = int(is_open)
        self._moments: list[int] = []

    def watch(self, model: nn.Module) -> None:
        from torch import nn

        if not isinstance(model, nn.Module):
            raise TypeError(f"watch() takes a torch.nn.Module, not {type(model).__name__}")
        with lock:
            number = _numbers.get(model)
            if number is None:
                number = _numbers[model] = next(_next)
            named_modules.watch(model)
            watching.watch(model, number)
            if number in self._models:
                return
            self._models = {known: ref for known, ref in self._models.items() if ref() is not None or self._entries}
            self._models[number] = weakref.ref(model, lambda _: _gone.append(number))
            if self._entries and _count(number):
                _tell([model])

    @contextmanager
    def opening(self) -> Iterator[None]:
        """Around the entry of a context that watches them: it has them when it is entered, and has not when that fails."""
        with lock:
            self._moments.append(now())
            self._entries += 1
            begun = [reference() for number, reference in self._models.items() if self._entries == 1 and _count(number)]
        try:
            _tell(begun)
            yield
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        with lock:
            self._moments.pop()
            self._entries -= 1
            if not self._entries:
                for number, reference in self._models.items():
                    _end(number, reference())

    def since(self) -> int:
        """The moment of the last entry that was not left."""
        return self._moments[-1]


def _count(number: int) -> bool:
    """One more open context watches a model; whether it is the first."""
    global _times
    _open[number] += 1
    if _open[number] > 1:
        return False
    _times += 1
    watching.turn(number, on=True)
    named_modules.turn(number, watching.model_of(number), on=True, moment=_times)
    return True


def _tell(begun: Iterable[nn.Module | None]) -> None:
    with lock:
        for model in begun:
            for listener in _begins if model is not None else ():
                listener(model)  # type: ignore[arg-type]


def _end(number: int, model: nn.Module | None) -> None:
    global _times
    _open[number] -= 1
    if _open[number]:
        return
    del _open[number]
    _times += 1
    watching.turn(number, on=False)
    named_modules.turn(number, model, on=False, moment=_times)
    if model is not None:
        for listener in _ends:
            listener(model)


OF_PROCESS = Watched(is_open=True)


def _forget_the_gone() -> None:
    """The process's: what a context has watched while it was open counts until it is left."""
    while _gone:
        number = _gone.popleft()
        if OF_PROCESS._models.pop(number, None) is not None:
            _end(number, None)


def models() -> list[nn.Module]:
    """Those that are acted on now."""
    with lock:
        _forget_the_gone()
        return [model for number in _open if (model := watching.model_of(number)) is not None]


def number_of(model: nn.Module) -> int:
    return _numbers[model]


def is_open(number: int) -> bool:
    return number in _open


def now() -> int:
    """A moment, for :func:`any_since`."""
    with lock:
        _forget_the_gone()
        return _times


def any_since(moment: int) -> bool:
    """Whether any model was acted on at some time since then, or could be."""
    return _times > moment or bool(_open)


def listen(begin: Listener, end: Listener | None = None) -> None:
    """Call *begin* with each model that is acted on from now on, and *end* with one that is no longer."""
    _begins.append(begin)
    if end is not None:
        _ends.append(end)
