"""How many blocks of a model can keep their activations under the caps in force: measured while it trains."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import _C
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_leaves

from msctx.memory import watched
from msctx.memory.meter import Meter, Room, room_under_caps
from msctx.memory.saved import is_of_leaf

MARGIN = 0.05
"""Part of a cap that is not planned for: sizes differ a little from step to step."""
NO_CAP = "there is no cap, and O1 puts memory first"
UNKNOWN = "it has not been measured yet"
UNDECIDED = "all is recomputed until it is known what a step takes"
NOT_CALLED = "it has not been called in eager code with gradients: nothing else is recomputed"


class Decision(NamedTuple):
    """What was found about one block, and what follows."""

    path: str
    saved_bytes: int | None
    """What its forward pass keeps for the backward pass, beside its inputs and parameters; ``None``: it has not been measured."""
    seconds: float
    """How long its forward pass takes."""
    recomputed: bool
    reason: str


Found = tuple[str, "int | None", float]
"""A block's path, what it keeps, how long it takes."""


def choose(found: Sequence[Found], room: int | None, kept: Collection[str] = ()) -> list[Decision]:
    """Which blocks are recomputed, where *room* bytes are left beside those *kept* (``None``: no cap).

    Those that take longest for their bytes are kept first, and of similar ones the last, whose backward passes come first: theirs
    are gone before the others are computed again. Without a cap memory comes first: all are recomputed.
    """
    keep, left = (set(), 0) if room is None else (set(kept), room)
    worths = [seconds / max(size or 0, 1) for _, size, seconds in found]
    for number in sorted(range(len(found)), key=lambda i: (_grade(worths[i], max(worths)), -i)):
        path, size, _ = found[number]
        if path not in keep and size and size <= left:
            left -= size
            keep.add(path)
    rows = []
    for path, size, seconds in found:
        if size == 0:
            reason = "its forward pass keeps nothing but its inputs"
        elif path in keep:
            reason = "fits under the cap"
        else:
            reason = UNKNOWN if size is None else NO_CAP if room is None else "does not fit under the cap"
        rows.append(Decision(path, size, seconds, size != 0 and path not in keep, reason))
    return rows


def _grade(worth: float, best: float) -> int:
    """0 for what is worth at least half as much as the best, 1 for at least a quarter …: times are no more certain than that."""
    return int(math.log2(best) - math.log2(worth)) if worth > 0 else 4096


class _Window(NamedTuple):
    """From one forward pass of the model to the next."""

    used: int
    """What counted towards the cap at its beginning."""
    peak: int
    """The most that was taken at once beyond that."""
    grown: int
    """What all models had been allowed to keep by then."""


class _Shapes:
    """What forward passes with inputs of some shapes have shown, and what was decided."""

    def __init__(self) -> None:
        self.bytes: dict[str, int] = {}
        self.seconds: dict[str, float] = {}
        self.measured: dict[str, int] = {}
        """Block → the pass in which it was measured: it may be called several times in it."""
        self.passes = 0
        self.room: Room | None = None
        self.windows: list[_Window] = []
        self.most = self.used = 0
        """The peak under the cap with what is kept now, and what was used before a step then."""
        self.decisions: dict[str, Decision] = {}
        self.settled = False

    @property
    def kept(self) -> set[str]:
        return {row.path for row in self.decisions.values() if not row.recomputed}

    def forget(self) -> None:
        """All is recomputed again, and measured anew."""
        self.windows, self.decisions, self.settled = [], {}, False


class _Now(threading.local):
    is_called = False
    """Whether the model itself was called last."""
    first = ""
    """The block with which passes begin otherwise."""
    shapes: _Shapes | None = None
    meter: tuple[Meter, int, int] | None = None


