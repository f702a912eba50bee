"""Calls an operator again as when it raised: with what went into it, and in the same modes. Requires torch and NumPy.

``enable_exception_dump`` writes a copy of this file beside what it keeps of an operator. Arguments: what to import before
(modules, or files), for an operator that is not PyTorch's own.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import os
import runpy
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch


def main() -> None:
    path = Path(__file__).resolve()
    found = json.loads(path.with_name(path.name.replace(".replay.py", ".json")).read_text())
    operator, settings = _operator(found, found["source"]), found["settings"]
    if (workspace := found["workspace"])["bytes"] is not None:
        print(workspace["note"], file=sys.stderr)
    make = functools.partial(_value, inputs=_Inputs(found, path.parent))
    given = {name: make(value) for name, value in found["attributes"].items()}
    torch.set_default_dtype(getattr(torch, settings["dtype"]))
    torch.use_deterministic_algorithms(settings["deterministic"], warn_only=settings["only_warns"])
    with _context(found["options"]), contextlib.ExitStack() as modes:
        modes.enter_context(torch.inference_mode(settings["inference"]))
        modes.enter_context(torch.set_grad_enabled(settings["grad"]))
        for kind, dtype in settings["autocast"].items():
            modes.enter_context(torch.autocast(kind, getattr(torch, dtype)))
        schema = {one.name: one.kwarg_only for one in operator._schema.arguments}
        by_place, by_name = ([name for name in schema if schema[name] is by_name] for by_name in (False, True))
        print(operator(*(given[name] for name in by_place), **{name: given[name] for name in by_name}))


def _context(options: dict[str, Any]) -> contextlib.AbstractContextManager[object]:
    """The algorithms that were asked for; of memory, where a limit refused it, what the operator could have beside its inputs."""
    if not options:
        return contextlib.nullcontext()
    asked = f"msctx.context({', '.join(f'{name}={value!r}' for name, value in options.items())})"
    try:
        msctx = importlib.import_module("msctx")
    except ImportError:
        print(f"msctx is not installed here: the operator is called without {asked}", file=sys.stderr)
        return contextlib.nullcontext()
    try:
        context: contextlib.AbstractContextManager[object] = msctx.context(**options)
    except msctx.errors.OptionError as error:
        print(f"the operator is called without {asked}, which does not hold here: {error}", file=sys.stderr)
        return contextlib.nullcontext()
    print(f"called under {asked}", file=sys.stderr)
    return context


def _operator(found: dict[str, Any], source: dict[str, Any]) -> Any:
    """Where it is not PyTorch's own, what registered it is imported."""
    space, name = found["operator"].split("::")
    sys.path += [os.getcwd(), *(one["folder"] for one in source["modules"])]
    for given in sys.argv[1:]:
        runpy.run_path(given) if given.endswith(".py") else importlib.import_module(given)
    loads: list[Callable[[], object]] = [functools.partial(torch.ops.load_library, library) for library in source["libraries"]]
    loads += [functools.partial(importlib.import_module, one["module"]) for one in source["modules"]]
    if space == "msctx":
        loads = [_load_msctx]
    problems: list[str] = []
    for load in (lambda: None, *loads):
        try:
            load()
            return getattr(getattr(getattr(torch.ops, space), name), found["overload"] or "default")
        except Exception as error:
            problems.append(f"\n{type(error).__name__}: {error}")
    raise SystemExit(
        f"{found['operator']} is not known here. It was registered by {source['by']}. To import what registers it: "
        f"python {sys.argv[0]} MODULE_OR_FILE.py{''.join(problems[1:])}"
    )


def _load_msctx() -> None:
    importlib.import_module("msctx.native.core").load()


@functools.cache
def _device(name: str) -> torch.device:
    try:
        return torch.empty(0, device=name).device
    except Exception as error:
        reason = str(error).splitlines()[0]
        print(f"there is no device {name} here ({reason}): the CPU stands for it", file=sys.stderr)
        return torch.device("cpu")


