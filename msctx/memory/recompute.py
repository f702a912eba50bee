"""Blocks of watched models whose activations are computed again in the backward pass, as many as a cap on memory asks for."""

from __future__ import annotations

import math
import sys
import weakref
from collections.abc import Callable, Collection
from contextlib import nullcontext
from functools import wraps
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.parameter import is_lazy
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.checkpoint import checkpoint

from msctx.memory import watched
from msctx.memory.budget import Budget
from msctx.memory.replay import Rehearsal, State, Trial, hook_of_user, is_gone, is_rehearsing, own_containers
from msctx.memory.sources import sources_of
from msctx.memory.writes import CannotBePutBack
from msctx.native.installed import Held
from msctx.notices import tell

CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


LONG = 4
"""Modules in a row, from which on they are worth grouping."""


def blocks(model: nn.Module) -> dict[str, nn.Module]:
    """The repeated parts of a model by their paths: what its outermost containers hold and has modules of its own.

    A container inside a container is looked into, and so is an element that holds such containers itself. A long ``Sequential`` that
    is no part of a block, and has none, is one to be cut into groups (see :class:`_Row`). A model without any of these is one block.
    """
    found: dict[str, nn.Module] = {}

    def look(module: nn.Module, path: str, is_element: bool) -> bool:
        """Whether there is a block in a module; a row is none, if there may be one around it."""
        inside = False
        for name, child in module.named_children():
            inside |= look(child, f"{path}.{name}" if path else name, isinstance(module, CONTAINERS))
        below = [row for row in found if not path or row.startswith(f"{path}.")]
        if inside or (isinstance(module, CONTAINERS) and (below or not is_row(module))):
            return inside
        if isinstance(module, CONTAINERS):
            found[path] = module
        elif is_element and any(True for _ in module.children()):
            for row in below:
                del found[row]
            found[path] = module
            return True
        return False

    look(model, "", False)
    return found or ({"": model} if any(True for _ in model.children()) else {})


def is_row(module: nn.Module) -> bool:
    return isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward and len(module) >= LONG


# --- one call ---------------------------------------------------------------------------------------------------------

COMPILED = (
    "memory_optimize_level=O1: {} runs compiled, where none of its blocks are computed again; what a compiled graph keeps is the "
    "compiler's choice (torch._functorch.config.activation_memory_budget)"
)
HOOKS = "calls of its modules run hooks, which would run again"
PROFILED = (
    "a profiler runs (sys.setprofile), so that the code it calls cannot be seen: it is tried in the next pass without one"
)
WHOLE = "it is all that could be computed again, and cutting it into groups would save nothing"
TRIALS = 2
"""How often a block is tried: what its first call does, which may make what it lacks, need not be what all others do."""
Call = Callable[..., Any]
"""``nn.Module.__call__`` as it was found."""


class _Block:
    """A block of a watched model."""

    def __init__(self, budget: Budget, path: str) -> None:
        self.budget, self.path = budget, path
        self._rehearsals: dict[tuple[bool, ...], tuple[Rehearsal, int]] = {}
        """Modes of its modules → what a trial has shown, and how many there were."""

    def run(self, call: Call, block: nn.Module, args: Any, kwargs: Any) -> Any:
        known = self._tried(call, block, args, kwargs)
        if known is None or known.obstacle or not self.budget.recomputes(self.path):
            return call(block, *args, **kwargs)
        args, kwargs = own_containers(args), own_containers(kwargs)
        names, count = [*kwargs], len(args)
        forwards = iter([self.budget.measured(self.path, (args, kwargs))])

        def function(*values: Any) -> Any:
            """With keywords as positions: checkpoint has some of their names, and finds devices in what has none."""
            with next(forwards, nullcontext()):  # when it is computed again, nothing is measured
                return call(block, *values[:count], **dict(zip(names, values[count:], strict=True)))

        sources = sources_of(block, (args, kwargs)) if known.draws else []
        state = State(self.path, block, known, sources)
        both = state.fingerprints.taking(), state
        return checkpoint(function, *args, *kwargs.values(), use_reentrant=False, context_fn=lambda: both)

    def _tried(self, call: Call, block: nn.Module, args: Any, kwargs: Any) -> Rehearsal | None:
        """What is known of the block in the modes that its modules have now; ``None``: it is left alone this time."""
        if hook_of_user(block):
            self.budget.leave(self.path, HOOKS)
            return None
        if any(is_lazy(parameter) for parameter in block.parameters()):
            return None  # its first pass makes it what it is
        modes = tuple(module.training for module in block.modules())
        known, times = self._rehearsals.get(modes, (None, 0))
        if known is None or (known.obstacle and times < TRIALS):
            if sys.getprofile():
                self.budget.leave(self.path, PROFILED)
                return None
            known = Rehearsal(call, block, args, kwargs)
            self._rehearsals[modes] = known, times + 1
        self.budget.leave(self.path, known.obstacle)
        return known