class Budget:
    """Of one watched model. All is recomputed at first; from what that takes follows how much can be kept under the cap, and from
    what the next steps take then whether there is room for more: a block adds at most what it keeps to the peak of a step, once
    for each forward pass that a step has.

    Inputs of other shapes are measured for themselves; smaller ones go by what was decided of larger ones.
    """

    MOST = 16
    """Combinations of shapes that are remembered."""
    WITHOUT_STEPS = 8
    """Forward passes after which it is taken that no optimizer of torch's makes the steps."""
    grown = 0
    """Bytes that all models have been allowed to keep so far, one after the other."""

    def __init__(self, paths: list[str], device: torch.device | None, number: int) -> None:
        self.paths, self._device, self._number = paths, device, number
        self._called: set[str] = set()
        self._of_shapes: dict[Any, _Shapes] = {}
        self._left: dict[str, str] = {}
        self._now = _Now()
        self._steps = self._begins = self._calls = 0
        self._most_calls = 1

    def is_open(self) -> bool:
        """Whether a context that watches the model is."""
        return watched.is_open(self._number)

    # --- what happens -------------------------------------------------------------------------------------------------

    def meet(self, path: str, inputs: Any) -> None:
        """A block is called. Where the model itself is not (its ``training_step`` is, say), its first block begins a forward pass."""
        if self._now.is_called and self._calls:  # since the last step
            return
        path = path.partition(":")[0]  # groups of a row may end elsewhere next time
        if self._now.is_called or self._now.first in ("", path):
            self.begin(inputs, is_called=False)
            self._now.first = path

    def begin(self, inputs: Any, *, is_called: bool = True) -> None:
        """A forward pass begins whose backward pass may come."""
        self._now.is_called = is_called
        self.end_window()
        tensors = [value for value in tree_leaves(inputs) if isinstance(value, torch.Tensor)]
        device = next((t.device for t in tensors if t.device.type not in ("cpu", "meta")), self._device)
        self._now.shapes = now = self._shapes_of(tuple((() if t.is_nested else tuple(t.shape), t.dtype) for t in tensors))
        self._begins += 1
        self._calls += 1
        self._most_calls = max(self._most_calls, self._calls)
        now.passes += 1
        if device is None or device.type == "meta":
            return
        self._decide(now, device)
        if now.room is not None and not now.settled:
            self._now.meter = (Meter(device), now.room.used, Budget.grown)

    def end_window(self) -> None:
        shapes, meter = self._now.shapes, self._now.meter
        if shapes is not None and meter is not None:
            self._now.meter = None
            counted, used, grown = meter
            shapes.windows.append(_Window(used, counted.stop(), grown))

    def step(self) -> None:
        """An optimizer has made a step."""
        self._steps += 1
        self._calls = 0
        if self._now.meter is not None:
            self._now.meter[0].sample()

    def leave(self, path: str, reason: str) -> None:
        """A block cannot be computed again; ``""``: it can."""
        if reason:
            self._left[path] = reason
        else:
            self._left.pop(path, None)

    def divide(self, paths: list[str], parts: list[str]) -> None:
        """What stood for some blocks so far, others stand for now."""
        if self._called.intersection(paths):
            self._called.update(parts)
        self.paths = [path for path in self.paths if path not in paths] + parts

    # --- what follows -------------------------------------------------------------------------------------------------

    def recomputes(self, path: str) -> bool:
        """Whether a block that is called now is to be."""
        self._called.add(path)
        decision = self._now.shapes.decisions.get(path) if self._now.shapes else None
        return decision is None or decision.recomputed

    def rows(self) -> list[Decision]:
        """What holds for the inputs that came last."""
        now = self._now.shapes or [_Shapes(), *self._of_shapes.values()][-1]  # another thread may add to them meanwhile
        rows = [now.decisions.get(path) or Decision(path, now.bytes.get(path), 0.0, True, UNDECIDED) for path in self.paths]
        left = {path: NOT_CALLED for path in self.paths if path not in self._called} | self._left
        return [row._replace(recomputed=False, reason=left[row.path]) if row.path in left else row for row in rows]

    def _shapes_of(self, key: tuple[Any, ...]) -> _Shapes:
        if key not in self._of_shapes:
            larger = (known for other, known in self._of_shapes.items() if known.settled and _is_within(key, other))
            if (found := next(larger, None)) is not None:
                return found
            if len(self._of_shapes) >= self.MOST:
                del self._of_shapes[next(iter(self._of_shapes))]
            self._of_shapes[key] = _Shapes()
        return self._of_shapes[key]

    def _decide(self, now: _Shapes, device: torch.device) -> None:
        room, before = room_under_caps(device), now.room
        now.room = room
        if room is None or before is None or room.cap != before.cap or self._is_too_much(now, before, room):
            now.forget()
        if now.settled or (room is not None and len(now.windows) <= self._in_a_step()):
            return
        found: list[Found] = [(path, now.bytes.get(path), now.seconds.get(path, 0.0)) for path in self.paths]
        kept, often = now.kept, self._in_a_step()
        left = None
        if room is not None:
            now.most = max(window.used + window.peak + Budget.grown - window.grown for window in now.windows)
            now.used = max(window.used for window in now.windows)
            left = (_limit(room) - now.most) // often
        rows = choose(found, left, kept)
        more = sum(row.saved_bytes or 0 for row in rows if not row.recomputed and row.path not in kept)
        Budget.grown += more * often
        now.decisions, now.windows = {row.path: row for row in rows}, []
        now.settled = not more and all(size is not None for _, size, _ in found)

    def _is_too_much(self, now: _Shapes, before: Room, room: Room) -> bool:
        """Whether memory has been refused since, or a step begins with more beside it than when this was decided."""
        grown = max(0, room.used - now.used) if self._calls == 1 else 0
        return bool(now.kept) and (room.refusals > before.refusals or (now.settled and now.most + grown > _limit(room)))

    def _in_a_step(self) -> int:
        """How many forward passes a step has: their activations may all be there at once."""
        return 1 if not self._steps and self._begins > self.WITHOUT_STEPS else self._most_calls

    @contextmanager
    def measured(self, path: str, inputs: Any) -> Iterator[None]:
        """Count what the forward pass of a block saves for its backward pass, and how long it takes: in one pass of the model."""
        now = self._now.shapes
        if now is None or now.passes < 2 or now.measured.setdefault(path, now.passes) != now.passes:
            yield
            return
        tensors = [value for value in tree_leaves(inputs) if isinstance(value, torch.Tensor)]
        begin = _clock(tensors)
        with counting_saved(tensors, []) as sizes:
            yield
        now.seconds[path] = now.seconds.get(path, 0.0) + _clock(tensors) - begin
        now.bytes[path] = now.bytes.get(path, 0) + sum(sizes.values())