class _Computed(torch.autograd.Function):
    """Makes its argument no leaf of a graph."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(tensor)
        return tensor


class _View(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, *geometry: Any) -> torch.Tensor:
        return tensor.as_strided(*geometry)


def _in_graph(tensor: torch.Tensor, graph: str) -> torch.Tensor:
    if graph == "leaf":
        return tensor.requires_grad_()
    return _Computed.apply(tensor, torch.zeros((), requires_grad=True)) if graph == "computed" else tensor


def _view(base: torch.Tensor, way: str, result: int, sizes: Sequence[int], strides: Sequence[int], offset: int) -> Any:
    """How a view was made decides whether it may be written to."""
    if way == "function":
        return _View.apply(base, sizes, strides, offset)
    if way == "several":
        return base.as_strided([result + 1, *sizes], [0, *strides], offset).unbind()[result]
    modes = {"no_grad": torch.no_grad, "inference": torch.inference_mode}
    with modes.get(way, contextlib.nullcontext)():
        return base.as_strided(sizes, strides, offset)


def _lazily(t: dict[str, Any], tensor: torch.Tensor) -> torch.Tensor:
    """As a view whose memory holds other signs: of what is in memory what it stands for, and the other way round."""
    tensor = tensor.conj() if t.get("is_conj") else tensor
    return torch._neg_view(tensor) if t.get("is_neg") else tensor


class _Inputs:
    def __init__(self, found: dict[str, Any], folder: Path) -> None:
        self._all, self._folder, self._name = found["inputs"], folder, found["operator"].rpartition("::")[2]
        self._memory: dict[int, torch.UntypedStorage] = {}
        """Some may share it."""

    def __getitem__(self, place: int) -> Any:
        t = self._all[place]
        if not t["file"]:
            named = f"{t['argument'] or 'unnamed'}, {t['dtype']}[{t['shape']}]"
            raise SystemExit(f"input {place} ({named}) cannot be made again: a {t['unread']} tensor's values are not saved")
        loaded = torch.from_numpy(np.load(self._folder / t["file"])).to(_device(t["device"]), getattr(torch, t["dtype"]))
        if t.get("is_number") and torch._C._should_allow_numbers_as_tensors(self._name):
            return loaded.item()
        with torch.inference_mode(t["is_inference"]):
            return self._made(t, loaded)

    def _made(self, t: dict[str, Any], loaded: torch.Tensor) -> torch.Tensor:
        if (memory := self._memory.get(t["storage"])) is None:
            memory = self._memory[t["storage"]] = torch.UntypedStorage(t["storage_bytes"], device=loaded.device)
        strides = [int(n) for n in t["strides"].split("x") if n]
        empty = functools.partial(torch.empty, 0, dtype=loaded.dtype, device=loaded.device)
        made = empty().set_(memory, t["offset"], loaded.shape, strides)
        once = tuple(slice(None) if n else slice(1) for n in strides)  # what is expanded has each value once
        made[once].copy_(_lazily(t, loaded[once]))
        if "view" in t:
            base = _in_graph(empty().set_(memory, 0, [len(memory) // made.itemsize], [1]), t["base"])
            made = _view(base, t["view"], t["result"], loaded.shape, strides, t["offset"])
        made = _lazily(t, made)
        return made if made.requires_grad else _in_graph(made, t["graph"])


def _value(v: Any, inputs: _Inputs) -> Any:
    if isinstance(v, list):
        return [_value(one, inputs) for one in v]
    if not isinstance(v, dict):
        return v
    if "tensor" in v:
        return inputs[v["tensor"]]
    if "float" in v:
        return float(v["float"])
    if "complex" in v:
        return complex(v["complex"])
    if v["torch"] == "Generator":
        made = torch.Generator(_device(v["device"]))
        if made.device == torch.device(v["device"]):
            made.set_state(torch.tensor([*bytes.fromhex(v["state"])], dtype=torch.uint8))
        return made
    if v["torch"].startswith("device:"):
        return _device(v["torch"].partition(":")[2])
    raise SystemExit(f"an argument of type {v['torch']} cannot be made again")


if __name__ == "__main__":
    main()
