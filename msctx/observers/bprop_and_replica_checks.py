"""What is checked while a program trains: gradients of hand-written backward functions, and replicas on several ranks.

check_bprop: each call of a ``torch.autograd.Function`` (operators with ``register_autograd`` are such Functions) makes a node. A node
that is made while the option is on gets its own ``apply``. Hooks on the node would run after torch has cast and summed the gradients.
Torch has no hook for the call: ``Function.apply`` is replaced.
"""

from __future__ import annotations

import inspect
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NoReturn

import torch
from torch import distributed as dist
from torch.autograd import Function, gradcheck
from torch.autograd.gradcheck import GradcheckError
from torch.compiler import is_dynamo_compiling
from torch.nn.parallel import DistributedDataParallel

from msctx import notices
from msctx.errors import GradientDtypeError, GradientError, named
from msctx.native import watched_models
from msctx.native.counter_lifetimes import Held
from msctx.native.ranks_and_process_group import in_words
from msctx.observers import steps
from msctx.observers.slots_and_files import OfThread, Slot


class Check(OfThread):
    def turn(self, on: bool) -> None:
        if on != self.on:
            _installed.want(1 if on else -1)
        self.on = on


NODES, VALUES = Check(), Check()


@contextmanager
def _replaced() -> Iterator[None]:
    found = vars(Function)["apply"]

    def called(function: Any, *args: Any, **kwargs: Any) -> Any:
        """What is torch's own (of compiled code, of checkpoints, …) is torch's to test."""
        call = found.__get__(None, function)
        is_users = function.__module__.partition(".")[0] != "torch" or function.__module__ == _OPERATORS
        if is_dynamo_compiling() or not (NODES.is_on() and is_users):
            return call(*args, **kwargs)
        is_plain = not torch._C._are_functorch_transforms_active() and not torch.compiler.is_compiling()
        if VALUES.is_on() and is_plain and torch.is_grad_enabled() and any(map(_is_differentiated, args)):
            _differentiate(Source(function), call, args, kwargs)  # before the call: it may change its inputs
        made = call(*args, **kwargs)
        for value in made if isinstance(made, tuple) else (made,):
            node: Any = getattr(value, "grad_fn", None)
            if getattr(node, "_forward_cls", None) is function:
                me = weakref.ref(node)  # the node itself would keep its graph alive
                node.apply, node.apply_boxed = partial(_apply, me, "apply"), partial(_apply, me, "apply_boxed")
        return made

    ours: Any = classmethod(called)
    Function.apply = ours  # type: ignore[method-assign]
    yield
    if vars(Function)["apply"] is ours:  # else somebody has wrapped it since
        Function.apply = found  # type: ignore[method-assign]


_installed = Held(_replaced)


def _apply(node: Callable[[], Any], name: str, *gradients: Any) -> Any:
    here = node()
    given = getattr(type(here), name)(here, *gradients)
    _check(here, given if isinstance(given, tuple) else (given,))
    return given


def _check(node: Any, given: tuple[Any, ...]) -> None:
    needed = node.needs_input_grad
    if len(given) != len(needed):
        if node._forward_cls.__module__ == _OPERATORS:
            return  # torch adds inputs, and reports it
        text = f"returned {len(given)} gradient{'s' * (len(given) != 1)} for {len(needed)} input{'s' * (len(needed) != 1)}"
        Source(node._forward_cls).wrong(GradientError, text, "return one for each input, None where there is none")
    edges = (edge for edge in node.next_functions if edge[0] is not None)
    for index, (value, is_needed) in enumerate(zip(given, needed, strict=True)):
        if is_needed and (problem := _problem(value, *next(edges))):
            kind, text, advice = problem
            Source(node._forward_cls).wrong(kind, f"returned a {text.format(f'input {index}')}", advice)


def _problem(value: Any, function: Any, place: int) -> tuple[type[Exception], str, str] | None:
    """What is wrong with one gradient, by the metadata of its input, and what to do."""
    if value is None:
        return None
    if not isinstance(value, torch.Tensor):
        return GradientDtypeError, f"{type(value).__name__} as the gradient of {{}}", "return a tensor or None"
    wanted = function._input_metadata[place]
    if not wanted.is_nested_tensor and (is_shape := [*value.shape]) != (shape := [*wanted.shape]):
        return (
            GradientError,
            f"gradient of shape {is_shape} for {{}}, whose shape is {shape}",
            "sum or reshape it to that shape",
        )
    dtype = getattr(getattr(function, "variable", None), "grad_dtype", wanted.dtype)
    if dtype in (None, value.dtype):
        return None
    return GradientDtypeError, f"gradient of dtype {value.dtype} for {{}}, whose dtype is {dtype}", "cast it to that dtype"


_OPERATORS = "torch._library.autograd"
"""The module in which torch makes Functions of operators that users wrote."""


