"""memory_optimize_level=O1: blocks of watched models run through ``torch.utils.checkpoint``, as few as a cap on memory requires."""

from __future__ import annotations

import itertools
import random
import threading
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from types import MethodType
from typing import Any

import numpy
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.checkpoint import checkpoint

from msctx.memory import offload
from msctx.memory.changes import Changes
from msctx.native import memory as pool
from msctx.native import watched_models
from msctx.native.counter_lifetimes import MET
from msctx.notices import warn
from msctx.options.kinds import Size

CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
MARGIN = 0.05
"""Part of a cap that is not planned for: sizes differ a little from step to step."""
SPECIAL = {"ScriptModule", "FullyShardedDataParallel", "FSDPModule", "SyncBatchNorm"}
NO_BLOCKS = "memory_optimize_level=O1: {} has no blocks, so nothing is recomputed. Put repeated layers into an nn.Sequential"


def blocks(model: nn.Module) -> dict[str, nn.Module]:
    """Paths and modules: the elements of the outermost containers whose elements are of one repeated kind, else the children."""
    found, path = _parts(model, "", repeated=True), ""
    while not found and len(children := [*model.named_children()]) == 1:  # a wrapper, as DistributedDataParallel
        path, model = f"{path}{children[0][0]}.", children[0][1]
    return found or _parts(model, path, repeated=False)


def _parts(module: nn.Module, path: str, *, repeated: bool) -> dict[str, nn.Module]:
    """Those that keep much; of lists and dictionaries, which nobody calls, their elements."""
    kinds = Counter(map(type, module.children())) if isinstance(module, CONTAINERS) else Counter()
    found: dict[str, nn.Module] = {}
    for name, child in module.named_children():
        is_called = not isinstance(child, (nn.ModuleList, nn.ModuleDict))
        is_block = is_called and _is_large(child) and (kinds[type(child)] > 1 or not repeated)
        goes_in = not (is_block and type(child) not in CONTAINERS) if repeated else not is_called
        inside = _parts(child, f"{path}{name}.", repeated=repeated) if goes_in else {}
        found |= inside or ({path + name: child} if is_block else {})
    return found


def _is_large(module: nn.Module) -> bool:
    """Whether a module keeps more than its input and result, which are kept between blocks, too."""
    return isinstance(module, nn.RNNBase) or next(module.children(), None) is not None


def tightest_cap(device: torch.device) -> tuple[int, int, int] | None:
    """Of the tightest cap on a device: the limit, what counts towards it now, and the most that has; ``None``: there is no cap."""
    if device.type == "cpu":
        rows = [(row["limit_bytes"], row["current_bytes"], row["peak_bytes"]) for row in pool.statistics()["caps"]]
        return min(rows, key=lambda row: row[0] - row[1], default=None)
    module: Any = torch.get_device_module(device)
    fraction = getattr(module, "get_per_process_memory_fraction", lambda device: 1.0)(device)
    if fraction >= 1:
        return None
    total = module.get_device_properties(device).total_memory
    return int(fraction * total), module.memory_allocated(device), module.max_memory_allocated(device)


