"""What a session's run() is to do is each thread's own."""

import threading

from msctx.context import ledger
from msctx.switches import SWITCHES
from msctx.switches.sessions import value


def test_each_thread_has_values_of_its_own() -> None:
    name = "session.iterations_per_loop"
    elsewhere: list[object] = []
    hold = ledger.apply({name: 3}, ledger.Hold("test"))
    try:
        assert value(name) == SWITCHES[name].read() == 3
        thread = threading.Thread(target=lambda: elsewhere.append(value(name)))
        thread.start()
        thread.join()
    finally:
        ledger.undo(hold)
    assert elsewhere == [None]
    assert value(name) is None