class Source:
    """Where a Function was written, for messages."""

    def __init__(self, function: Any) -> None:
        backward = function.backward if function.vjp is torch.autograd.Function.vjp else function.vjp
        self.name = f"{function.__qualname__}.{backward.__name__}"
        if function.__module__ == _OPERATORS:
            backward = _enclosed(_enclosed(backward, "orig_backward") or backward, "info")._backward_fn or backward
        code = getattr(inspect.unwrap(backward), "__code__", None)
        self.place = f"{code.co_filename}:{code.co_firstlineno}" if code else "no source"

    def wrong(self, kind: type[Exception], text: str, advice: str, option: str = "check_bprop") -> NoReturn:
        raise kind(f"{self.name} ({self.place}) {text}; {advice} ({option}=True of the msctx context reports this)")


def _enclosed(function: Any, name: str) -> Any:
    return inspect.getclosurevars(function).nonlocals.get(name)


# --- check_bprop_values: the backward of a Function against differences of its forward --------------------------------


def _is_differentiated(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def _differentiate(source: Source, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Along a random direction of each input, so that gradcheck differentiates one number by a few."""
    draw = torch.Generator().manual_seed(0)

    def direction(like: torch.Tensor) -> torch.Tensor:
        found = torch.randn(like.shape, dtype=like.dtype, generator=draw)
        length = found.norm()
        return found.div_(length).to(like.device)

    wide = [_wide(value) for value in args]
    moves = {i: direction(wide[i]) for i, x in enumerate(args) if _is_differentiated(x)}
    weights: list[torch.Tensor] = []

    def along(*steps: torch.Tensor) -> torch.Tensor:
        given = [x.clone() if isinstance(x, torch.Tensor) else x for x in wide]
        for (i, move), step in zip(moves.items(), steps, strict=True):
            given[i] = wide[i] + step * move
        torch.manual_seed(0)
        made = call(*given, **kwargs)
        results = [*filter(_is_differentiated, made if isinstance(made, (tuple, list)) else [made])]
        weights.extend(map(direction, results[len(weights) :]))
        return torch.stack([(w.conj() * y).real.sum().cpu() for w, y in zip(weights, results, strict=True)]).sum()

    steps = tuple(torch.zeros((), dtype=torch.float64, requires_grad=True) for _ in moves)
    try:
        NODES.on = False
        with torch.random.fork_rng():
            gradcheck(along, steps, check_undefined_grad=False)
    except GradcheckError as error:
        text = f"returned a gradient that is not that of its forward: {' '.join(str(error).split())}"
        text += f" (of the arguments {', '.join(map(str, moves))}, which need a gradient)"
        source.wrong(GradientError, text, "compare it with the formula", "check_bprop_values")
    except Exception as error:
        text = f"check_bprop_values leaves out {source.name} ({source.place}): it does not run in float64 ({named(error)})"
        notices.warn(text)
    finally:
        NODES.on = True


def _wide(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    dtype = torch.float64 if value.is_floating_point() else torch.complex128 if value.is_complex() else value.dtype
    return value.detach().to(dtype)


# --- replica_check: whether the replicas of data-parallel models have the same bits on all ranks --------------------------
# Every n steps the ranks gather two digests of each parameter: a collective, so all ranks have the same option.


class Replicas:
    """*settings*: after how many steps there is one."""

    def __init__(self, settings: int) -> None:
        self.settings = settings
        self._told: set[str] = set()

    def begin(self) -> None:
        self._counting = steps.counting(self._ended)
        self._counting.__enter__()

    def end(self) -> None:
        self._counting.__exit__(None, None, None)

    def _ended(self, step: int) -> None:
        if (step + 1) % self.settings:
            return
        modules = {module: path for model in watched_models.models() for path, module in model.named_modules()}
        for module, path in modules.items():
            if isinstance(module, DistributedDataParallel):
                _compare(step, path, module, self._told)


def _compare(step: int, path: str, model: Any, told: set[str]) -> None:
    """The parameters: each rank has its own buffers until the next forward pass."""

    group = model.process_group
    mine = {
        name.removeprefix("module."): (*_digest(value).tolist(),) for name, value in model.named_parameters() if value.numel()
    }
    everyone: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(everyone, mine, group=group)
    names = [name for name in mine if any(digests[name] != everyone[0][name] for digests in everyone)]
    if not names or (first := ".".join(filter(None, (path, names[0])))) in told:
        return
    told.add(first)
    holders: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
    for rank, digests in zip(dist.get_process_group_ranks(group), everyone, strict=True):
        holders[digests[names[0]]].append(rank)
    groups = sorted(holders.values(), key=lambda ranks: (-len(ranks), ranks))
    more = f", and {len(names) - 1} more parameter{'s' * (len(names) > 2)}" if len(names) > 1 else ""
    notices.warn(f"replica_check: after step {step}, {first} differs between " + " and ".join(map(in_words, groups)) + more)


def _digest(value: torch.Tensor) -> torch.Tensor:
    """The sum of the bits as integers, and their XOR: a single changed bit changes both."""

    data = value.detach() if value.is_cuda else value.detach().cpu()
    bits = data.contiguous().reshape(-1).view({1: torch.int8, 2: torch.int16}.get(data.itemsize, torch.int32))
    return torch.stack([bits.sum(dtype=torch.int64), torch.hash_tensor(bits, dim=0).view(torch.int64)]).cpu()


SLOT = Slot(Replicas)
