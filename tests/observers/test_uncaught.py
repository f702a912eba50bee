"""A function in front of another one, such as the one that shows an exception that nobody has caught."""

from __future__ import annotations

from typing import Any

from msctx.observers.uncaught import Hook


def test_what_stands_in_front_meanwhile_stays() -> None:
    class Owner:
        excepthook = staticmethod(lambda *args: shown.append(args))

    owner, shown = Owner(), list[tuple[Any, ...]]()
    hook = Hook(owner, "excepthook", lambda args: (*args, "why"))
    ours = owner.excepthook
    owner.excepthook = staticmethod(lambda *args: ours("theirs", *args))  # as torch does when it makes a process group
    theirs = owner.excepthook
    owner.excepthook("error")
    hook.remove()
    owner.excepthook("error")
    assert owner.excepthook is theirs
    assert shown == [("theirs", "error", "why"), ("theirs", "error")]
