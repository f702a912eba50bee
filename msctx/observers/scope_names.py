"""How the modules around an operator are written: ``Default/net-Net/fc-Linear``, or without classes ``Default/net/fc``.

Whether with classes is a matter of each thread, as in MindSpore.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from msctx.native import models

if TYPE_CHECKING:
    from torch import nn


class _Here(threading.local):
    classes: bool = True


_here = _Here()


def with_classes() -> bool:
    """Whether the names of this thread have classes."""
    return _here.classes


def write(classes: bool) -> None:
    _here.classes = classes


_ROOT = " (root)"


def of_root(name: str) -> str:
    """What stands for a model itself, in the place of a path, by the name of its class."""
    return f"{name}{_ROOT}"


def _class_at(path: str) -> str:
    """ "": no watched model has a module there, models have modules of several classes, or a container that is never called."""
    alive = models.alive()
    for found in ([model for known, model in alive if known.is_open], [model for _, model in alive]):
        classes = {class_of(module) for model in found if (module := models.module_at(model, path)) is not None}
        if classes:
            return classes.pop() if len(classes) == 1 else ""
    return ""


def class_of(module: nn.Module) -> str:
    from torch import nn

    return type(module).__name__ if type(module).forward is not nn.Module.forward else ""


def parts(path: str) -> list[str]:
    """``net.fc`` → Default, net-Net, fc-Linear; of a model itself → Default."""
    return ["Default", *_named("" if path.endswith(_ROOT) else path, _class_at if with_classes() else _no_class)]


def in_model(model: nn.Module, *, classes: bool) -> dict[nn.Module, str]:
    """Each module → ``Default/net-Net/fc-Linear``."""
    paths = {module: path.removesuffix("_orig_mod").removesuffix(".") for path, module in models.paths_of(model)}
    by_path = {path: class_of(module) for module, path in paths.items()}
    name = by_path.__getitem__ if classes else _no_class
    return {module: "/".join(["Default", *_named(path, name)]) for module, path in paths.items()}


def _named(path: str, class_at: Callable[[str], str]) -> Iterator[str]:
    keys = [*filter(None, path.split("."))]
    for end, key in enumerate(keys, 1):
        kind = class_at(".".join(keys[:end]))
        yield f"{key}-{kind}" if kind else key


def _no_class(path: str) -> str:
    return ""
