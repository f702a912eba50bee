"""Shows a :class:`msctx.graph.files.Writer` the graphs that torch.compile goes through, whoever calls it.

torch has no hooks for that. Its custom passes would be part of the keys of its caches, and would have to be chained with the
program's own; the functions below are called with each graph in every version, and observing them changes nothing that they do. Code
that comes out of a cache passes none of them but the first, and in torch 2.11 the second.
"""

from __future__ import annotations

import copy
import re
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any

from torch import fx

from msctx import notices
from msctx.dynamo import outside_dynamo
from msctx.graph.files import OPTION, Writer
from msctx.imports import when_imported
from msctx.observers import scope_names
from msctx.options.observation import GraphFiles

Function = Callable[..., Any]

BOOTSTRAP = "00_bootstrap"
"""As Dynamo has captured it."""
TYPE_INFERENCE = "01_type_inference"
"""As AOTAutograd traces it: after inductor's passes before that, and with all types."""
AUTO_MONAD = "03_auto_monad"
"""Forward and backward together, without side effects."""
VALIDATE = "16_validate"
"""The forward graph and the backward graph, as the back end is given them."""
TASK_EMIT = "17_task_emit"
"""What inductor begins with."""


@dataclass
class _Compilation:
    """What is written of one graph that Dynamo has captured."""

    writer: Writer
    number: str
    """Dynamo's, ``0/0``."""
    classes: bool
    kind: str = "graph"
    """Which of its graphs this is: forward, backward …"""
    built: int | None = None
    passes: Counter[str] = field(default_factory=Counter)

    def write(self, stem: str, gm: Any, *, ended: str = "") -> None:
        """*ended*: the pass that has made it."""
        if isinstance(gm, fx.GraphModule):
            name = f"{self.kind}_{re.sub(r'[^0-9]+', '_', self.number)}" if self.number else self.kind
            known = {"compile_id": self.number or "unknown", "graph": self.kind}
            self.writer.graph(stem, gm, name, classes=self.classes, attrs=known | ({"pass": ended} if ended else {}))

    def pass_ended(self, stem: str, name: str, gm: Any, *, changed: bool) -> None:
        """Below level 3 those that have changed nothing, or run inside others, leave no file, only a gap in the numbers."""
        self.passes[stem] += 1
        if self.writer.settings.level >= 3 or changed:
            readable = re.sub(r"\W", "_", name)
            self.write(f"{stem}_{self.passes[stem]}_{readable}", gm, ended=name)


class _Here(threading.local):
    def __init__(self) -> None:
        self.compilation: _Compilation | None = None
        self.passes: list[str] = []
        """Those that run now, the outermost first: the graph as it was before each."""


_here = _Here()
_current: Writer | None = None


@contextmanager
def _compiling(found: _Compilation) -> Iterator[None]:
    before, _here.compilation = _here.compilation, found
    try:
        yield
    finally:
        _here.compilation = before


def _compilation() -> _Compilation | None:
    """The one that goes on in this thread; code of inductor alone, without Dynamo, has none of its own."""
    return _here.compilation or _new("")


def _new(number: str) -> _Compilation | None:
    writer = _current  # a scope may end meanwhile, in another thread
    return None if writer is None else _Compilation(writer, number, scope_names.with_classes())


def _number() -> str:
    guards = sys.modules["torch._guards"]
    return str(guards.CompileContext.current_compile_id() or "")


# --- what torch calls -------------------------------------------------------------------------------------------------


def _captured(call: Function) -> Function:
    @outside_dynamo
    @wraps(call)
    def captured(self: Any, gm: Any, *args: Any, **kwargs: Any) -> Any:
        if (found := _new(_number())) is not None:
            found.write(BOOTSTRAP, gm)
        return call(self, gm, *args, **kwargs)

    return captured


