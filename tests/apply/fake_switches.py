"""What the tests of ledger.py share: a made-up library with globals, and switches that move them."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from msctx.context import ledger
from msctx.switches import Switch


class Globals(dict[str, Any]):
    """Globals of a made-up library, the switches that move them, and a log of every write."""

    def __init__(self, *names: str) -> None:
        super().__init__({name: f"{name} found" for name in names})
        self.log: list[tuple[str, Any]] = []
        self.on_write: Callable[[str, Any], None] = lambda name, value: None

    def switch(self, name: str, **more: Any) -> Switch:
        def write(value: Any) -> None:
            self.on_write(name, value)
            self[name] = value
            self.log.append((name, value))

        return Switch(name=name, read=lambda: self[name], write=write, **more)


FOUND = {"a": "a found", "b": "b found", "c": "c found"}
NEW = {"a": 1, "b": 2, "c": 3}


def change_one(monkeypatch: pytest.MonkeyPatch, name: str, **fields: Any) -> None:
    """Give one real switch other functions for the length of a test."""
    monkeypatch.setattr(ledger, "SWITCHES", {**ledger.SWITCHES, name: dataclasses.replace(ledger.SWITCHES[name], **fields)})
