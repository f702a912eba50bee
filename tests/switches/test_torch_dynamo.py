"""Code that is compiled under other settings is other code to Dynamo."""

from __future__ import annotations

from typing import Any

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
