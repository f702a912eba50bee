"""A plugin for pytest: ``@pytest.mark.msctx(deterministic="ON")``, and ``--msctx`` for all tests.

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
from msctx.options.registry import from_text

HELP = "hold an option (KEY=VALUE), or a preset (its name, or the path of a YAML file), in all tests; may be repeated"
MARK = "msctx(preset=None, /, **options): hold options while the test and its fixtures run; marks of classes and modules apply, too"
_OPEN = pytest.StashKey[ExitStack]()
_FOR_ALL = pytest.StashKey["list[Any]"]()
"""Layers of options."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("msctx").addoption("--msctx", action="append", default=[], metavar="PRESET|KEY=VALUE", help=HELP)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARK)
    config.stash[_FOR_ALL] = _for_all(config.getoption("--msctx"))


def _for_all(words: list[str]) -> list[Any]:
    """One layer for each preset, and one for the options: they win."""
    if not words:
        return []

    presets = [word for word in words if "=" not in word]
    keys = dict(word.split("=", 1) for word in words if "=" in word)
    try:
        options = {key: from_text(key, text) for key, text in keys.items()}
        return [*(_layer("--msctx", preset) for preset in presets), _layer("--msctx", **options)]
    except msctx.MsctxError as error:
        raise pytest.UsageError(str(error)) from None


def _layer(origin: str, preset: Any = None, /, **options: Any) -> Any:
    return layer_of(with_preset(preset, options), origin)


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    """Enter one context of all marks before any fixture is set up, inside of pytest's own wrappers; the nearest mark wins."""
    marks = [*item.iter_markers("msctx")]  # the nearest first
    stack = item.stash[_OPEN] = ExitStack()
    if marks or item.config.stash[_FOR_ALL]:
        origin = f"mark msctx of {item.nodeid}" if marks else "--msctx"
        try:
            layers = [_layer(origin, *mark.args, **mark.kwargs) for mark in reversed(marks)]
            stack.enter_context(Context((*item.config.stash[_FOR_ALL], *layers), origin))
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
