"""What ``run()`` of a session is to do, in each thread: values that :mod:`msctx.context.session` reads at each call."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

from msctx.switches.base import Switch, reading, writing


class _Here(threading.local):
    def __init__(self) -> None:
        self.values: dict[str, Any] = {}


_here = _Here()


def value(name: str) -> Any:
    """What is requested in this thread; ``None``: nothing."""
    return _here.values.get(name)


def _write(name: str, requested: Any) -> None:
    _here.values[name] = requested


def _kept(name: str) -> Switch:
    return Switch(name=name, read=partial(value, name), write=partial(_write, name), scope="thread")


SWITCHES = (
    _kept("session.graph_run_mode"),
    _kept("session.iterations_per_loop"),
    _kept("session.graph_max_parallel_model_num"),
    _kept("session.low_precision.cpu"),
    _kept("session.low_precision.cuda"),
    _kept("session.low_precision.ascend"),
    Switch(
        name="torch.dataloader.shared",
        read=reading("msctx.native.shared_batches:read"),
        write=writing("msctx.native.shared_batches:write"),
        scope="thread",
    ),
)
