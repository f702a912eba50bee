"""How the modules around an operator are written: ``Default/net-Net/fc-Linear``, or without classes ``Default/net/fc``.

Whether with classes is a matter of each thread, as in MindSpore.
"""

from __future__ import annotations

import threading


class _Here(threading.local):
    classes: bool = True


_here = _Here()


def with_classes() -> bool:
    """Whether the names of this thread have classes."""
    return _here.classes


def write(classes: bool) -> None:
    _here.classes = classes
