"""PyTorch's own ways of a graph of inference with frozen weights are measured against ours, in turns: the fastest one stays."""

from __future__ import annotations

import hashlib
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import fx
from torch._dynamo.convert_frame import compile_lock
from torch._dynamo.utils import clone_input
from torch._inductor.codecache import PyCodeCache

from msctx.errors import named
from msctx.graph import inductor_compile, report
from msctx.graph.inductor_passes import own_code
from msctx.native import core, policy_and_choices, tuning_in_core
from msctx.native.tuning_file import GRAPH, Entry, Key
from msctx.native.tuning_in_core import Permission
from msctx.notices import warn
from msctx.options.switch_values import Compilation

Run = Callable[..., Any]
OURS, FROZEN, EAGER, AGAIN = "msctx", "inductor with freezing", "eager", "msctx again"
PLAIN: dict[str, Any] = {"frozen": True, "weights": False, "epilogues": False, "races": None}
ON_TRIAL, TORCHS = 1, 2  # what a thread runs, as in kernels/glue/tensors.h
WARM, FEWEST, ENOUGH, MOST = 2, 3, 5, 61  # runs before the rounds; rounds: at least, so that the worst does not count, at most
BUDGET, IN_ALL, PAUSE = 3.0, 120.0, 1.0  # seconds: of a graph's rounds, of the process, until the next try
SLOWER = 1.3  # than PyTorch's best way: does not run again
SETS = 4  # how often PyTorch's code is made for other weights, or for the same after a change; from then on ours runs for these
WHY = {Permission.LATER: "memory is short", Permission.BUSY: "other programs use the cores"}
_spent = [0.0]
_measuring = threading.Lock()


def seconds(run: Run) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


@contextmanager
def _trial(what: int) -> Iterator[None]:
    """Inside, what ours chooses is not counted, or no policy holds for PyTorch's operators; in this thread."""
    before = core.load().c.msctx_on_trial(what)
    try:
        yield
    finally:
        core.load().c.msctx_on_trial(before)


def entered(wanted: Compilation, graph: fx.GraphModule, inputs: Sequence[Any]) -> Run:
    """Compile a graph; what is returned chooses the way at each call."""
    told = report.way()
    if why := _obstacle(graph, inputs):
        told.text = f"{OURS}: {why}"
        return inductor_compile.compiler(wanted)(graph, inputs)  # type: ignore[no-any-return]
    return _Graph(wanted, told, graph, inputs).run


def _obstacle(graph: fx.GraphModule, inputs: Sequence[Any]) -> str:
    """Why PyTorch's ways of a graph are not measured."""
    if torch.is_grad_enabled():
        return "it may compute gradients"
    if inductor_compile.has_symbols(graph):
        return "it is for several shapes"
    kinds = torch.Tensor, torch.nn.Parameter
    if not all(type(one) in kinds and one.device.type == "cpu" and one.layout == torch.strided for one in inputs):
        return "its inputs are not all dense tensors on the CPU"
    nodes = (node for part in graph.modules() if isinstance(part, fx.GraphModule) for node in part.graph.nodes)
    foreign = (str(node.target) for node in nodes if node.op == "call_function" and not _is_torchs(node.target))
    return f"{name} may do more than compute" if (name := next(foreign, "")) else ""


def _is_torchs(target: Any) -> bool:
    """Whether it computes, and nothing else: collectives wait for other processes, and a program's operators may count calls."""
    module = getattr(target, "__module__", None) or "torch"
    if module.startswith("torch._ops"):
        return module == "torch._ops.aten"
    return module.partition(".")[0] in ("torch", "_operator", "math", "builtins") and "distributed" not in module


