"""A plugin for pytest: ``@pytest.mark.msctx(deterministic="ON")``, and ``--msctx`` for all tests.

pytest loads it wherever msctx is installed, so it imports nothing until it is used.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack
from typing import Any

import pytest

HELP = "hold an option (KEY=VALUE), or a preset (its name, or the path of a YAML file), in all tests; may be repeated"
MARK = "msctx(preset=None, /, **options): hold options while the test and its fixtures run; marks of classes and modules apply, too"
_OPEN = pytest.StashKey[ExitStack]()
_FOR_ALL = pytest.StashKey["list[Any]"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("msctx").addoption("--msctx", action="append", default=[], metavar="PRESET|KEY=VALUE", help=HELP)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARK)
    config.stash[_FOR_ALL] = _contexts(config.getoption("--msctx"))


def _contexts(words: list[str]) -> list[Any]:
    """One for each preset, and one for the options: they win."""
    if not words:
        return []
    import msctx
    from msctx.options.registry import from_text

    presets = [word for word in words if "=" not in word]
    keys = dict(word.split("=", 1) for word in words if "=" in word)
    try:
        options = {key: from_text(key, text) for key, text in keys.items()}
        return [*map(msctx.context, presets), msctx.context(**options)]
    except msctx.MsctxError as error:
        raise pytest.UsageError(f"--msctx: {error}") from None


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    """Enter before any fixture is set up, inside of pytest's own wrappers; one context in another, so that the nearest mark wins."""
    marks = [*item.iter_markers("msctx")]  # the nearest first
    stack = item.stash[_OPEN] = ExitStack()
    for context in item.config.stash[_FOR_ALL]:
        stack.enter_context(context)
    if marks:
        import msctx

        for mark in reversed(marks):
            stack.enter_context(msctx.context(*mark.args, **mark.kwargs))
    return (yield)


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """Leave when the fixtures are gone."""
    try:
        return (yield)
    finally:
        if (stack := item.stash.get(_OPEN, None)) is not None:
            stack.close()
