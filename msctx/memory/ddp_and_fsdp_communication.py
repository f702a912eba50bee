"""How watched models communicate: when DistributedDataParallel reduces gradients, and when FSDP2 gathers weights.

A communication hook decides when DDP reduces. DDP cannot lose one: outside, the hook reduces each bucket as DDP does by default.
"""

import sys
from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from msctx import notices
from msctx.memory.changes import Changes

BUNDLE = 4 * 25 * 2**20
"""Bytes from which a bundle of buckets is sent; DDP's buckets have 25 MiB."""
KEEPS_ITS_HOOK = "{}: no effect on {}, which has the communication hook {}"
NOT_SHARDED = "{}: no effect on FSDP modules, which free the gradients of whole weights as they reduce them"


class _Reducer:
    """The state of the hook of one model: the buckets of this backward pass that were not sent, and the messages on their way."""

    def __init__(self, group: Any) -> None:
        self.group, self.ways = group, set[str]()
        self.waiting: list[tuple[torch.Tensor, Any]] = []
        self._sent: list[tuple[Any, torch.Tensor, list[tuple[torch.Tensor, Any]]]] = []

    def add(self, bucket: Any) -> Any:
        buffer = bucket.buffer()
        done: Any = torch.futures.Future(devices=None if buffer.device.type == "cpu" else [buffer.device])
        self.waiting.append((buffer, done))
        least = BUNDLE if "bundled" in self.ways else 0
        if bucket.is_last() or ("postponed" not in self.ways and sum(one.nbytes for one, _ in self.waiting) >= least):
            self._send(least)
        if bucket.is_last():
            self._finish()
        return done

    def _send(self, least: int) -> None:
        bundles: list[list[tuple[torch.Tensor, Any]]] = []
        for one in self.waiting:
            last = bundles[-1] if bundles else []
            fits = last and last[0][0].dtype == one[0].dtype and torch.strided == last[0][0].layout == one[0].layout
            if fits and sum(buffer.nbytes for buffer, _ in last) < least:
                last.append(one)
            else:
                bundles.append([one])
        self.waiting.clear()
        for bundle in bundles:
            message = bundle[0][0] if len(bundle) == 1 else torch.cat([buffer for buffer, _ in bundle])
            message.mul_(1 / self.group.size())
            self._sent.append((dist.all_reduce(message, group=self.group, async_op=True), message, bundle))

    def _finish(self) -> None:
        sent, self._sent = self._sent, []
        for work, message, bundle in sent:
            work.wait()
            if len(bundle) > 1:
                for (buffer, _), part in zip(bundle, message.split([buffer.numel() for buffer, _ in bundle]), strict=True):
                    buffer.copy_(part)
            for buffer, done in bundle:
                done.set_result(buffer)


def reduce(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore[name-defined]
    """The communication hook."""
    if state.ways:
        return state.add(bucket)  # type: ignore[no-any-return]
    buffer = bucket.buffer().mul_(1 / state.group.size())
    return dist.all_reduce(buffer, group=state.group, async_op=True).get_future().then(lambda done: done.value()[0])  # type: ignore[no-any-return]


_reducers: WeakKeyDictionary[nn.Module, _Reducer] = WeakKeyDictionary()


def data_parallel(model: nn.Module) -> Iterator[Any]:
    if dist.is_available():
        yield from (module for module in model.modules() if isinstance(module, DistributedDataParallel))


class _Way(Changes):
    """Whether the reducers of models reduce in one way."""

    off = False

    def __init__(self, way: str, option: str) -> None:
        super().__init__()
        self.way, self.option = way, option

    def parts(self, model: nn.Module) -> Iterator[Any]:
        return data_parallel(model)

    def change(self, model: nn.Module) -> Iterator[tuple[Any, None]]:
        for parallel in data_parallel(model):
            if parallel not in _reducers:
                if hook := _hook(parallel):
                    notices.warn(KEEPS_ITS_HOOK.format(self.option, type(parallel.module).__name__, hook))
                    continue
                _reducers[parallel] = _Reducer(parallel.process_group)
                parallel.register_comm_hook(_reducers[parallel], reduce)
            _reducers[parallel].ways.add(self.way)
            yield parallel, None
        if next(modules(model), None) is not None:
            notices.warn(NOT_SHARDED.format(self.option))

    def put_back(self, part: Any, before: None) -> None:
        _reducers[part].ways.discard(self.way)


def _hook(parallel: Any) -> str:
    """What reduces its gradients in place of DDP: a communication hook, or compiled autograd."""
    if parallel._use_python_reducer:
        return "torch.compile"
    return str(parallel._get_ddp_logging_data().get("comm_hook", ""))


POSTPONED, BUNDLED = _Way("postponed", "enable_grad_comm_opt, hcom_parallel"), _Way("bundled", "enable_task_opt")


# --- FSDP2: weights are gathered while the module before computes, or just before use -------------------------------------


class _Ahead(Changes):
    """Whether one module ahead is gathered; ``None``: as the program has it."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way

    def parts(self, model: nn.Module) -> Iterator[Any]:
        return modules(model)

    def change(self, model: nn.Module) -> Iterator[tuple[Any, tuple[list[Any], list[Any]]]]:
        """What a module had is the list that was found, and the list in its place."""
        order = _in_order(model, self.way)
        for place, module in enumerate(order):
            if module in self.before:
                continue
            following = [one for one in order[place + 1 :] if _has_weights(one)][:1] if self.wanted else []
            if not self.wanted and self.way == "backward":
                following = [module]  # FSDP prefetches by itself if the list is empty; this module is gathered already
            found = _list(module, self.way)
            getattr(module, f"set_modules_to_{self.way}_prefetch")(following)
            yield module, (found, _list(module, self.way))

    def put_back(self, part: Any, before: tuple[list[Any], list[Any]]) -> None:
        """A list that the program has set since stays."""
        found, chosen = before
        if _list(part, self.way) is chosen:
            setattr(part._get_fsdp_state(), f"_states_to_{self.way}_prefetch", found)


def modules(module: nn.Module, *, backward: bool = False) -> Iterator[Any]:
    """The FSDP modules in a module, in the order of the pass if they run in the order in which they were registered."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is not None and isinstance(module, fsdp.FSDPModule):
        yield module
    children = [*module.children()]
    for child in reversed(children) if backward else children:
        yield from modules(child, backward=backward)


def _in_order(model: nn.Module, way: str) -> list[Any]:
    """One of those that share a state."""
    order = modules(model, backward=way == "backward")
    return [*{id(module._get_fsdp_state()): module for module in reversed([*order])}.values()][::-1]


def _list(module: Any, way: str) -> list[Any]:
    """FSDP has setters of these lists, and no getters."""
    found: list[Any] = getattr(module._get_fsdp_state(), f"_states_to_{way}_prefetch")
    return found


def _has_weights(module: Any) -> bool:
    state = module._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None)  # torch 2.12 and later
    return bool(groups) if groups is not None else state._fsdp_param_group is not None


FORWARD, BACKWARD = _Ahead("forward"), _Ahead("backward")