def _differentiated(call: Function) -> Function:
    """AOTAutograd, with its compilers and passes looked on. The backward graph may be compiled long after, in another thread."""

    @wraps(call)
    def differentiated(gm: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if args or (found := _new(_number())) is None:  # our torch gives all of it by name
            return call(gm, inputs, *args, **kwargs)
        if kwargs.get("pre_grad_passes") is None:
            found.write(TYPE_INFERENCE, gm)
        for key, look in _PARTS.items():
            if kwargs.get(key) is not None:
                kwargs[key] = look(kwargs[key], found)
        return call(gm, inputs, **kwargs)

    return differentiated


def _prepared(passes: Function, found: _Compilation) -> Function:
    @wraps(passes)
    def prepared(gm: Any, *args: Any, **kwargs: Any) -> Any:
        with _compiling(found):
            result = passes(gm, *args, **kwargs)
        found.write(TYPE_INFERENCE, result)
        return result

    return prepared


def _partitioned(partition: Function, found: _Compilation) -> Function:
    @wraps(partition)
    def partitioned(gm: Any, *args: Any, **kwargs: Any) -> Any:
        joint = copy.copy(found)
        joint.kind = "joint"
        joint.write(AUTO_MONAD, gm)
        with _compiling(joint):
            return partition(gm, *args, **kwargs)

    return partitioned


def _compiled(kind: str) -> Callable[[Any, _Compilation], Any]:
    def look(compiler: Any, found: _Compilation) -> Any:
        if hasattr(compiler, "compiler_fn"):  # AOTAutograd's cache asks for its class
            ours = copy.copy(compiler)
            ours.compiler_fn = look_on(compiler.compiler_fn, found)
            return ours
        return look_on(compiler, found)

    def look_on(compiler: Function, found: _Compilation) -> Function:
        @outside_dynamo
        @wraps(compiler)
        def compiled(gm: Any, *args: Any, **kwargs: Any) -> Any:
            one = _Compilation(found.writer, found.number, found.classes, kind)
            one.write(VALIDATE, gm)
            with _compiling(one):
                return compiler(gm, *args, **kwargs)

        return compiled

    return look


_PARTS: dict[str, Callable[[Any, _Compilation], Any]] = {
    "pre_grad_passes": _prepared,
    "partition_fn": _partitioned,
    "fw_compiler": _compiled("forward"),
    "bw_compiler": _compiled("backward"),
    "inference_compiler": _compiled("inference"),
}
"""Of AOTAutograd's arguments those that are given graphs."""

_FRONT_END, _BACK_END = ("opt_pass", 3), ("hwopt", 2)
"""How the names begin of the files of passes, and the level that they are of."""


def _entered(enter: Function) -> Function:
    """A pass of inductor begins, perhaps inside another one."""

    @wraps(enter)
    def entered(self: Any) -> Any:
        _here.passes.append(str(self.gm.graph) if _stem(self) else "")
        return enter(self)

    return entered


def _left(leave: Function) -> Function:
    @wraps(leave)
    def left(self: Any, kind: Any, *args: Any) -> Any:
        result = leave(self, kind, *args)
        before = _here.passes.pop() if _here.passes else ""
        if kind is None and (stem := _stem(self)) and (found := _compilation()) is not None:
            changed = not _here.passes and str(self.gm.graph) != before
            found.pass_ended(stem, self.passname, self.gm, changed=changed)
        return result

    return left


def _stem(one: Any) -> str:
    """Of the files of a pass; "": it leaves none."""
    stem, level = _BACK_END if getattr(one, "subsystem", None) == "post_grad_passes" else _FRONT_END
    found = _compilation()
    return stem if found is not None and found.writer.settings.level >= level else ""


def _debugged(get: Function) -> Function:
    """Inductor hands what it makes to a handler of its own, which is asked for each by name."""

    @wraps(get)
    def debugged(self: Any, name: str) -> Any:
        theirs, ours = get(self, name), _SHOWN.get(name)
        if ours is None or (found := _compilation()) is None or found.writer.settings.level < 2:
            return theirs

        def shown(*args: Any, **kwargs: Any) -> Any:
            ours(found, *args, **kwargs)
            return None if theirs is None else theirs(*args, **kwargs)

        return shown

    return debugged


def _begun(found: _Compilation, gm: Any, *_: Any) -> None:
    found.write(TASK_EMIT, gm)


def _built(found: _Compilation, gm: Any, *_: Any) -> None:
    found.built = found.writer.number()
    found.write(f"graph_build_{found.built}", gm)


def _lowered(when: str) -> Callable[[_Compilation, Sequence[Any]], None]:
    def write(found: _Compilation, nodes: Sequence[Any]) -> None:
        found.writer.text(f"ir_{when}_fusion_{found.built}", "txt", lambda: "\n\n\n".join(node.debug_str() for node in nodes))

    return write


def _generated(found: _Compilation, filename: str, extension: str = "py") -> None:
    found.writer.text(f"output_code_{found.built}", extension, lambda: Path(filename).read_text(encoding="utf-8"))


_SHOWN: dict[str, Function] = {
    "fx_graph": _begun,
    "fx_graph_transformed": _built,
    "ir_pre_fusion": _lowered("pre"),
    "ir_post_fusion": _lowered("post"),
    "output_code": _generated,
}


# --- putting them in place --------------------------------------------------------------------------------------------


@dataclass
class _Place:
    """A function of torch, by module, class and name, and what observes it."""

    module: str
    owner: str
    name: str
    wrap: Callable[[Function], Function]
    theirs: Any = None
    ours: Any = None
    give_up: Callable[[], None] = lambda: None

    def look_on(self) -> None:
        self.give_up = when_imported(self.module, self._replace)

    def _replace(self) -> None:
        module = sys.modules[self.module]
        owner = getattr(module, self.owner, None) if self.owner else module
        theirs = vars(owner).get(self.name) if owner is not None else None
        if theirs is None:
            where = ".".join(filter(None, (self.module, self.owner, self.name)))
            text = f"{OPTION}: this version of torch has no {where}: the graphs that it is given are not written"
            notices.warn(OPTION, where, text)
            return
        if theirs not in (self.theirs, self.ours):
            self.theirs, self.ours = theirs, self._made(theirs)
        setattr(owner, self.name, self.ours)

    def _made(self, theirs: Function) -> Function:
        """An earlier one may still be in it, inside of what somebody else has put there, and does nothing from now on."""
        observed = self.wrap(theirs)

        @wraps(theirs)
        def ours(*args: Any, **kwargs: Any) -> Any:
            return (observed if self.ours is ours else theirs)(*args, **kwargs)

        return ours

    def look_away(self) -> None:
        self.give_up()
        if self.ours is None:
            return
        module = sys.modules[self.module]
        owner = getattr(module, self.owner) if self.owner else module
        if vars(owner).get(self.name) is self.ours:  # else somebody has wrapped it meanwhile: ours does nothing from now on
            setattr(owner, self.name, self.theirs)


_PLACES = (
    _Place("torch._dynamo.output_graph", "OutputGraph", "call_user_compiler", _captured),
    _Place("torch._dynamo.backends.common", "", "aot_module_simplified", _differentiated),
    _Place("torch.fx.passes.graph_transform_observer", "GraphTransformObserver", "__enter__", _entered),
    _Place("torch.fx.passes.graph_transform_observer", "GraphTransformObserver", "__exit__", _left),
    _Place("torch._inductor.debug", "DebugContext", "__getattr__", _debugged),
)


def read() -> dict[str, Any] | None:
    return None if _current is None else asdict(_current.settings)


def write(settings: GraphFiles | None) -> None:
    load(None if settings is None else Writer(settings, _current))


def obstacle(settings: GraphFiles | None) -> str:
    """Why nothing can be written, or ``""``."""
    return "" if settings is None else Writer(settings, _current).obstacle()


def save() -> Writer | None:
    return _current


def load(writer: Writer | None) -> None:
    global _current
    before, _current = _current, writer
    if before is None and writer is not None:
        for place in _PLACES:
            place.look_on()
    elif before is not None and writer is None:
        for place in _PLACES:
            place.look_away()
