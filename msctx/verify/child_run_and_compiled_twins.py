"""One run of `msctx verify`, in its own process: the operators that it sends, or its modules beside compiled twins of them."""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from copy import deepcopy
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.compiler import is_dynamo_compiling
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils import _pytree as pytree

from msctx.context.process_wide import BASE
from msctx.errors import EntryFailed, MsctxError, named, user_frame
from msctx.native import module_tracker
from msctx.observers import module_paths, operator_events, steps
from msctx.observers.operator_events import ASK_AGAIN, Reader, Row
from msctx.options.algorithm_policy import plain
from msctx.run.experiment_and_entry import prepare_environment, read
from msctx.run.runner import run_experiment
from msctx.switches import SWITCHES
from msctx.verify.first_difference import differing, ran
from msctx.verify.run_processes import Message, failed

Send = Callable[[dict[str, Any]], object]


class DigestReader(Reader):
    """Sends every operator with the digests of its tensors, and the end of every step.

    *switches*: each message has their values too, all that were in force while operators ran.
    """

    requested: Mapping[str, int] = {"inputs": 1, "outputs": 1, "digests": 1}

    def __init__(self, send: Send, switches: Sequence[str] = ()) -> None:
        self.is_choosy, self._switches, self._values = bool(switches), switches, list[Any]()
        self._send = lambda message: send({**message, "values": self._values})

    def wants(self, operator: str, module: str, number: int, place: int) -> int:
        values = [plain(SWITCHES[name].read()) for name in self._switches]
        if values not in self._values:
            self._values.append(values)
        return ASK_AGAIN | 1

    def take(self, rows: list[Row]) -> None:
        for row in rows:
            name = f"{row['operator']}.{row['overload']}".removesuffix(".")
            text = f"calls {name} in module {row['module'] or '(none)'} ({row['node'] or row['direction']})"
            self._send({"does": text, "row": ran(row)})

    def end_step(self) -> None:
        self._send({"does": "ends the step", "idle": [*BASE.tally.unmatched(), *BASE.idle()]})


class DetailReader(Reader):
    """Sends one operator of one step, with the line that called it and files of its tensors.

    *call*: operator, module, and how many of these run before it in the step.
    """

    is_choosy = wants_lines = True
    folder: Path | None = None

    def __init__(self, send: Send, step: int, call: Sequence[Any], folder: Path) -> None:
        self._send, self._step, self._call, self.folder = send, step, tuple(call), folder
        self._met: Counter[tuple[str, str]] = Counter()
        self._line = ""

    @property
    def requested(self) -> Mapping[str, int]:
        return {} if self._step else dict.fromkeys(("inputs", "outputs", "tensors", "attributes"), 1)

    def wants(self, operator: str, module: str, number: int, place: int) -> int:
        if self._step:
            return ASK_AGAIN
        is_it = (operator, module, self._met[operator, module]) == self._call
        self._met[operator, module] += 1
        if is_it:
            self._line = user_frame()[0]
        return ASK_AGAIN | is_it

    def take(self, rows: list[Row]) -> None:
        for row in rows:
            self._send({"detail": row | {"called": self._line}})

    def end_step(self) -> None:
        self._step -= 1


@contextmanager
def compared(send: Send) -> Iterator[None]:
    """Inside, this process runs eagerly, and *send* gets each comparison."""
    comparison = _Comparison(send)
    handles = (
        register_module_forward_pre_hook(comparison.begin),
        register_module_forward_hook(comparison.end, with_kwargs=True, always_call=True),
    )
    warnings.filterwarnings("ignore", module_tracker.WARNS)
    with torch.compiler.set_stance("force_eager"), steps.counting(lambda step: send({"does": "ends the step"})):
        yield
    for handle in handles:
        handle.remove()


