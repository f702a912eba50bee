"""A plugin for pytest: ``@pytest.mark.msctx(deterministic="ON")``.

pytest loads it wherever msctx is installed, so it imports nothing until it is used.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack
from typing import Any

import pytest

import msctx
from msctx.context import Context
from msctx.options.layer_sources import layer_of, with_preset

MARK = "msctx(preset=None, /, **options): hold options while the test and its fixtures run; marks of classes and modules apply, too"
_OPEN = pytest.StashKey[ExitStack]()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARK)


def _layer(origin: str, preset: Any = None, /, **options: Any) -> Any:
    return layer_of(with_preset(preset, options), origin)


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    """Enter one context of all marks before any fixture is set up, inside of pytest's own wrappers; the nearest mark wins."""
    marks = [*item.iter_markers("msctx")]  # the nearest first
    stack = item.stash[_OPEN] = ExitStack()
    if marks:
        origin = f"mark msctx of {item.nodeid}"
        try:
            layers = [_layer(origin, *mark.args, **mark.kwargs) for mark in reversed(marks)]
            stack.enter_context(Context(tuple(layers), origin))
        except msctx.MsctxError as error:
            raise pytest.fail.Exception(str(error), pytrace=False) from None  # else pytest would show it twice
    return (yield)


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """Leave when the fixtures are gone."""
    try:
        return (yield)
    finally:
        if (stack := item.stash.get(_OPEN, None)) is not None:
            stack.close()