class _Step:
    """Training steps that begin with the same block. The first one recomputes everything and is measured."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.saved: Counter[_Block] = Counter()
        """The bytes that all calls of a block save in the first step."""
        self.needs: int | None = None
        """The peak of the first step beyond what was in use when it began."""
        self.measured: tuple[torch.device, int] | None = None
        """While this is the first step: the device, and what was in use there."""

    def begin(self, device: torch.device) -> None:
        """Choose what is kept: the most blocks that fit under the cap, the smallest first."""
        self.is_over, self.reason = False, "does not fit under the cap"
        self.kept, self.called = set[_Block](), set[_Block]()
        if (cap := tightest_cap(device)) is None:
            self.reason = "there is no cap, and O1 puts memory first"
        elif self.needs is None:
            self.measured, self.reason = (device, cap[1]), "the first step is measured"
        else:
            left = int(cap[0] * (1 - MARGIN)) - cap[1] - self.needs
            for block, size in sorted(self.saved.items(), key=lambda item: item[1]):
                left -= size
                self.kept |= {block} if left >= 0 else set()

    def stop(self) -> None:
        """Its activations are gone: its backward pass ends, or the next step begins."""
        if self.measured is not None and (cap := tightest_cap(self.measured[0])) is not None:
            self.needs = max(0, cap[2] - self.measured[1])
        self.measured = None


_now = threading.local()


def _step_of(block: _Block, size: int, device: torch.device) -> _Step:
    """One begins after a backward pass, or with a block that this one has had, or has not met. Larger inputs are measured again."""
    step: _Step | None = getattr(_now, "step", None)
    if step is None or step.is_over or (step.needs is not None and (block in step.called or block not in step.saved)):
        if step is not None:
            step.stop()
        if block.step is None or block.step.size < size:
            block.step = _Step(size)
        _now.step = step = block.step
        step.begin(device)
    step.called.add(block)
    step.saved[block] += 0
    return step


def _is_special(block: nn.Module) -> bool:
    """A block that is an FSDP module itself gathers its weights outside its forward."""
    inside = [*block.modules()][0 if isinstance(block, torch.jit.ScriptModule) else 1 :]
    return not SPECIAL.isdisjoint(kind.__name__ for module in inside for kind in type(module).__mro__)


def _tensors(inputs: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(inputs) if isinstance(leaf, torch.Tensor)]


def _versions(tensors: Iterable[torch.Tensor]) -> list[int]:
    return [0 if tensor.is_inference() else tensor._version for tensor in tensors]


def _counter(tensor: torch.Tensor) -> torch.Tensor:
    """The version of a tensor, without its memory."""
    found = tensor.detach()
    if type(found) is torch.Tensor and found.layout is torch.strided:
        found.data = torch.empty(0, dtype=found.dtype, device=found.device)
    return found


def _storages(*tensors: torch.Tensor) -> dict[StorageWeakRef, int]:
    """Memory → its bytes; a weak reference keeps the address of memory that is given back."""
    found = (tensor.untyped_storage() for tensor in tensors if tensor.layout is torch.strided)
    return {StorageWeakRef(storage): storage.nbytes() for storage in found}


class _State:
    """What the forward pass of a block may change: attributes and buffers of its modules, random numbers of Python and NumPy."""

    def __init__(self, block: nn.Module) -> None:
        self._tables = [(table, dict(table)) for m in block.modules() for table in (m._parameters, m._buffers, vars(m))]
        self._random = random.getstate(), numpy.random.get_state()
        self._buffers = [(buffer, _versions([buffer]), buffer.clone()) for buffer in block.buffers()]

    def keep_changes(self) -> list[torch.Tensor]:
        """Of the buffers, copies of those that this pass has changed; returns the others."""
        others = [buffer for buffer, version, _ in self._buffers if _versions([buffer]) == version]
        self._buffers = [found for found in self._buffers if _versions(found[:1]) != found[1]]
        return others

    def restore(self) -> None:
        for buffer, _, value in self._buffers:
            buffer.data.copy_(value)  # of .data: its version, which another pass may have saved, stays
        for table, before in self._tables:
            if [*map(id, table.values())] != [*map(id, before.values())]:
                table.clear()
                table.update(before)
        random.setstate(self._random[0])
        numpy.random.set_state(self._random[1])


class _Block:
    """A block of a watched model: it stands in the module's ``__dict__`` as ``forward``, and holds no reference to it."""

    def __init__(self, module: nn.Module, path: str = "") -> None:
        self.module, self.path = weakref.ref(module), path
        self.saved_bytes: int | None = None
        self.recomputed, self.reason = False, "it has not been called with gradients in eager code"
        self.step: _Step | None = None
        self._writes_to_inputs = self._overwrites = False
        self._tried = set[bool]()
        """Whether it trained when a call of it was recomputed from copies of its inputs."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        module: Any = self.module()
        forward = partial(type(module).forward, module)
        if torch.compiler.is_compiling() or not torch.is_grad_enabled() or RECOMPUTE.before.get(module) is not self:
            return forward(*args, **kwargs)
        self.reason, step = self._decide(module, (args, kwargs))
        self.recomputed = step is not None
        if step is None:
            return forward(*args, **kwargs)
        then, kept, passes = _State(module), [*module.parameters()], itertools.count()
        # a graph must not hold what holds it: not the inputs
        inputs_at, at = _versions(_tensors((args, kwargs))), _versions(kept)
        copies = None if module.training in self._tried else tree_map_only(torch.Tensor, torch.clone, (args, kwargs))
        self._tried.add(module.training)

        def run(args: Any, kwargs: Any) -> Any:
            nonlocal copies
            if next(passes) == 0:
                inputs = _tensors((args, kwargs))
                with self._counting(module, inputs, step) if copies or step.measured else nullcontext():
                    result = forward(*args, **kwargs)
                kept.extend(unchanged := then.keep_changes())
                at.extend(_versions(unchanged))
                is_same = [*map(id, inputs)] == [*map(id, _tensors((args, kwargs)))]  # else it writes to a list or dictionary
                self._writes_to_inputs = self._writes_to_inputs or not is_same or inputs_at != _versions(inputs)
                copies = copies if self._writes_to_inputs else None
                return result
            if not step.is_over and torch._C._current_graph_task_id() >= 0:
                step.is_over = True
                torch.autograd.Variable._execution_engine.queue_callback(step.stop)
            if at != _versions(kept) or (copies is None and inputs_at != _versions(_tensors((args, kwargs)))):
                raise RuntimeError(
                    f"parameters, buffers or inputs of {self.path!r} were modified between its forward and its backward pass; "
                    "memory_optimize_level=O1 recomputes it from them"
                )
            if self._overwrites:
                raise RuntimeError(
                    f"{self.path!r} modifies in place what its own backward pass needs, which PyTorch refuses without "
                    "memory_optimize_level=O1, too: use the operator that returns a new tensor"
                )
            args, kwargs = copies or (args, kwargs)
            now = _State(module)
            then.restore()
            try:
                return forward(*args, **kwargs)
            finally:
                now.restore()

        return checkpoint(run, args, kwargs, use_reentrant=False)

    @contextmanager
    def _counting(self, module: nn.Module, inputs: list[torch.Tensor], step: _Step) -> Iterator[None]:
        """Count the bytes saved beside inputs and parameters, which torch's hooks in force drop; see what is overwritten."""
        given, saved = _storages(*inputs, *module.parameters()), dict[StorageWeakRef, int]()
        versions = list[tuple[torch.Tensor, int]]()
        pack, unpack = offload.hooks_in_force()

        def count(tensor: torch.Tensor) -> Any:
            saved.update(_storages(tensor))
            versions.append((counter := _counter(tensor), counter._version))
            return pack(tensor)

        with torch.autograd.graph.saved_tensors_hooks(count, unpack):
            yield
        self._overwrites |= any(tensor._version != version for tensor, version in versions)
        self.saved_bytes = Size(sum(size for storage, size in saved.items() if storage not in given))
        if step.measured:
            step.saved[self] += self.saved_bytes

    def _decide(self, module: nn.Module, inputs: Any) -> tuple[str, _Step | None]:
        """Why this call is recomputed, and in which step; or why it is not."""
        tensors, parameters = _tensors(inputs), [*module.parameters()]
        learns = any(tensor.requires_grad for tensor in (*tensors, *parameters))
        if not learns or any(map(is_lazy, (*parameters, *module.buffers()))):
            return self.reason, None
        if not tensors or torch.jit.is_tracing() or torch._C._functorch.peek_interpreter_stack() is not None:  # type: ignore[attr-defined]
            return "it is traced, transformed by torch.func, or receives no tensors", None
        if (hooks := offload.hooks_in_force()) is not None and hooks[0].__module__ != offload.__name__:
            return "hooks on saved tensors are in force (torch.utils.checkpoint, save_on_cpu)", None
        device = max((tensor.device for tensor in tensors), key=lambda device: device.type != "cpu")
        step = _step_of(self, sum(tensor.nbytes for tensor in tensors), device)
        if self._writes_to_inputs or self.saved_bytes == 0:
            return "it writes to its inputs" if self._writes_to_inputs else "it saves only its inputs", None
        return ("fits under the cap", None) if self in step.kept else (step.reason, step)

    def __deepcopy__(self, memo: dict[int, Any]) -> _Block:
        return _Block(memo[id(self.module())])

    def __reduce__(self) -> Any:
        return getattr, (self.module(), "forward")  # a loaded model has that of its class


