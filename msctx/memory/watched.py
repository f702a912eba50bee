"""The models that :meth:`msctx.Context.watch` names: while one of the contexts that watch a model is open, it is acted on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from msctx import locks
from msctx.native import models as models_
from msctx.native import watching
from msctx.native.models import Model

if TYPE_CHECKING:
    from torch import nn

lock = locks.reentrant()
Listener = Callable[["nn.Module"], None]
_begins: list[Listener] = []
_ends: list[Listener] = []


class Watched:
    """The models of one context: it keeps them from entry to entry. Of the base, which is never left, they are for the process."""

    def __init__(self, *, is_open: bool = False) -> None:
        self._models: dict[Model, None] = {}
        self._entries = int(is_open)
        self._moments: list[int] = []

    def watch(self, model: nn.Module) -> None:
        from torch import nn

        if not isinstance(model, nn.Module):
            raise TypeError(f"watch() takes a torch.nn.Module, not {type(model).__name__}")
        model = models_.unwrapped(model)
        with lock:
            found = models_.record(model)
            if not found.is_as_it_was(model):
                models_.name(found, model)
                watching.watch(found, model)
            if found in self._models:
                return
            self._models = {known: None for known in self._models if known.module() is not None or self._entries}
            self._models[found] = None
            if self._entries and _count(found):
                _tell([model])

    def alive(self) -> list[nn.Module]:
        with lock:
            return [module for model in self._models if (module := model.module()) is not None]

    @contextmanager
    def opening(self) -> Iterator[None]:
        """Around the entry of a context that watches them: it has them when it is entered, and has not when that fails."""
        with lock:
            self._moments.append(now())
            self._entries += 1
            begun = [model.module() for model in self._models if self._entries == 1 and _count(model)]
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
                for model in self._models:
                    _end(model)

    def since(self) -> int:
        """The moment of the last entry that was not left."""
        return self._moments[-1]


def _count(model: Model) -> bool:
    """One more open context watches a model; whether it is the first."""
    if is_first := models_.begin(model):
        watching.turn(model, on=True)
    return is_first


def _tell(begun: Iterable[nn.Module | None]) -> None:
    with lock:
        for model in begun:
            for listener in _begins if model is not None else ():
                listener(model)  # type: ignore[arg-type]


def _end(model: Model) -> None:
    if models_.end(model):
        watching.turn(model, on=False)
        if (module := model.module()) is not None:
            for listener in _ends:
                listener(module)


OF_PROCESS = Watched(is_open=True)


def _forget_the_gone() -> None:
    """The process's: what a context has watched while it was open counts until it is left."""
    while models_.GONE:
        model = models_.GONE.popleft()
        if model in OF_PROCESS._models:
            del OF_PROCESS._models[model]
            _end(model)


def models() -> list[nn.Module]:
    """Those that are acted on now."""
    with lock:
        _forget_the_gone()
        return [module for model in models_.OPEN if (module := model.module()) is not None]


def now() -> int:
    """A moment, for :func:`any_since`."""
    with lock:
        _forget_the_gone()
        return models_.now()


def any_since(moment: int) -> bool:
    """Whether any model was acted on at some time since then, or could be."""
    return models_.now() > moment or bool(models_.OPEN)


def since(moment: int) -> list[nn.Module] | None:
    """Those that were acted on at some time since then; ``None``: some of them are gone."""
    found = models()
    return found if models_.last_end() <= moment and len(found) == len(models_.OPEN) else None


def listen(begin: Listener, end: Listener | None = None) -> None:
    """Call *begin* with each model that is acted on from now on, and *end* with one that is no longer."""
    _begins.append(begin)
    if end is not None:
        _ends.append(end)
