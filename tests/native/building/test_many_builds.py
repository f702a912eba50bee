"""Many processes and threads that want the same build: one makes it, the others wait."""

from __future__ import annotations

import time

from builds import ISAS, made


def test_many_processes_at_once_build_once(sources, watched, forked):
    watched.hold("common/api.cpp")
    processes = [forked(lambda: made()) for _ in range(6)]
    watched.until_stopped()
    end = time.monotonic() + 10
    while sum("waiting for it" in process.said for process in processes) < 5 and time.monotonic() < end:
        time.sleep(0.05)
    watched.let_go()
    answers = [process.ended() for process in processes]
    assert len({answer["returned"] for answer in answers}) == 1
    assert len(watched.compiled) == ISAS + 1
    said = [process.said for process in processes]
    assert sum("built the kernels" in text for text in said) == 1
    assert sum(text == "msctx: another process is building kernels; waiting for it\n" for text in said) == 5
