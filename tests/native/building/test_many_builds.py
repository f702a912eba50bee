"""Many processes and threads that want the same build: one makes it, the others wait."""

from __future__ import annotations

import threading
import time

from builds import ISAS, made

from msctx.native import artifacts


def test_many_processes_at_once_build_once(sources, watched, forked):
    watched.hold("common/api.cpp")
    processes = [forked(lambda: made(sources).path) for _ in range(6)]
    watched.until_stopped()
    end = time.monotonic() + 10
    while sum("waiting for it" in process.said for process in processes) < 5 and time.monotonic() < end:
        time.sleep(0.05)
    watched.let_go()
    answers = [process.ended() for process in processes]
    assert len({answer["returned"] for answer in answers}) == 1
    assert len(watched.compiled) == ISAS + 1
    said = [process.said for process in processes]
    assert sum("built the native core" in text for text in said) == 1
    assert sum(text == "msctx: another process is building the native core; waiting for it\n" for text in said) == 5


def test_many_threads_at_once_build_once(sources, watched):
    found = []
    threads = [threading.Thread(target=lambda: found.append(made(sources).path)) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 5
    assert len(watched.compiled) == ISAS + 1


def test_a_process_that_is_forked_during_a_build_does_not_hold_it_up(sources, watched, forked):
    watched.hold("common/api.cpp")
    thread = threading.Thread(target=made, args=(sources,))
    thread.start()
    watched.until_stopped()
    child = forked(lambda: time.sleep(600))
    watched.let_go()
    thread.join()
    second = forked(lambda: made(sources).cached)
    assert second.ended() == {"returned": True}
    with artifacts._locked(made(sources).path.stem, None):
        assert child.process.is_alive()
