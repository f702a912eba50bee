"""The policies for convolutions and products in the native core, and what ran under them, and why: choices()."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from typing import Any

from msctx.native import core, counter_lifetimes, watched_models
from msctx.options.algorithm_policy import ALONG, PRODUCT, RULES, ConvPolicy, ConvRule, rules_of
from msctx.tables import Row, Rows, in_words

IN_FORCE: dict[str, ConvPolicy] = {}
"""Place, one of :data:`core.PLACES` → its policy."""
LOAD = {"cpu": core.load, "cuda": core.load_with_cuda, "ascend": core.load_with_npu}
"""Place → what brings the library that carries a policy out there."""
_lock = threading.Lock()
times = 0
"""How often a policy has come into force or ceased to be: what one vouches for holds as long as this stays."""


def write(place: str, policy: ConvPolicy | None) -> None:
    # here: with CUDA's compiler they take as long to import as the rest
    from msctx.native import tuning_file, tuning_in_core

    global times
    with _lock:
        times += 1
        text = None
        if policy is None:
            IN_FORCE.pop(place, None)
            if core.loaded() is None:
                return
        else:
            library, IN_FORCE[place] = LOAD[place](), policy
            counter_lifetimes.note(Tally)
            number = tuning_in_core.table(library, policy.tuning_file, place) if policy.measures else 0
            records = os.path.join(policy.work_path, tuning_file.IN_WORK_PATH) if policy.work_path is not None else None
            recording = tuning_in_core.table(library, records, place, only_records=True) if records else 0
            others = {"tuning_file": number, "work_path": recording, "rules": [asdict(rule) for rule in policy.rules]}
            text = core.json_of({**asdict(policy), **others})
        core.load().c.msctx_set_policy(core.PLACES.index(place), text)
        tuning_in_core.keep(core.load())


Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ConvProblem:
    """One convolution or matmul, as PyTorch was called.

    What holds along each spatial axis is a tuple of that many numbers. ``layout`` is ``"channels_first"`` or ``"channels_last"``; for
    operators that no algorithm of msctx replaces, a word for the form of their tensors, and what is not known of them is empty.

    Of a product ``input`` and ``weight`` are its factors as they are multiplied, rows x columns, and ``layout`` has BLAS's letters:
    ``"NT"`` where the left factor lies in rows and the right one transposed, as in ``linear``.
    """

    input: Shape
    weight: Shape
    stride: Shape
    padding: Shape
    dilation: Shape
    output_padding: Shape
    groups: int
    transposed: bool
    dtype: str
    layout: str

    def __str__(self) -> str:
        def text(shape: Shape) -> str:
            return "x".join(map(str, shape))

        words = [f"{text(self.input)} * {text(self.weight)}", self.dtype, *["transposed"] * self.transposed]
        for name, plain in zip(ALONG, (1, 0, 1, 0), strict=True):
            values: Shape = getattr(self, name)
            if {*values} - {plain}:
                words.append(f"{name} {text(values if len({*values}) > 1 else values[:1])}")
        words += [f"groups {self.groups}"] if self.groups != 1 else []
        return ", ".join([*words, self.layout])


@dataclass(frozen=True, slots=True)
class Choice(Row):
    """How one problem was computed.

    Attributes:
        direction: ``"fprop"``, ``"dgrad"`` or ``"wgrad"``; ``"matmul"`` for a matmul.
        problem: its shapes and parameters.
        epilogue: what the same call does to its result in compiled code, such as ``"scale+shift+add+relu"``.
        module: the path of its module, where ``ctx.watch(model)`` knows it, else ``""``.
        requested: the algorithm requested, in MindSpore's words; ``"thread_invariant"`` where only that was.
        ran: the algorithm that ran, ``"torch"`` for torch's own path.
        provider: ``"msctx"``, ``"torch"`` or ``"cudnn"``.
        math: the arithmetic of the products: ``"strict"`` (FMA in float32, or in float64), ``"fp32-grade"`` (emulated float32
            on AMX, no less exact than float32's sums), ``"tf32"``, ``"float64"``, ``"torch"``.
        error: the documented bound of the algorithm's error, in units of the largest result, or where results cancel of the
            largest sum of the products' magnitudes; ``None`` where none is stated (torch, cuDNN). Denormal results err by more: see
            docs/how-to/convolutions.md.
        workspace: bytes in addition to the tensors.
        calls: how often it ran.
        weights_kept: how often the algorithm's form of a weight existed from an earlier call.
        weights_prepared: how often it had to be made, since it was new or the weight had changed.
        reasons: why those ahead of it did not run, and what else is to be known.
    """

    direction: str
    problem: ConvProblem
    epilogue: str
    module: str
    requested: str
    ran: str
    provider: str
    math: str
    error: float | None
    workspace: int
    calls: int
    weights_kept: int
    weights_prepared: int
    reasons: tuple[str, ...]

    @property
    def line(self) -> str:
        """The problem and its epilogue, as the core and tuning files write them."""
        return f"{self.problem}, then {self.epilogue}" if self.epilogue else str(self.problem)


class Choices(Rows[Choice]):
    """Rows of what ran, in the order in which the problems were first met. Prints as a table.

    The core keeps some 4,000 rows of a context and drops those that were used longest ago: ``dropped`` is how many.
    """

    EMPTY = "no convolution or matmul has run under an option for its algorithm"
    ROW, NESTED = Choice, {"problem": ConvProblem}

    def _table(self) -> tuple[list[str], Iterator[list[Any]]]:
        from rich.text import Text

        kept = ["kept"] if any(row.weights_kept for row in self) else []

        def cells(row: Choice) -> list[Any]:
            """Under the problem: why those ahead of what ran did not run."""
            problem = Text(f"{row.module}: " * bool(row.module) + row.line)
            problem.append("".join(f"\n  {reason}" for reason in row.reasons), "dim")
            counted = [str(row.calls), *([str(row.weights_kept)] if kept else [])]
            error = f"{row.error:.1e}" if row.error else ""
            words = [row.direction, problem, row.requested, row.ran, row.provider, row.math]
            return [*words, error, in_words(row.workspace), *counted]

        columns = ["direction", "problem", "requested", "ran", "by", "math", "error", "workspace", "calls", *kept]
        return columns, map(cells, self)


def rows(book: int | None = None) -> Choices:
    """Those of a context; without its number in the library all of the process."""
    if (library := core.loaded()) is None:
        return Choices()
    found = library.c.msctx_book_rows(book)
    return Choices(map(_choice, found["rows"]), found["dropped"])


class Tally:
    """The calls made while a context was open, by whichever of its scopes: a call inside several of them counts once.

    At the end it returns a warning for each rule of the context that no call matched, though some ran under it, and one if
    ``performance`` could measure nothing.
    """

    def __init__(self, context: Any) -> None:
        found = (layer.settings.get(name) for layer in context.layers for name in RULES)
        self.rules = [rule for setting in found if setting is not None for rule in rules_of(setting.value)]
        options = (pair for layer in context.layers for pair in layer.settings.items())
        self.measured = [name for name, setting in options if setting.value == "performance"]
        self._book: int | None = None
        self._is_open = False

    def begin(self) -> None:
        if self._is_open:
            return
        library = core.load()
        if self._book is None:
            self._book = library.c.msctx_book_new(core.json_of([asdict(rule) for rule in self.rules]))
            weakref.finalize(self, library.c.msctx_book_delete, self._book).atexit = False
        library.c.msctx_book_open(self._book)
        self._is_open = True

    def end(self) -> list[str]:
        found = self.unmatched()
        if self._is_open:
            core.load().c.msctx_book_close(self._book)
            self._is_open = False
            found += [*self._unmeasured()] if self.measured else []
        return found

    def _unmeasured(self) -> Iterator[str]:
        reasons = [row.reasons[:1] for row in self.choices() if row.requested == "performance"]
        if reasons and all(reason and reason[0].startswith("not measured: ") for reason in reasons):
            text = f"performance ({', '.join(self.measured)}) measured nothing:{reasons[0][0].partition(':')[2]}"
            yield f"{text}. PyTorch's code ran"  # no error under strict: it begins with no option, and other programs decide

    def unmatched(self) -> list[str]:
        """A warning for each rule that no call has matched."""
        found, place = list[str](), -1
        while self._is_open and (place := core.load().c.msctx_book_unmatched(self._book, place + 1)) >= 0:
            found.append(_unmatched(self.rules[place]))
        return found

    def choices(self) -> Choices:
        return rows(self._book)


def _unmatched(rule: ConvRule) -> str:
    option, what = ("matmul_algo_rules", "product") if rule.is_of_products else ("conv_algo_rules", "convolution")
    is_of_modules = any(field == "module" for field, _ in rule.conditions) and not watched_models.OPEN
    hint = "; msctx.current().watch(model) makes the paths of a model's modules known" if is_of_modules else ""
    return f"{option}: no {what} matched {str(rule).partition(': ')[0]}{hint}"


def _choice(entry: dict[str, Any]) -> Choice:
    """A row of the library, whose fields are those of a choice and of its problem."""
    texts = {one.name: entry.pop(one.name) for one in fields(ConvProblem)}
    axes = max(1, texts["input"].count("x") - 1) if entry["direction"] != PRODUCT else 1
    shapes = {name: tuple(int(number) for number in texts[name].split("x") if number) for name in ("input", "weight", *ALONG)}
    shapes |= {name: shapes[name] * axes for name in ALONG if len(shapes[name]) == 1}
    other = {"groups": int(texts["groups"] or 1), "transposed": texts["transposed"] == "true"}
    problem = ConvProblem(**{**texts, **shapes, **other})
    reasons = entry.pop("reasons")
    if again := entry.pop("computed_again"):
        reasons.append(f"{again} of these calls met values that its arithmetic does not carry, and were computed again by gemm")
    error = entry.pop("error") or None  # 0: no bound is stated
    return Choice(problem=problem, reasons=tuple(reasons), error=error, **entry)


counter_lifetimes.SOURCES[Tally] = IN_FORCE