# --- all watched models -----------------------------------------------------------------------------------------------

_blocks: weakref.WeakKeyDictionary[nn.Module, _Block] = weakref.WeakKeyDictionary()


class _Recompute(Changes):
    """Whether blocks of all watched models are recomputed."""

    off = False

    def parts(self, model: nn.Module) -> Iterable[nn.Module]:
        return model.modules()

    def change(self, model: nn.Module) -> Iterator[tuple[nn.Module, _Block]]:
        found = {} if isinstance(model, nn.DataParallel) else blocks(model)  # whose copies would call the original
        MET["block"] += len(found)
        if not found:
            warn(NO_BLOCKS.format(type(model).__name__))
        for path, module in found.items():
            block = _blocks.setdefault(module, _Block(module, f"{type(model).__name__}.{path}"))
            if module in self.before:
                continue
            own = None if _is_special(module) else vars(module).get("forward", block)
            if isinstance(own, _Block) or (isinstance(own, MethodType) and own.__func__ is type(module).forward):  # of a copy
                vars(module)["forward"] = block
                yield module, block
            else:
                block.reason = "it holds a scripted module or one that communicates, or its own attribute replaces its forward"

    def put_back(self, part: nn.Module, before: _Block) -> None:
        if vars(part).get("forward") is before:
            del vars(part)["forward"]


RECOMPUTE = _Recompute()


def decisions() -> list[dict[str, Any]]:
    """For each block of each model that was watched under O1: whether its last call was recomputed, and why."""
    with watched_models.lock:
        return [{name: getattr(b, name) for name in ("path", "saved_bytes", "recomputed", "reason")} for b in _blocks.values()]
