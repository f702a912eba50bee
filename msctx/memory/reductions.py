"""How the gradients of watched DistributedDataParallel models are reduced: in the backward pass or after it, in how many messages.

DDP asks its process group for an all-reduce of each bucket that is ready. The group that it asks is another one inside (see
:mod:`msctx.memory.reducing_group`), and its own one again afterwards; DDP could not lose a communication hook.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakSet

from torch import distributed, nn

from msctx import notices
from msctx.memory import watched

if TYPE_CHECKING:
    from torch.nn.parallel import DistributedDataParallel

    from msctx.memory.reducing_group import ReducingGroup

OPTIONS = {"postponed": "enable_grad_comm_opt, hcom_parallel", "tuned": "aoe_mode", "bundled": "enable_task_opt"}
wanted: dict[str, Any] = {"postponed": False, "bundled": False, "tuned": None}
_groups: WeakKeyDictionary[DistributedDataParallel, ReducingGroup] = WeakKeyDictionary()
"""What models were given: a hook of torch's own that a program registers inside keeps asking it."""
_on: WeakSet[DistributedDataParallel] = WeakSet()
"""The models that are acted on."""
NO_HOOK_OF_OURS = "{}: the gradients of {} are reduced as {} has it, which DistributedDataParallel has been given"
NOT_SHARDED = (
    "{}: the gradients of FSDP modules are reduced as each module has them, which frees those of the whole weights; "
    "DistributedDataParallel's are reduced as the option asks"
)


def read(way: str) -> Any:
    return wanted[way]


def write(way: str, value: Any) -> None:
    with watched.lock:
        wanted[way] = value
        if any(wanted.values()):
            for model in watched.models():
                _act(model)
        else:
            _undo([*_on])


def data_parallel(model: nn.Module) -> Iterator[DistributedDataParallel]:
    if distributed.is_available():
        from torch.nn.parallel import DistributedDataParallel

        yield from (module for module in model.modules() if isinstance(module, DistributedDataParallel))


def _act(model: nn.Module) -> None:
    if not any(wanted.values()):
        return
    from msctx.memory import prefetch

    option = next(option for way, option in OPTIONS.items() if wanted[way])
    with watched.lock:
        for parallel in data_parallel(model):
            if parallel in _on:
                continue
            if hook := _hook(parallel):
                name = type(parallel.module).__name__
                notices.warn(option, f"hook {hook} of {name}", NO_HOOK_OF_OURS.format(option, name, hook))
                continue
            from msctx.memory.reducing_group import ReducingGroup

            if parallel not in _groups or _groups[parallel].own is not parallel.process_group:
                _groups[parallel] = ReducingGroup(parallel, wanted)
            parallel.reducer._update_process_group(_groups[parallel])
            _on.add(parallel)
    if next(prefetch.states(model), None) is not None:
        notices.warn(option, "FSDP", NOT_SHARDED.format(option))


def _hook(parallel: DistributedDataParallel) -> str:
    """What reduces its gradients in place of DDP: a communication hook, or compiled autograd."""
    if parallel._use_python_reducer:
        return "torch.compile"
    return str(parallel.logger._get_ddp_logging_data().strs_map.get("comm_hook", "")) if parallel.logger else ""


def _undo(models: Iterable[DistributedDataParallel]) -> None:
    for parallel in models:
        if parallel in _on:
            _on.discard(parallel)
            parallel.reducer._update_process_group(parallel.process_group)


def _ends(model: nn.Module) -> None:
    """Nobody watches it now."""
    if _on:
        with watched.lock:
            others = {parallel for other in watched.models() for parallel in data_parallel(other)}
            _undo([parallel for parallel in data_parallel(model) if parallel not in others])


watched.listen(_act, _ends)