class _Comparison:
    def __init__(self, send: Send) -> None:
        self._send = send
        self._twins: WeakKeyDictionary[nn.Module, tuple[nn.Module, Callable[..., Any]]] = WeakKeyDictionary()
        self._around: nn.Module | None = None
        self._met: list[tuple[nn.Module, Any]] | None = None

    def begin(self, module: nn.Module, args: Any) -> None:
        if is_dynamo_compiling() or self._around or torch.jit.is_tracing() or torch._C._are_functorch_transforms_active():  # type: ignore[attr-defined]
            return
        self._around = module
        with suppress(Exception):  # a copy made after the call might fail at tensors that the call has left in the module
            self._twin(module)

    def end(self, module: nn.Module, args: Any, *more: Any) -> None:
        """*more*: keyword arguments and results; after an exception there are no keyword arguments."""
        if is_dynamo_compiling():
            return
        if self._met is not None:
            self._met.append((module, _copies((args, more[0]))))
        elif self._around is module:
            try:
                if len(more) > 1:
                    self._send({"does": "a call", **self._compared(module, (args, more[0]))})
            finally:
                self._around = None

    def _compared(self, module: nn.Module, given: Any) -> dict[str, Any]:
        name = type(module).__name__
        try:
            if not (values := self._differing(module, given)):
                return {"row": ran({"operator": name, "inputs": [], "outputs": []})}
            found = {"operator": name, "values": values, "source": user_frame()[0]}
            return {"finding": found | self._first_inside(module, given)}
        except Exception as error:  # the training goes on
            return {"note": f"{name} was not compared ({named(error).partition(chr(10))[0]})"}

    def _first_inside(self, module: nn.Module, given: Any) -> dict[str, Any]:
        """The innermost module that differs when it is compiled by itself."""
        twin, _ = self._twin(module)
        names = {one: name for name, one in twin.named_modules()}
        met: list[tuple[nn.Module, Any]] = []
        self._met = met
        _results(twin, twin, given)
        self._met = None
        for inner, its in met:  # in the order in which they end
            if values := self._differing(inner, its):
                return {"operator": type(inner).__name__, "module": names[inner], "values": values}
        return {"reason": "no module inside it differs when it is compiled by itself"}

    def _twin(self, module: nn.Module) -> tuple[nn.Module, Callable[..., Any]]:
        """A copy of the module with its present values, eager and compiled."""
        if module not in self._twins:
            twin = deepcopy(module)
            self._twins[module] = twin, torch.compile(twin, options={"fallback_random": True})
        twin, compiled = self._twins[module]
        with torch.no_grad():
            for a, b in zip([*twin.parameters(), *twin.buffers()], [*module.parameters(), *module.buffers()], strict=True):
                a.copy_(b)
        return twin.train(module.training), compiled

    def _differing(self, module: nn.Module, given: Any) -> dict[str, str]:
        """The results and gradients that differ by more than rounding, and by how much."""
        twin, compiled = self._twin(module)
        eager = _results(twin, twin, given)
        self._twin(module)  # the call may have changed buffers
        with torch.compiler.set_stance("default"):
            found = _results(compiled, twin, given)
        eps = _eps([*twin.parameters(), *eager.values(), *pytree.tree_leaves(given)])
        for_all = eps ** (1 / 3) * max((_largest(a) for name, a in eager.items() if name.startswith("gradient")), default=0.0)
        limits = {name: for_all if name.startswith("gradient") else eps**0.5 * _largest(a) for name, a in eager.items()}
        texts = {name: differing(a, found[name], limits[name]) for name, a in eager.items()}
        return {name: text for name, text in texts.items() if text}


def _results(run: Callable[..., Any], twin: nn.Module, given: Any) -> dict[str, torch.Tensor]:
    """Floating-point results, and the gradients of a weighted sum of them."""
    args, kwargs = given = _copies(given)
    with torch.random.fork_rng():
        made = [leaf for leaf in pytree.tree_leaves(run(*args, **kwargs)) if _is_inexact(leaf)]
        found = {f"output {number}": leaf.detach() for number, leaf in enumerate(made)}
        ends = [leaf for leaf in made if leaf.requires_grad]
        inputs = [(f"input {number}", leaf) for number, leaf in enumerate(pytree.tree_leaves(given)) if _is_inexact(leaf)]
        starts = {f"gradient of {name}": leaf for name, leaf in [*twin.named_parameters(), *inputs] if leaf.requires_grad}
        if ends and starts:
            draw = torch.Generator().manual_seed(0)
            weights = [torch.randn(end.shape, generator=draw).to(end) for end in ends]
            gradients = torch.autograd.grad(ends, [*starts.values()], weights, materialize_grads=True)
            found |= dict(zip(starts, gradients, strict=True))
    return found


def _copies(given: Any) -> Any:
    return pytree.tree_map(
        lambda x: x.detach().clone().requires_grad_(x.requires_grad) if isinstance(x, torch.Tensor) else x, given
    )


def _is_inexact(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and (leaf.is_floating_point() or leaf.is_complex())


def _eps(leaves: list[Any]) -> float:
    """Of the lowest dtype that takes part."""
    tensors = [leaf for leaf in leaves if _is_inexact(leaf)]
    lowered = [torch.get_autocast_dtype(kind) for leaf in tensors if torch.is_autocast_enabled(kind := leaf.device.type)]
    return max(torch.finfo(dtype).eps for dtype in [*(leaf.dtype for leaf in tensors), *lowered])


def _largest(tensor: torch.Tensor) -> float:
    return float(tensor.abs().nan_to_num(0.0, 0.0).max()) if tensor.numel() else 0.0


def main() -> None:
    """Run the job of a file (the first argument); write messages to a file descriptor (the second)."""
    job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    with os.fdopen(int(sys.argv[2]), "w", encoding="utf-8", buffering=1) as pipe, suppress(BrokenPipeError):

        def send(message: Message) -> None:
            pipe.write(json.dumps(message, default=str) + "\n")

        try:
            send(_run(job, send))
        except MsctxError as error:
            send({"problem": str(error), "exit_code": error.exit_code})


def _run(job: Message, send: Send) -> Message:
    """The last message."""
    experiment = read(job["file"], job["words"], need_entry=True)
    prepare_environment(experiment)

    task, folder = job["task"], job["folder"]
    with compared(send) if "compiled" in task else nullcontext():
        if "compiled" not in task:
            module_paths.name_unwatched()
            (DetailReader(send, **task, folder=Path(folder).parent) if "step" in task else DigestReader(send, **task)).begin()
        try:
            run_experiment(experiment, folder)
            last: Message = {"does": "ends", "idle": BASE.ended}
        except EntryFailed as error:
            last = failed(str(error).replace(f"; the run is recorded in {folder}", "").replace(folder, "RUN_DIR"))
    operator_events.flush()
    return last
