"""The messages between `msctx verify` and its runs: a line of JSON each, over a socket."""

from __future__ import annotations

import json
import socket
from typing import Any

Message = dict[str, Any]


class Wire:
    """One end of it."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._lines = end.makefile("r", encoding="utf-8")

    def fileno(self) -> int:
        return self._end.fileno()

    def send(self, message: Message) -> None:
        self._end.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> Message:
        """The next message.

        Raises:
            EOFError: the other end is closed.
        """
        line = self._lines.readline()
        if not line.endswith("\n"):
            raise EOFError
        return dict(json.loads(line))

    def ask(self, message: Message) -> Message:
        self.send(message)
        return self.receive()

    def close(self) -> None:
        self._lines.close()
        self._end.close()