def _key(wanted: Compilation, graph: fx.GraphModule, inputs: Sequence[Any]) -> Key:
    """What has one verdict under a stamp: the graph, its inputs, and all options that are in its code."""
    policy = wanted.races and replace(wanted.races, tuning_file=None, work_path=None)
    layouts = [(tuple(one.shape), one.stride(), one.dtype) for one in inputs]
    state = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
    about = graph.code, layouts, replace(wanted, races=policy), state, own_code()
    digest = hashlib.sha256(repr(about).encode()).hexdigest()[:16]
    return Key(GRAPH, f"{len(graph.graph.nodes)} nodes, {digest}", torch.get_num_threads(), "")


@dataclass(slots=True, eq=False)
class _Frozen:
    """Code that holds weights as constants: which they are, while they live, where and of which version, and their bytes.

    *policy*: the number of the last one under which the bytes were compared: frozen_weights vouches for one context alone, and for
    tensors that record gradients; *others* are the places of the rest, which is compared at each call.
    """

    run: Run
    weights: list[weakref.ref[torch.Tensor]]
    state: list[tuple[int, int]]
    prints: list[tuple[int, int]]
    policy: int
    others: list[int]
    ids: list[int]  # nobody else's while they live

    def is_for(self, weights: Sequence[torch.Tensor]) -> bool:
        return [*map(id, weights)] == self.ids

    def holds(self, weights: Sequence[torch.Tensor]) -> bool:
        if self.policy != policy_and_choices.times or not self.is_for(weights):
            return False
        return inductor_compile.state_of([weights[one] for one in self.others]) == [self.state[one] for one in self.others]


