"""What switches change of watched models, and put back: the base of the classes that do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

from msctx.errors import SwitchError
from msctx.native import watched_models


@contextmanager
def plainly() -> Iterator[None]:
    """A change is no part of what the program does: it makes ordinary tensors, records nothing, and is not itself given copies."""
    # not to be interrupted: the guard of inference_mode, kept alive by a traceback, would put back later what was set by then
    with torch.inference_mode(False), torch.no_grad(), torch._C.DisableTorchFunction():
        yield


class Changes:
    """The value of a switch; :attr:`off`: the parts are as the program has made them."""

    off: Any = None

    def __init__(self) -> None:
        self.wanted = self.off
        self.before = WeakIdKeyDictionary()
        """Part → what it had; none is forgotten before it is put back or gone."""
        watched_models.FOLLOWERS.append(self)

    def parts(self, model: nn.Module) -> Iterable[Any]:
        return model.parameters()

    def change(self, model: nn.Module) -> Iterator[tuple[Any, Any]]:
        """Change the parts of a model that are not changed yet; yields each, and what it had."""
        raise NotImplementedError

    def put_back(self, part: Any, before: Any) -> None:
        raise NotImplementedError

    def read(self) -> Any:
        return self.wanted

    def write(self, wanted: Any) -> None:
        """Whatever fails, the value is :attr:`off` then, and an error names what could not be put back."""
        with watched_models.lock:
            if wanted == self.wanted and (wanted != self.off or not self.before):
                return
            self._end_all()
            self.wanted = wanted
            try:
                for model in watched_models.models():
                    self.begin(model)
            except BaseException:
                self._end_all()
                raise

    def begin(self, model: nn.Module) -> None:
        """All parts of a model or, after an error, none."""
        if self.wanted == self.off:
            return
        changed: list[Any] = []
        with watched_models.lock, plainly():
            try:
                for part, before in self.change(model):
                    self.before[part] = before
                    changed.append(part)
            except BaseException:
                self._put_back(changed)
                raise

    def end(self, model: nn.Module) -> None:
        """Nobody watches it now: its parts are put back, unless another watched model has them."""
        if self.before:
            with watched_models.lock:
                others = {id(part) for other in watched_models.models() for part in self.parts(other)}
                self._put_back([part for part in self.parts(model) if id(part) not in others and part in self.before])

    def _end_all(self) -> None:
        self.wanted = self.off
        self._put_back([*self.before])

    def _put_back(self, parts: list[Any]) -> None:
        errors = []
        for part in parts:
            try:
                with plainly():
                    self.put_back(part, self.before.pop(part))
            except (RuntimeError, MemoryError) as error:
                errors.append(error)
        if errors:
            raise SwitchError(f"{len(errors)} modules or weights stay changed: {errors[0]}") from errors[0]
