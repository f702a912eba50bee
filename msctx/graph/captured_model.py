"""Whether a model is as it was when it was captured: one walk over its modules, in place of Dynamo's guards on their parts.

Dynamo guards each attribute, weight and absent hook of each module: some thousands in a network, 3 to 8 % of a call of a small one.
"""

from __future__ import annotations

import ctypes
import re
import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from msctx.graph import backend
from msctx.native import core

MODELS = 8
"""How often a model is looked at anew that was not as before; from then on all guards of Dynamo are checked."""
MODULE = "msctx_outermost_module"
"""The name that Dynamo's guards have for it: that of the argument of the function that is captured."""
GUARDS = {
    *("CONSTANT_MATCH", "EQUALS_MATCH", "SEQUENCE_LENGTH", "TYPE_MATCH"),
    *("DICT_KEYS_MATCH", "EMPTY_NN_MODULE_HOOKS_DICT", "NOT_PRESENT_IN_GENERIC_DICT", "TENSOR_MATCH"),
}
"""The kinds of guards that the walk replaces."""
PLACE = re.compile(rf"{MODULE}((?:\._modules\['[^']*'\])*)(?:\._(?:parameters|buffers)\['[^']*'\]|\.(\w+)(\[\d+\])?)?")
DICTIONARIES = {name for name, value in vars(nn.Module()).items() if isinstance(value, dict) and "state_dict" not in name}
"""What a call of a module reads: its parts, weights and hooks."""
CONSTANTS = {type(None), bool, int, float, str, torch.dtype}


def is_constant(value: Any) -> bool:
    return type(value) in CONSTANTS or (type(value) in (tuple, torch.Size) and all(map(is_constant, value)))


class CapturedModel:
    """What the guards on a model's parts compare.

    Attributes:
        told: equal for models that one code is for: keys and constants, which it keeps, types of modules, weights but for values.
        covered: the ids of modules and weights, in the order in which they are met.
    """

    def __init__(self, model: nn.Module, times: int) -> None:
        self.model, self.times = weakref.ref(model), times
        self.told: list[Any] = []
        self.covered = {id(model): 0}
        self._modules, weights, holders = [model], list[int](), list[int]()
        for module in self._modules:  # it grows
            self._tell(module, [(key, is_constant(value) and (type(value), value)) for key, value in vars(module).items()])
            holders += id(module), 1
            for name, of_it in vars(module).items():
                if name in DICTIONARIES and isinstance(of_it, dict):
                    holders += id(of_it), 0
                    self._tell(of_it, [(key, self._part(value, weights)) for key, value in of_it.items()])
        del self._modules
        library = core.load().c
        given = [(ctypes.c_int64 * len(one))(*one) for one in (holders, weights)]
        made = library.msctx_captured_model(given[0], len(holders) // 2, given[1], len(weights))
        weakref.finalize(self, library.msctx_captured_model_delete, made)
        self.holds: Callable[[], int] = partial(library.msctx_captured_model_holds, made)

    def _tell(self, holder: Any, items: list[Any]) -> None:
        self.told.append((weakref.ref(type(holder)), items))

    def _part(self, value: Any, weights: list[int]) -> Any:
        if is_constant(value):
            return type(value), value
        if (known := self.covered.get(id(value))) is not None:
            return known
        if isinstance(value, nn.Module):
            self._modules.append(value)
            self.covered[id(value)] = len(self.covered)
            return nn.Module
        if type(value) in (torch.Tensor, nn.Parameter) and value.layout == torch.strided:
            weights.append(value._cdata)
            self.covered[id(value)] = len(self.covered)
            keys = torch._C._dispatch_keys(value).raw_repr()
            return type(value), value.shape, value.stride(), value.dtype, value.device, value.requires_grad, keys
        return None

    def covers(self, guard: Any) -> bool:
        """Whether the walk finds whatever a guard of Dynamo's would."""
        if guard.guard_type not in GUARDS or not guard.has_value or not (place := PLACE.fullmatch(guard.name)):
            return False
        path, attribute, index = place.groups()
        if not attribute:
            return is_constant(guard.value) or id(guard.value) in self.covered
        owner: Any = self.model()
        for name in re.findall(r"'([^']*)'", path):
            owner = owner._modules[name]
        held = vars(owner).get(attribute, self)
        if index:
            return is_constant(held)
        return held is guard.value and (is_constant(held) or attribute in DICTIONARIES)


class Models:
    """The models of a class for which code holds that has no guards on their parts: those that are as the first one."""

    def __init__(self) -> None:
        self._seen: weakref.WeakKeyDictionary[nn.Module, tuple[CapturedModel, bool]] = weakref.WeakKeyDictionary()
        self._first: list[Any] | None = None

    def fits(self, model: nn.Module, given: Iterable[Any]) -> bool:
        """Whether a call is for that code; not if a weight is given once more, as an argument."""
        found, is_as_first = self._seen.get(model, (None, False))
        if found is None or not found.holds():
            times = found.times + 1 if found else 0
            if times > MODELS:
                return False
            found = CapturedModel(model, times)
            self._first = self._first or found.told
            is_as_first = found.told == self._first
            self._seen[model] = found, is_as_first
        return is_as_first and found.covered.keys().isdisjoint(map(id, given))

    def kept(self, guards: Sequence[Any]) -> list[bool]:
        """Which guards Dynamo has to check."""
        model = backend.here.module
        found = self._seen.get(model, (None,))[0] if model is not None else None
        if found is None or not found.holds():
            return [True] * len(guards)
        return [not found.covers(one) for one in guards]
