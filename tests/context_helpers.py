"""What the tests of contexts share: other threads, an error of their own, names of types."""

import importlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

context_module = importlib.import_module("msctx.context")
State = Callable[[], dict[str, Any]]
Passes = Callable[..., str]
quiet = pytest.mark.filterwarnings("ignore::msctx.errors.MsctxWarning")


def threads() -> int:
    return torch.get_num_threads()


def in_thread(function: Callable[[], Any]) -> Any:
    """Run in another thread and hand its result or its error over."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result(60)


class Elsewhere:
    """Another thread that does one thing after the other, on command."""

    def __enter__(self) -> "Elsewhere":
        self._pool = ThreadPoolExecutor(1)
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()

    def do(self, function: Callable[..., Any], *args: Any) -> Any:
        return self._pool.submit(function, *args).result(60)


class OwnError(Exception):
    pass