class _Graph:
    """A graph, and the way it runs: *choice*; ``""``: it is not measured yet, and ours runs."""

    def __init__(self, wanted: Compilation, told: report.Way, graph: fx.GraphModule, inputs: Sequence[Any]) -> None:
        self.wanted, self.told, self.graph = wanted, told, inductor_compile.copy_of(graph)
        self.file = wanted.races.tuning_file if wanted.races else None
        self.key = _key(wanted, graph, inputs)
        marks = [node.meta.get("tensor_dict", {}) for node in graph.graph.find_nodes(op="placeholder")]
        self.places = [place for place, mark in enumerate(marks) if "_dynamo_static_input_type" in mark]
        self.frozen: _Frozen | None = None
        self.lock = threading.RLock()  # held while this or ours is made
        self.sets, self.due, self.choice, self.words = 0, 0.0, "", ""
        told.text = f"{OURS}: not measured yet"
        known = tuning_in_core.graph(self.file, self.key)
        if known is not None:
            self.choice, self.words = known.ran, f"{_words(known)}, from the tuning file"
            told.text = self.words
        self.ours = None if self.choice in (FROZEN, EAGER) else inductor_compile.compiler(wanted)(graph, inputs)

    def run(self, *args: Any) -> Any:
        choice = self.choice
        if choice in (FROZEN, EAGER) and (theirs := self._theirs(choice, args)):
            self.told.text = self.words
            with _trial(TORCHS):
                return theirs(*args)
        if self.ours is None:
            with self.lock:
                self.ours = self.ours or inductor_compile.compiled_later(self.wanted, self.graph, args)
        return self.ours(*args) if self.choice or time.monotonic() < self.due else self._run_and_measure(self.ours, args)

    def _theirs(self, way: str, args: Sequence[Any]) -> Run | None:
        """PyTorch's code for a call; None: its weights have changed too often, or cannot be constants."""
        if way == EAGER:
            return self.graph.forward
        weights = [args[place] for place in self.places]
        if (known := self.frozen) and known.holds(weights):
            return known.run
        with self.lock:
            return self._compared_or_made(weights, args)

    def _compared_or_made(self, weights: list[torch.Tensor], args: Sequence[Any]) -> Run | None:
        """What was made by another thread or for the same bytes, else it is made."""
        known, now, state = self.frozen, policy_and_choices.times, inductor_compile.state_of(weights)
        is_for_these = known is not None and known.is_for(weights)
        if known and is_for_these and known.state == state and (known.policy == now or known.prints == _prints(weights)):
            known.policy, known.others = now, _not_vouched_for(weights)
            return known.run
        if is_for_these:
            self.frozen = None
        if self.sets == SETS:
            self.told.text = f"{OURS}: the weights were others {SETS} times"
            return None
        self.sets += 1
        if is_for_these:
            warn(f"frozen_weights: weights have changed. {inductor_compile.AGAIN}")
        try:
            prints, made = _prints(weights), self._freeze(args)
        except Exception as error:
            self.choice, self.told.text = OURS, f"{OURS}: PyTorch cannot freeze it, {named(error).splitlines()[0]}"
            return None
        refs = [weakref.ref(weight, self._forget) for weight in weights]
        self.frozen = _Frozen(made, refs, state, prints, now, _not_vouched_for(weights), [*map(id, weights)])
        return made

    def _forget(self, gone: weakref.ref[torch.Tensor]) -> None:
        """Compiled code belongs to the forward of a class, and outlives the weights of a model."""
        if self.frozen and gone in self.frozen.weights:
            self.frozen = None

    def _freeze(self, args: Sequence[Any]) -> Run:
        graph, others = inductor_compile.copy_of(self.graph), [*args]
        placeholders = graph.graph.find_nodes(op="placeholder")
        for place in reversed(self.places):
            node, name = placeholders[place], f"weight_{place}"
            graph.register_buffer(name, others.pop(place).detach())  # the weight itself may die
            with graph.graph.inserting_before(node):
                node.replace_all_uses_with(graph.graph.get_attr(name))
            graph.graph.erase_node(node)
        graph.recompile()
        with compile_lock:
            modules, before = PyCodeCache.modules, len(PyCodeCache.modules)
            made = inductor_compile.compiled_later(replace(self.wanted, **PLAIN), graph, others)
            for module in modules[before:]:  # they have the constants, and inductor keeps them as long as the process lives
                sys.modules.pop(module.__name__, None)
            del modules[before:]
        given = sorted({*range(len(args))}.difference(self.places))
        return lambda *args: made(*(args[place] for place in given))

    def _run_and_measure(self, ours: Run, args: Sequence[Any]) -> Any:
        """The call runs once, ours; then all ways run on copies of its inputs."""
        said = tuning_in_core.permission_of_graphs(self.file)
        if _spent[0] > IN_ALL or said != Permission.NOW or not _measuring.acquire(blocking=False):
            self.due = time.monotonic() + PAUSE
            self.told.text = f"{OURS}: not measured, {WHY.get(said, 'since another is, several processes run, or time is up')}"
            return ours(*args)
        try:
            if self.choice:  # another thread's
                return ours(*args)
            weights = [args[place] for place in self.places]
            buffers = [weight for weight in weights if not isinstance(weight, torch.nn.Parameter)]
            before = inductor_compile.state_of(weights), _prints(buffers)
            result = ours(*args)
            if (inductor_compile.state_of(weights), _prints(buffers)) != before:
                self.choice, self.told.text = OURS, f"{OURS}: it changes its weights"
            else:
                self._measure(ours, [one if place in self.places else _copied(one) for place, one in enumerate(args)])
        finally:
            _measuring.release()
        return result

    def _measure(self, ours: Run, args: Sequence[Any]) -> None:
        def once(way: str) -> Any:
            with _trial(ON_TRIAL if way == OURS else TORCHS):
                theirs = None if way == OURS else self._theirs(way, args)
                return (theirs or ours)(*args)

        looked_away = core.load().c.msctx_look_away(1)
        try:
            ways = {way: partial(once, way) for way in (OURS, FROZEN, EAGER) if way == OURS or self._theirs(way, args)}
            start = time.monotonic()  # compiling does not count
            times = _times(ways, partial(tuning_in_core.permission_of_graphs, self.file))
            _spent[0] += time.monotonic() - start
            if times is None:
                self.due, self.told.text = time.monotonic() + PAUSE, f"{OURS}: not measured, {WHY[Permission.BUSY]}"
                return
            entry = _verdict(self.key, times)
            self.told.text = self.words = _words(entry)
            self.choice = entry.ran
            tuning_in_core.keep_graph(self.file, entry)
        except Exception as error:  # such as out of memory
            self.choice, self.told.text = OURS, f"{OURS}: not measured, {named(error).splitlines()[0]}"
        finally:
            core.load().c.msctx_look_away(looked_away)
            if self.choice in (OURS, EAGER):
                self.frozen = None


