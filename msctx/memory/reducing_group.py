"""The process group that a watched DistributedDataParallel model asks to reduce its gradients."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import _C
from torch._C import _distributed_c10d as c10d
from torch._C._distributed_c10d import AllreduceOptions, ProcessGroup, Work
from torch.autograd import Variable

from msctx.memory.bucket_sizes import Search

if TYPE_CHECKING:
    from torch.nn.parallel import DistributedDataParallel

BUNDLE = 4 * 25 * 2**20
"""From how many bytes on a bundle of buckets is sent; DDP's buckets have 25 MiB."""
Tensors = list[torch.Tensor]


class _Reduction:
    """One all-reduce that DDP asked for. Autograd's engine holds it as a callback: with a backward pass that fails it is gone."""

    def __init__(self, tensors: Tensors, options: Any, at_the_end: Callable[[], None]) -> None:
        devices: list[int | str | torch.device] = [tensor.device for tensor in tensors if tensor.device.type != "cpu"]
        self.tensors, self.options, self.at_the_end = tensors, options, at_the_end
        self.done: torch.futures.Future[Tensors] = torch.futures.Future(devices=devices or None)

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors if tensor.layout is torch.strided)

    @property
    def kind(self) -> tuple[Any, ...]:
        """Those that follow each other and are of one kind can be one message."""
        first = self.tensors[0]
        alone = len(self.tensors) > 1 or first.layout is not torch.strided
        return (first.dtype, first.device, id(self) if alone else 0)

    def __call__(self) -> None:
        self.at_the_end()


class _Message:
    """Some reductions as one collective."""

    def __init__(self, group: ProcessGroup, reductions: Sequence[_Reduction]) -> None:
        self._reductions = [weakref.ref(one) for one in reductions]
        first = reductions[0]
        self.tensors = first.tensors
        if len(reductions) > 1:
            self.tensors = [torch.cat([reduction.tensors[0].reshape(-1) for reduction in reductions])]
        self.work = group.allreduce(self.tensors, first.options)

    @property
    def reductions(self) -> list[_Reduction]:
        """None, where the backward pass that asked for them has failed."""
        return [one for found in self._reductions if (one := found()) is not None]

    def finish(self) -> None:
        reductions = self.reductions
        try:
            self.work.wait()
            if len(reductions) > 1:
                sizes = [reduction.tensors[0].numel() for reduction in reductions]
                for reduction, part in zip(reductions, self.tensors[0].split(sizes), strict=True):
                    reduction.tensors[0].copy_(part.view_as(reduction.tensors[0]))
        except Exception as error:
            for reduction in reductions:
                reduction.done.set_exception(error)  # type: ignore[arg-type]  # DDP raises it
        else:
            for reduction in reductions:
                reduction.done.set_result(reduction.tensors)


class ReducingGroup(ProcessGroup):
    """The model's own group, but for when and in how many messages gradients are reduced.

    *how*: ``postponed`` to the end of the backward pass, ``bundled`` into fewer messages, or ``tuned``: how many is measured, and
    kept in this folder. DDP waits at the end of the backward pass in any case, in a callback of autograd's engine; ours comes
    before it.
    """

    def __init__(self, model: DistributedDataParallel, how: Mapping[str, Any]) -> None:
        self.own: ProcessGroup = model.process_group
        super().__init__(self.own.rank(), self.own.size())  # type: ignore[call-arg]
        self._model, self._how = weakref.ref(model), how
        self._waiting: list[weakref.ref[_Reduction]] = []
        self._sent: list[_Message] = []
        self._search: Search | None = None
        """How large messages are best: what it has found stays from scope to scope."""

    def allreduce(self, tensors: Any, opts: Any = None) -> Work:  # type: ignore[override]
        if opts is None:
            opts = AllreduceOptions()
        tensors = [tensors] if isinstance(tensors, torch.Tensor) else [*tensors]
        model = self._model()
        uneven = (
            model is None or model._join_config.enable
        )  # ranks without data reduce bucket by bucket, outside of any backward pass
        if not any(self._how.values()) or uneven or _C._current_graph_task_id() == -1:
            return self.own.allreduce(tensors, opts)
        if self._how["tuned"] and not self._alive() and not any(message.reductions for message in self._sent):
            assert model is not None
            self._tuned(model).begin(tensors[0].device)
        reduction = _Reduction(tensors, opts, self._finish)
        Variable._execution_engine.queue_callback(reduction)
        self._waiting.append(weakref.ref(reduction))
        if not self._how["postponed"] and sum(one.nbytes for one in self._alive()) >= self._least:
            self._send()
        return c10d._create_work_from_future(reduction.done)  # type: ignore[attr-defined,no-any-return]

    def _tuned(self, model: DistributedDataParallel) -> Search:
        if self._search is None:
            gradients = sum(one.nbytes for one in model.parameters() if one.requires_grad)
            self._search = Search(self.own, gradients, model.bucket_bytes_cap, self._how["tuned"])
        return self._search

    @property
    def _least(self) -> int:
        """From how many bytes on buckets are a message; 0: each is one."""
        if self._how["tuned"] and self._search is not None:
            return self._search.message
        return BUNDLE if self._how["bundled"] else 0

    def _alive(self) -> list[_Reduction]:
        return [one for found in self._waiting if (one := found()) is not None]

    @torch.no_grad()
    def _send(self) -> None:
        reductions = self._alive()
        self._waiting.clear()
        bundles: list[list[_Reduction]] = []
        for one in reductions:
            if bundles and bundles[-1][0].kind == one.kind and sum(other.nbytes for other in bundles[-1]) < self._least:
                bundles[-1].append(one)
            else:
                bundles.append([one])
        self._sent += [_Message(self.own, bundle) for bundle in bundles]

    @torch.no_grad()
    def _finish(self) -> None:
        self._send()
        sent, self._sent = self._sent, []
        for message in sent:
            message.finish()
        if sent and self._how["tuned"] and self._search is not None:
            self._search.end(sent[-1].tensors[0].device)

    # what else DDP asks of its group

    def broadcast(self, tensors: Any, opts: Any = None) -> Work:  # type: ignore[override]
        return self.own.broadcast(tensors, opts) if opts is not None else self.own.broadcast(tensors)

    def getBackendName(self) -> str:
        return str(self.own.name())
