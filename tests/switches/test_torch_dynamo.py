"""Code that is compiled under other settings is other code to Dynamo."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from msctx.switches import SWITCHES

switch = SWITCHES["torch.dynamo.apart"]


def test_code_is_compiled_once_for_each_content() -> None:
    compiled = 0

    def backend(graph: Any, inputs: Any) -> Any:
        nonlocal compiled
        compiled += 1
        return graph.forward

    f, x = torch.compile(lambda x: x + 1, backend=backend), torch.ones(2)
    outside = switch.take()
    f(x)
    for word, expected in (("a", 2), ("b", 3), ("a", 3)):
        switch.set((word,))
        f(x)
        assert (switch.read(), compiled) == ([word], expected)
    switch.put_back(outside)
    f(x)
    assert (switch.read(), compiled) == (None, 3)


def test_what_was_found_comes_back() -> None:
    found = torch.is_autocast_enabled("mtia"), torch.get_autocast_dtype("mtia"), torch.is_autocast_enabled("cpu")
    state = switch.take()
    switch.set(("a",))
    inner = switch.take()
    switch.set(None)
    switch.put_back(inner)
    assert switch.read() == ["a"]
    assert torch.is_autocast_enabled("mtia")
    switch.put_back(state)
    assert (torch.is_autocast_enabled("mtia"), torch.get_autocast_dtype("mtia"), torch.is_autocast_enabled("cpu")) == found


def test_a_path_is_where_it_led_when_it_was_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same text under another directory is another folder; as long as it is in force it stays the first one."""
    outside = switch.take()
    first, second = tmp_path / "first", tmp_path / "second"
    words = ("dump_cce", "debug_dir=kept", "ge.debugDir=kept")

    def led(folder: Path) -> list[str]:
        return ["dump_cce", f"debug_dir={folder / 'kept'}", f"ge.debugDir={folder / 'kept'}"]

    for folder in (first, second):
        folder.mkdir()
        monkeypatch.chdir(folder)
        switch.set(words)
        assert switch.read() == led(folder)
        monkeypatch.chdir(tmp_path)
        assert switch.is_satisfied(words)
        switch.set((*words, "oom"))
        assert switch.read() == [*led(folder), "oom"]
        switch.put_back(outside)
    monkeypatch.chdir(first)
    switch.set(words)
    number = torch.get_autocast_dtype("mtia")
    monkeypatch.chdir(second)
    assert not switch.is_satisfied(("dump_cce", f"debug_dir={second / 'kept'}", f"ge.debugDir={second / 'kept'}"))
    switch.put_back(outside)
    switch.set(words)
    assert torch.get_autocast_dtype("mtia") != number
    switch.put_back(outside)