def _times(runs: Mapping[str, Run], ask: Callable[[], Permission]) -> dict[str, list[float]] | None:
    """The seconds of each way in each round; ours runs first and last. None: others took the cores, or measuring was forbidden."""
    best = {way: min(seconds(run) for _ in range(WARM)) for way, run in runs.items()}
    least = min(best[way] for way in runs if way != OURS)
    others = [way for way in runs if way != OURS and best[way] <= SLOWER * least]
    times: dict[str, list[float]] = {way: [] for way in (OURS, *others, AGAIN)}
    start, said = time.monotonic(), [ask()]
    while len(times[OURS]) < MOST and (len(times[OURS]) < FEWEST or time.monotonic() - start < BUDGET):
        turn = len(times[OURS]) % len(others)
        for way in (OURS, *others[turn:], *others[:turn], AGAIN):
            times[way].append(seconds(runs[OURS if way == AGAIN else way]))
        said.append(ask())
    is_quiet = {*said} <= {Permission.NOW, Permission.BUSY} and 4 * said.count(Permission.BUSY) <= len(said)
    return times if is_quiet else None


def _verdict(key: Key, times: Mapping[str, list[float]]) -> Entry:
    """Ours stays where it is faster than PyTorch's best way in three quarters of the rounds; of few, in each."""
    pairs = [*zip(times[OURS], times[AGAIN], strict=True)]
    ours, again = [sum(pair) / 2 for pair in pairs], median(max(pair) / min(pair) for pair in pairs)
    middle = {way: median(ours if way == OURS else found) for way, found in times.items() if way != AGAIN}
    rival = min((way for way in middle if way != OURS), key=middle.__getitem__)
    gains = sorted(theirs / mine for mine, theirs in zip(ours, times[rival], strict=True))
    ran = OURS if gains[len(gains) // 4 if len(gains) >= ENOUGH else 0] >= 1 else rival
    measured: dict[str, float | None] = {way: value / middle[ran] for way, value in {"torch": middle[rival], **middle}.items()}
    return Entry(*key, ran, {OURS: OURS}.get(ran, "torch"), again, measured, tuning_in_core.now())


def _rival(entry: Entry) -> tuple[str, float]:
    """PyTorch's best way where ours runs, else ours; and its time in units of the winner's."""
    others = {way: ratio for way, ratio in entry.measured.items() if way in (FROZEN, EAGER) and ratio}
    name = OURS if entry.ran != OURS else min(others, key=others.__getitem__, default=EAGER)
    return name, entry.measured.get(name) or 1.0


def _words(entry: Entry) -> str:
    name, ratio = _rival(entry)
    return f"{entry.ran}: {ratio:.2f} of {name}, A/A {entry.again:.2f}"


def _not_vouched_for(weights: Sequence[torch.Tensor]) -> list[int]:
    return [place for place, weight in enumerate(weights) if not weight.requires_grad]


def _prints(tensors: Sequence[torch.Tensor]) -> list[tuple[int, int]]:
    """What distinguishes tensors by all of their bytes: a NaN, too, is equal to itself."""
    dense = (one.contiguous() for one in tensors)
    return [core.load().fingerprint(one.data_ptr(), one.nbytes) for one in dense]


def _copied(value: Any) -> Any:
    """A copy with the same strides; nothing can be written to what lies several times in one place."""
    return value if 0 in value.stride() else clone_input(value)
