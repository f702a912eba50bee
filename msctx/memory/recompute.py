"""Blocks of watched models whose activations are computed again in the backward pass, as many as a cap on memory asks for."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Collection
from functools import partial, wraps
from itertools import pairwise
from typing import Any

import torch
from torch import _C, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.parameter import is_lazy
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from msctx.memory import watched
from msctx.memory.block_state import Known, hook_of_user
from msctx.memory.budget import Budget, counting_saved
from msctx.memory.communication import is_one_of_several
from msctx.memory.replay import LOOKS, NESTED, OTHER_RESULTS, Call, Pass, is_alone
from msctx.native import module_calls
from msctx.native.installed import Held
from msctx.notices import warn

CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
LARGE = (nn.RNNBase, nn.MultiheadAttention)
"""Modules of torch without modules of their own that keep much."""
LONG = 4
"""Modules in a row, from which on they are worth grouping."""


def blocks(model: nn.Module) -> dict[str, nn.Module]:
    """The repeated parts of a model by their paths: what its outermost containers hold and has modules of its own.

    A container inside a container is looked into, and so is an element that holds such containers itself. A long ``Sequential`` that
    is no part of a block, and has none but short ones, is one to be cut into groups (see :class:`_Row`). A model without any of
    these is cut into its own children, and one whose children have none is one block.
    """
    found: dict[str, nn.Module] = {}
    short: set[str] = set()
    """Those that are elements of a container, and short ``Sequential`` themselves."""

    def look(module: nn.Module, path: str, is_element: bool) -> bool:
        """Whether there is a block in a module; a row is none, if there may be one around it."""
        inside = False
        for name, child in module.named_children():
            inside |= look(child, f"{path}.{name}" if path else name, isinstance(module, CONTAINERS))
        below = [row for row in found if not path or row.startswith(f"{path}.")]
        if inside or (isinstance(module, CONTAINERS) and not short.issuperset(below)):
            return inside
        if is_row(module):
            for row in below:
                del found[row]
            found[path] = module
        elif is_element and is_worth_it(module) and not isinstance(module, (nn.ModuleList, nn.ModuleDict)):
            for row in below:
                del found[row]
            found[path] = module
            if isinstance(module, nn.Sequential):
                short.add(path)
                return False
            return True
        return False

    look(model, "", False)
    return found or _children(model, "") or ({"": model} if any(True for _ in model.children()) else {})


def _children(module: nn.Module, path: str) -> dict[str, nn.Module]:
    """Those children that are worth it, of a module with at least two of them."""
    named = ((f"{path}{name}", child) for name, child in module.named_children() if name != "parametrizations")
    found = {name: child for name, child in named if is_worth_it(child)}
    if len(found) == 1 == len([*module.children()]):
        ((name, child),) = found.items()
        return _children(child, f"{name}.")
    return found


def is_worth_it(module: nn.Module) -> bool:
    """Whether a module keeps more than what is given to it and what it makes, which are kept between blocks, too."""
    if isinstance(module, nn.Sequential):
        return len(module) > 2
    return isinstance(module, LARGE) or any(name != "parametrizations" for name, _ in module.named_children())


def is_row(module: nn.Module) -> bool:
    return isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward and len(module) >= LONG


# --- one call ---------------------------------------------------------------------------------------------------------

COMPILED = (
    "memory_optimize_level=O1: {} runs compiled, where none of its blocks are computed again; what a compiled graph keeps is the "
    "compiler's choice (torch._functorch.config.activation_memory_budget)"
)
ADVANCED = (
    "memory_optimize_level=O1: block {!r} gave other results when it was computed again to try that, and is left as it is; what it "
    "changes outside of tensors (an object of a library, a file) has changed twice"
)
HOOKS = "calls of its modules run hooks, which would run again: {}"
PROFILED = (
    "a profiler runs (sys.setprofile), so that the code it calls cannot be seen: it is tried in the next pass without one"
)
WHOLE = "it is all that could be computed again, and cutting it into groups would save nothing"


Case = tuple[Any, ...]
"""Of a call of a block: all that decides what it saves for its backward pass, but for values and shapes."""
MOST_CASES = 64
AUTOCAST = ("cpu", "cuda")


def _case(block: nn.Module, args: Any, kwargs: Any) -> Case:
    def kind(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return type(leaf), leaf.dtype, leaf.requires_grad
        return leaf if isinstance(leaf, bool | str | None) else type(leaf)

    modules = (
        (module.training, type(module), *map(kind, module._parameters.values()), *map(kind, module._buffers.values()))
        for module in block.modules()
    )
    low = [torch.get_autocast_dtype(device) for device in AUTOCAST if torch.is_autocast_enabled(device)]
    return (is_one_of_several(), *low, *modules, len(args), *kwargs, *map(kind, tree_leaves((args, kwargs))))


def _in_the_way(block: nn.Module, *inputs: Any) -> str:
    """What holds for this call, whatever was found of the block."""
    if any(isinstance(leaf, torch.Tensor) and leaf.is_nested for leaf in tree_leaves(inputs)):
        return NESTED
    if hook := hook_of_user(block):
        return HOOKS.format(hook)
    if any(isinstance(module, torch.jit.ScriptModule) for module in block.modules()):
        return "it holds a scripted module, whose state cannot be put back"
    pack = (_C._autograd._top_saved_tensors_default_hooks(True) or (None,))[0]
    if getattr(pack, "__module__", "") == "torch.utils.checkpoint":
        return "it runs inside torch.utils.checkpoint, which computes it again already"
    if pack is not None and not (getattr(pack, "__module__", None) or "").startswith(("msctx.", "torch.")):
        return (
            "hooks on saved tensors are in force (torch.autograd.graph.saved_tensors_hooks), which would not see what it saves"
        )
    return ""


class _Block:
    """A block of a watched model."""

    def __init__(self, budget: Budget, path: str) -> None:
        self.budget, self.path = budget, path
        self._known: dict[Case, Known] = {}

    def run(self, call: Call, block: nn.Module, args: Any, kwargs: Any) -> Any:
        self.budget.meet(self.path, (args, kwargs))
        known = self._known.get(case := _case(block, args, kwargs), Known())
        if case not in self._known and len(self._known) >= MOST_CASES:
            known = Known(LOOKS, "it is called with too many kinds of arguments")
        looks = not known.looks or (known.obstacle and known.looks < LOOKS)
        if reason := _in_the_way(block, args, kwargs) or (PROFILED if looks and sys.getprofile() else ""):
            self.budget.leave(self.path, reason)
            return call(block, *args, **kwargs)
        if not self.budget.recomputes(self.path) or any(map(is_lazy, (*block.parameters(), *block.buffers()))):
            return call(block, *args, **kwargs)  # the first pass of a lazy module makes it what it is
        if looks:
            learn = partial(self._learn, case)
            made, known = Pass.looked_at(self.path, call, block, (args, kwargs), known.looks + 1, learn)
            learn(known)
            self.budget.leave(self.path, known.obstacle)
            if known.obstacle == OTHER_RESULTS:
                warn("memory_optimize_level", self.path, ADVANCED.format(self.path))
            return made
        self.budget.leave(self.path, known.obstacle)
        if known.obstacle:
            return call(block, *args, **kwargs)
        return Pass(self.path, call, block, (args, kwargs), known).run(self.budget.measured(self.path, (args, kwargs)))

    def _learn(self, case: Case, known: Known) -> None:
        if case in self._known or len(self._known) < MOST_CASES:
            self._known[case] = known


class _Row:
    """A long ``Sequential`` of a watched model: groups of its modules are blocks.

    They are cut evenly in the first pass, which shows what each module saves for its backward pass; from then on so that what is
    kept between the groups, and the largest group beside it, are least.
    """

    def __init__(self, budget: Budget, path: str, *, is_only: bool) -> None:
        """*is_only*: the model has no other blocks."""
        self.budget, self._path, self._is_only = budget, path, is_only
        self._paths = [path]
        """Those that it has in the budget."""
        self._groups: list[tuple[int, int, _Block]] = []
        self._obstacle = ""

    def run(self, forward: Call, row: nn.Sequential, x: torch.Tensor) -> Any:
        if any(map(is_lazy, (*row.parameters(), *row.buffers()))):
            return forward(row, x)
        modules, measured = [*row], None
        is_new = not self._groups or self._groups[-1][1] != len(modules)
        if (
            reason := _in_the_way(row)
            or (PROFILED if is_new and sys.getprofile() else "")
            or ("" if is_new else self._obstacle)
        ):
            for path in self._paths:
                self.budget.leave(path, reason)
            return forward(row, x)
        if is_new:
            self._cut(even_cuts(modules))
            measured = _Measured()
        for begin, end, block in self._groups:
            x = block.run(measured.call(begin) if measured else forward, nn.Sequential(*modules[begin:end]), (x,), {})
        if measured:
            self._cut(best_cuts(measured.given, measured.saved, measured.writing))
        return x

    def _cut(self, cuts: list[int]) -> None:
        self._obstacle = WHOLE if len(cuts) == 2 and self._is_only else ""
        self._groups = [(b, e, _Block(self.budget, f"{self._path}[{b}:{e}]")) for b, e in pairwise(cuts)]
        before, self._paths = self._paths, [block.path for _, _, block in self._groups]
        self.budget.divide(before, self._paths)


Sizes = dict[int, int]
"""Number of a storage → its bytes."""


class _Measured:
    """What each module of a row is given in a pass, what it saves for its backward pass, and which write to what they are given."""

    def __init__(self) -> None:
        self.given: list[Sizes] = []
        self.saved: list[Sizes] = []
        self.writing: set[int] = set()
        self._references: list[StorageWeakRef] = []  # or another storage would get the number of one that is gone

    def call(self, begin: int) -> Call:
        """A call of the group that begins there; only the first counts."""

        def call(group: nn.Sequential, x: Any) -> Any:
            for number, module in enumerate(group, begin):
                x = module(x) if number < len(self.given) else self._measure(module, x)
            return x

        return call

    def _measure(self, module: nn.Module, x: Any) -> Any:
        tensors = [t for t in tree_leaves(x) if isinstance(t, torch.Tensor) and t.layout is torch.strided]
        storages, versions = [t.untyped_storage() for t in tensors], [t._version for t in tensors]
        self._references += map(StorageWeakRef, storages)
        self.given.append({storage._cdata: storage.nbytes() for storage in storages})
        with counting_saved([], self._references) as sizes:
            self.saved.append(sizes)
            made = module(x)
        if [t._version for t in tensors] != versions:
            self.writing.add(len(self.given) - 1)
        return made


def even_cuts(modules: list[nn.Module]) -> list[int]:
    """As many groups as each has modules; none begins with a module that says that it works in place."""
    cuts = range(0, len(modules), math.isqrt(len(modules)))
    return [*(cut for cut in cuts if not cut or not getattr(modules[cut], "inplace", False)), len(modules)]


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
    """Not where nothing is saved for a backward pass, where torch takes no hooks on what is saved, or a mode sees each call."""
    return (
        torch.is_grad_enabled()
        and not is_alone()
        and _C._autograd._saved_tensors_hooks_is_enabled()  # type: ignore[attr-defined]
        and not torch.jit.is_tracing()  # type: ignore[attr-defined]  # torch.jit lacks it in its __all__
        and _C._functorch.peek_interpreter_stack() is None
        and torch.autograd.forward_ad._current_level < 0
        and not _C._len_torch_dispatch_stack()
        and all(isinstance(mode, DeviceContext) for mode in _get_current_function_mode_stack())
    )


# --- all watched models -----------------------------------------------------------------------------------------------

_budgets: WeakIdKeyDictionary = WeakIdKeyDictionary()  # a module may have no hash
"""What has been found about each watched model: it stays from scope to scope, which may be as short as a step."""
_blocks: WeakIdKeyDictionary = WeakIdKeyDictionary()
_rows: WeakIdKeyDictionary = WeakIdKeyDictionary()


def _call(call: Call, module: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
    if torch.compiler.is_compiling() or not _can_recompute():
        return call(module, *args, **kwargs)
    model: Any = module
    if "_orig_mod" in module._modules:  # of a model that torch.compile has wrapped; a scripted one's have no get()
        model = module._modules["_orig_mod"]
    if (budget := _budgets.get(model)) is not None and budget.is_open():
        if model is not module or module._compiled_call_impl is not None:
            warn("memory_optimize_level", COMPILED, COMPILED.format(type(model).__name__))
        budget.begin((args, kwargs))
    if (block := _blocks.get(module)) is not None and block.budget.is_open():
        return block.run(call, module, args, kwargs)
    return call(module, *args, **kwargs)


def _install() -> Callable[[], None]:
    """Put ours around the calls of modules, and in place of ``nn.Sequential.forward``."""
    forward = nn.Sequential.forward
    installed = True
    step = register_optimizer_step_post_hook(lambda *_: _stepped())

    @wraps(forward)
    def our_forward(self: nn.Sequential, input: Any) -> Any:
        if not installed or torch.compiler.is_compiling() or not isinstance(input, torch.Tensor) or not _can_recompute():
            return forward(self, input)
        if (row := _rows.get(self)) is not None and row.budget.is_open():
            return row.run(forward, self, input)
        return forward(self, input)

    module_calls.put(_call, 2)
    nn.Sequential.forward = our_forward  # type: ignore[method-assign]

    def remove() -> None:
        nonlocal installed
        installed = False
        module_calls.take(_call)
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
    """For each block of each model that was watched under O1: what was found, and whether it was recomputed when it last ran so."""
    with watched.lock:
        budgets = [(type(model).__name__, budget) for model, budget in _budgets.items()]
    rows = [(name, row) for name, budget in budgets for row in budget.rows()]
    return [{**row._asdict(), "path": f"{name}.{row.path}".rstrip(".")} for name, row in rows]


def _is_taken(block: nn.Module) -> bool:
    """Whether it is a block of another model that is watched now."""
    return any((found := table.get(block)) is not None and found.budget.is_open() for table in (_blocks, _rows))


def _take_on(model: nn.Module) -> None:
    if not _on:
        return
    with watched.lock:
        if model in _budgets:
            return
        found = {path: block for path, block in blocks(model).items() if not _is_taken(block)}
        device = next((parameter.device for parameter in model.parameters()), None)
        budget = Budget([*found], device, watched.number_of(model))
        _budgets[model] = budget
        for path, block in found.items():
            if is_row(block):
                _rows[block] = _Row(budget, path, is_only=len(found) == 1)
            else:
                _blocks[block] = _Block(budget, path)


watched.listen(_take_on)