class _Row:
    """A long ``Sequential`` of a watched model: groups of its modules are blocks.

    How they are cut follows from what each module saves for its backward pass, which its first call shows: so that what is kept
    between the groups, and the largest group beside it, are least.
    """

    def __init__(self, budget: Budget, path: str, *, is_only: bool) -> None:
        """*is_only*: the model has no other blocks."""
        self.budget, self._path, self._is_only = budget, path, is_only
        self._paths = [path]
        """Those that it has in the budget."""
        self._groups: list[tuple[int, int, _Block]] = []
        self._obstacle = ""

    def run(self, forward: Call, row: nn.Sequential, x: torch.Tensor) -> Any:
        modules = list(row)
        if any(is_lazy(parameter) for parameter in row.parameters()):
            return forward(row, x)
        if hook_of_user(row):
            return self._leave(HOOKS, forward, row, x)
        if not self._groups or self._groups[-1][1] != len(modules):
            if sys.getprofile():
                return self._leave(PROFILED, forward, row, x)
            self._cut(modules, x)
        if self._obstacle:
            return self._leave(self._obstacle, forward, row, x)
        for begin, end, block in self._groups:
            x = block.run(forward, nn.Sequential(*modules[begin:end]), (x,), {})
        return x

    def _leave(self, reason: str, forward: Call, row: nn.Sequential, x: torch.Tensor) -> Any:
        for path in self._paths:
            self.budget.leave(path, reason)
        return forward(row, x)

    def _cut(self, modules: list[nn.Module], x: torch.Tensor) -> None:
        cuts, self._obstacle = [0, len(modules)], ""
        try:
            cuts = best_cuts(*measured_modules(modules, x))
        except CannotBePutBack as reason:
            self._obstacle = str(reason)
        except Exception as error:  # the real call raises it, too
            self._obstacle = f"trying it fails: {type(error).__name__}: {error}"
        else:
            if len(cuts) == 2 and self._is_only:
                self._obstacle = WHOLE
        for path in self._paths:
            self.budget.paths.remove(path)
        self._groups = [(b, e, _Block(self.budget, f"{self._path}[{b}:{e}]")) for b, e in pairwise(cuts)]
        self._paths = [block.path for _, _, block in self._groups]
        self.budget.paths += self._paths


Sizes = dict[int, int]
"""Number of a storage → its bytes."""


def measured_modules(modules: list[nn.Module], x: torch.Tensor) -> tuple[list[Sizes], list[Sizes], set[int]]:
    """What each of some modules in a row is given, what it saves for its backward pass, and which write to what they are given: a
    trial, as of a block.
    """
    given: list[Sizes] = []
    saved: list[Sizes] = []
    writing: set[int] = set()
    with Trial(nn.Sequential(*modules), ((x,), {})) as trial:
        numbers = {parameter.untyped_storage()._cdata for parameter in trial.block.parameters()}
        held: list[Any] = []  # or another storage would get the number of one that is gone

        def pack(tensor: torch.Tensor) -> None:
            storage = tensor.untyped_storage()
            if storage._cdata not in numbers:
                held.append(StorageWeakRef(storage))
                saved[-1][storage._cdata] = storage.nbytes()

        ((x,), _) = trial.inputs
        assert isinstance(trial.block, nn.Sequential)
        with torch.autograd.graph.saved_tensors_hooks(pack, is_gone):  # nothing is kept
            for module in trial.block:
                storage = x.untyped_storage()
                held.append(StorageWeakRef(storage))
                given.append({storage._cdata: storage.nbytes()})
                saved.append({})
                before, version = x, x._version
                x = module(x)
                if before._version != version:
                    writing.add(len(saved) - 1)
    return given, saved, writing


def best_cuts(given: list[Sizes], saved: list[Sizes], writing: Collection[int] = ()) -> list[int]:
    """Where to cut, so that what the groups are given and the largest group beside it are least: the first and the end included.

    A group that begins with a module that writes to what it is given could not be computed again. Of all ways to cut into groups
    below some size, the one that keeps least is found from left to right; then of those below its largest, until nothing is gained.
    """
    sizes = [_group_sizes(given[begin], saved[begin:]) for begin in range(len(saved))]
    best, least, limit = [0, len(saved)], math.inf, math.inf
    while (found := _least_kept(given, sizes, writing, limit)) is not None and found[0] < least:
        kept, cuts = found
        largest = max(sizes[begin][end - begin - 1] for begin, end in pairwise(cuts))
        if kept + largest < least:
            best, least = cuts, kept + largest
        limit = largest
    return best


def _group_sizes(given: Sizes, saved: list[Sizes]) -> list[int]:
    """What the groups save that begin with the first of some modules, beside what they are given."""
    inside: Sizes = {}
    found = []
    for more in saved:
        inside |= {key: size for key, size in more.items() if key not in given}
        found.append(sum(inside.values()))
    return found


