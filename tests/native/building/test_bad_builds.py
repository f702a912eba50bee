"""Builds that end badly: killed, interrupted, with an error or a full disk; nothing half done is left or loaded."""

from __future__ import annotations

import signal

import pytest
from builds import edit, leftovers, made
from processes import is_running

from msctx.errors import MsctxError, NativeError


def test_ctrl_c(cache, sources, watched, forked):
    watched.hold("common/api.cpp")
    process = forked(lambda: made())
    compilers = watched.until_stopped()
    process.signal(signal.SIGINT)
    assert process.ended()["raised"] == "KeyboardInterrupt"
    assert not any(is_running(number) for number in compilers)
    assert leftovers(cache) == []
    watched.let_go()
    assert made().exists()


def test_a_kernel_with_a_mistake(cache, sources):
    edit(sources, "common/api.cpp", "generic::one()", "generic::two()")
    with pytest.raises(NativeError) as caught:
        made()
    text = str(caught.value)
    assert isinstance(caught.value, MsctxError)
    assert isinstance(caught.value, RuntimeError)
    assert "the compiler failed" in text
    assert "-c common/api.cpp" in text
    assert "error: " in text
    assert f"The sources are in {sources}" in text
    log = next(cache.glob("build/*/log"))
    assert str(log) in text
    assert "error: " in log.read_text()
    assert "-c common/api.cpp" in log.read_text()
    assert leftovers(cache) == []
    assert [*cache.glob("native/*.so")] == []
    edit(sources, "common/api.cpp", "generic::two()", "generic::one()")
    assert made().exists()