def _limit(room: Room) -> int:
    return int(room.cap * (1 - MARGIN))


def _is_within(key: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    """Whether inputs of shapes *key* are of the kinds of *other*, and none is larger."""
    return len(key) == len(other) and all(
        kind == of and len(one) == len(two) and all(a <= b for a, b in zip(one, two, strict=True))
        for (one, kind), (two, of) in zip(key, other, strict=True)
    )


def _clock(tensors: list[torch.Tensor]) -> float:
    device = next((tensor.device for tensor in tensors if tensor.device.type not in ("cpu", "meta")), None)
    if device is not None:
        torch.get_device_module(device).synchronize(device)
    return time.perf_counter()


@contextmanager
def counting_saved(inputs: list[torch.Tensor], references: list[StorageWeakRef]) -> Iterator[dict[int, int]]:
    """Number of a storage → its bytes, of what is saved meanwhile beside *inputs* and parameters; torch's hooks stay in force.

    What is saved may go at once: as long as there are *references* to it, its number does not come again.
    """
    sizes: dict[int, int] = {}
    given = {tensor.untyped_storage()._cdata for tensor in inputs if tensor.layout is torch.strided}
    pack, unpack = _C._autograd._top_saved_tensors_default_hooks(True) or (lambda tensor: tensor, lambda packed: packed)

    def count(tensor: torch.Tensor) -> Any:
        if tensor.layout is torch.strided and not is_of_leaf(tensor):
            storage = tensor.untyped_storage()
            if storage._cdata not in given:
                references.append(StorageWeakRef(storage))
                sizes[storage._cdata] = storage.nbytes()
        return pack(tensor)

    with torch.autograd.graph.saved_tensors_hooks(count, unpack):
        yield sizes