def _least_kept(
    given: list[Sizes], sizes: list[list[int]], writing: Collection[int], limit: float
) -> tuple[int, list[int]] | None:
    """What is kept between groups that are all smaller than *limit*, and their cuts."""
    count = len(sizes)
    best: dict[int, tuple[int, list[int]]] = {0: (0, [0])}
    for end in range(1, count + 1):
        if end in writing:
            continue
        ways = []
        for begin in [begin for begin in best if sizes[begin][end - begin - 1] < limit]:
            before, cuts = best[begin]
            # What is passed on as it is, is kept once
            more = {key: size for key, size in given[end].items() if key not in given[begin]} if end < count else {}
            ways.append((before + sum(more.values()), [*cuts, end]))
        if ways:
            best[end] = min(ways)
    return best.get(count)


def _can_recompute() -> bool:
    """Not where nothing is saved for a backward pass, nor where torch takes no hooks on what is saved."""
    return (
        torch.is_grad_enabled()
        and not is_rehearsing()
        and not torch.jit.is_tracing()  # type: ignore[attr-defined]  # torch.jit lacks it in its __all__
        and torch._C._functorch.peek_interpreter_stack() is None
        and torch.autograd.forward_ad._current_level < 0
    )


# --- all watched models -----------------------------------------------------------------------------------------------

_budgets: weakref.WeakKeyDictionary[nn.Module, Budget] = weakref.WeakKeyDictionary()
"""What has been found about each watched model: it stays from scope to scope, which may be as short as a step."""
_blocks: weakref.WeakKeyDictionary[nn.Module, _Block] = weakref.WeakKeyDictionary()
_rows: weakref.WeakKeyDictionary[nn.Module, _Row] = weakref.WeakKeyDictionary()


def _install() -> Callable[[], None]:
    """Put ours in place of ``nn.Module.__call__`` and ``nn.Sequential.forward``: modules stay as they are, so copies, pickles and
    traces of them do too.
    """
    call, forward = nn.Module.__call__, nn.Sequential.forward
    installed = True
    step = register_optimizer_step_post_hook(lambda *_: _stepped())

    @wraps(call)
    def our_call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if not installed or torch.compiler.is_compiling() or not _can_recompute():
            return call(self, *args, **kwargs)
        model: Any = self
        if "_orig_mod" in self._modules:  # of a model that torch.compile has wrapped; a scripted one's have no get()
            model = self._modules["_orig_mod"]
        if (budget := _budgets.get(model)) is not None and budget.is_open():
            if model is not self or self._compiled_call_impl is not None:
                tell("memory_optimize_level", COMPILED, COMPILED.format(type(model).__name__))
            budget.begin((args, kwargs))
        if (block := _blocks.get(self)) is not None and block.budget.is_open():
            return block.run(call, self, args, kwargs)
        return call(self, *args, **kwargs)

    @wraps(forward)
    def our_forward(self: nn.Sequential, input: Any) -> Any:
        if not installed or torch.compiler.is_compiling() or not isinstance(input, torch.Tensor) or not _can_recompute():
            return forward(self, input)
        if (row := _rows.get(self)) is not None and row.budget.is_open():
            return row.run(forward, self, input)
        return forward(self, input)

    nn.Module.__call__ = our_call  # type: ignore[method-assign]
    nn.Sequential.forward = our_forward  # type: ignore[method-assign]

    def remove() -> None:
        nonlocal installed
        installed = False
        if nn.Module.__call__ is our_call:  # else somebody has wrapped it meanwhile
            nn.Module.__call__ = call  # type: ignore[method-assign]
        if nn.Sequential.forward is our_forward:
            nn.Sequential.forward = forward  # type: ignore[method-assign]
        step.remove()
        for budget in _all_budgets():
            budget.end_window()

    return remove


def _all_budgets() -> list[Budget]:
    with watched.lock:
        return list(_budgets.values())


def _stepped() -> None:
    for budget in _all_budgets():
        budget.step()


_recomputation = Held(_install)
_on = False


def read() -> bool:
    return _on


def write(on: bool) -> None:
    """Recompute blocks of all watched models, those watched later too; ``False``: as torch does."""
    global _on
    with watched.lock:
        if on != _on:
            _on = on
            _recomputation.want(1) if on else _recomputation.release(1)
            for model in watched.models():
                _take_on(model)


def decisions() -> list[dict[str, Any]]:
    """For each block of each model that was watched under O1: what was found, and whether it is recomputed."""
    with watched.lock:
        budgets = [(type(model).__name__, budget) for model, budget in _budgets.items()]
    rows = [(name, row) for name, budget in budgets for row in budget.rows()]
    return [{**row._asdict(), "path": f"{name}.{row.path}".rstrip(".")} for name, row in rows]


def _take_on(model: nn.Module) -> None:
    if not _on:
        return
    with watched.lock:
        if model in _budgets:
            return
        found = {path: block for path, block in blocks(model).items() if block not in _blocks and block not in _rows}
        device = next((parameter.device for parameter in model.parameters()), None)
        budget = Budget([*found], device, watched.number_of(model))
        _budgets[model] = budget
        for path, block in found.items():
            if is_row(block):
                _rows[block] = _Row(budget, path, is_only=len(found) == 1)
            else:
                _blocks[block] = _Block(budget, path)


watched.listen(_take_on)
