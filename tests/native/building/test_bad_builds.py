"""Builds that end badly: killed, interrupted, with an error or a full disk; nothing half done is left or loaded."""

from __future__ import annotations

import resource
import shutil
import signal
import sys
import time

import pytest
from builds import ISAS, call, edit, leftovers, made
from processes import is_running, until

from msctx.errors import MsctxError, NativeError
from msctx.native import build


@pytest.mark.parametrize(
    ("number", "word"),
    [
        (signal.SIGKILL, "common/api.cpp"),
        (signal.SIGINT, "-shared"),
        pytest.param(signal.SIGTERM, "common/api.cpp", marks=pytest.mark.full),
        pytest.param(signal.SIGHUP, "-shared", marks=pytest.mark.full),
    ],
)
def test_a_build_that_is_ended_takes_its_compilers_with_it_and_leaves_nothing(cache, sources, watched, forked, word, number):
    watched.hold(word)

    def build():
        for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # whoever started the tests may ignore them
            signal.signal(one, signal.SIG_DFL)
        return made(sources).path

    process = forked(build)
    held = watched.until_stopped()
    process.signal(number)
    assert process.ended() == {"killed": -number}
    until(lambda: not any(map(is_running, held)) and leftovers(cache) == [])
    assert [*cache.glob("native/*.so")] == []
    watched.let_go()
    built = made(sources)
    assert not built.cached
    assert leftovers(cache) == []
    assert forked(lambda: call(built.path)).ended() == {"returned": 41}


def test_builds_that_are_killed_at_any_moment(cache, sources, watched, forked):
    began = time.monotonic()
    made(sources)
    whole = time.monotonic() - began
    for step in range(3):
        shutil.rmtree(cache)
        process = forked(lambda: made(sources).path)
        time.sleep(whole * (step + 0.5) / 2)
        process.signal(signal.SIGKILL)
        process.ended()
        assert forked(lambda: call(made(sources).path)).ended() == {"returned": 41}
    edit(sources, "common/api.cpp", "return", "return 1 +")
    made(sources)  # tidies up after one that was killed when all was done but that
    assert leftovers(cache) == []


def test_ctrl_c(cache, sources, watched, forked):
    watched.hold("common/api.cpp")
    process = forked(lambda: made(sources).path)
    compilers = watched.until_stopped()
    process.signal(signal.SIGINT)
    assert process.ended()["raised"] == "KeyboardInterrupt"
    assert not any(is_running(number) for number in compilers)
    assert leftovers(cache) == []
    watched.let_go()
    assert not made(sources).cached


def test_ctrl_c_while_another_process_builds(sources, watched, forked):
    watched.hold("common/api.cpp")
    builder = forked(lambda: made(sources).path)
    watched.until_stopped()
    waiting = forked(lambda: made(sources).path)
    time.sleep(0.3)
    waiting.signal(signal.SIGINT)
    assert waiting.ended()["raised"] == "KeyboardInterrupt"
    watched.let_go()
    assert "returned" in builder.ended()
    assert len(watched.compiled) == ISAS + 1


def test_a_users_handler_of_sigterm_is_called_and_ends_the_compilers(cache, sources, watched, forked):
    """And all that they started."""
    script = watched.folder / "c++"
    script.write_text(script.read_text().replace("echo $$", "sleep 60 & echo $!"))
    watched.hold("common/api.cpp")

    def build():
        signal.signal(signal.SIGTERM, lambda *_: sys.exit("the user's own"))
        return made(sources).path

    process = forked(build)
    held = watched.until_stopped()
    process.signal(signal.SIGTERM)
    assert process.ended() == {"raised": "SystemExit", "text": "the user's own"}
    until(lambda: not any(map(is_running, held)))
    assert leftovers(cache) == []


def test_a_kernel_with_a_mistake(cache, sources):
    edit(sources, "common/api.cpp", "generic::one()", "generic::two()")
    with pytest.raises(NativeError) as caught:
        made(sources)
    text = str(caught.value)
    assert isinstance(caught.value, MsctxError)
    assert isinstance(caught.value, RuntimeError)
    assert "the compiler ended with exit code 1" in text
    assert "-c common/api.cpp" in text
    assert "error: " in text
    assert f"The sources are in {sources}" in text
    log = next(cache.glob("native/*.log"))
    assert str(log) in text
    assert "error: " in log.read_text()
    assert "-c common/api.cpp" in log.read_text()
    assert leftovers(cache) == []
    assert [*cache.glob("native/*.so")] == []
    edit(sources, "common/api.cpp", "generic::two()", "generic::one()")
    assert made(sources).compiled <= ISAS + 1


@pytest.mark.parametrize(
    ("does", "why"), [("kill -9 $$", r"was killed by SIGKILL \(is there too little memory\?\)"), ("exit 0", "left no result")]
)
def test_a_compiler_that_ends_otherwise(sources, watched, does, why):
    script = watched.folder / "c++"
    script.write_text(script.read_text().replace("exec ", f'case "$*" in *common/api*) {does};; esac\nexec '))
    with pytest.raises(NativeError, match=why):
        made(sources)


@pytest.mark.parametrize("is_full", [True, False])
def test_a_full_disk_while_compiling(sources, watched, monkeypatch, is_full):
    """What is left decides, not what the compiler says of it."""
    script = watched.folder / "c++"
    fails = "exit 1" if is_full else "echo 'cannot write: No space left on device' >&2; exit 1"
    script.write_text(script.read_text().replace("exec ", f'case "$*" in *common/api*) {fails};; esac\nexec '))
    monkeypatch.setattr(build, "FULL", 2**62 if is_full else 0)
    with pytest.raises(NativeError) as raised:
        made(sources)
    assert (" MiB left: make room there, or set MSCTX_CACHE_DIR" in str(raised.value)) == is_full
    assert ("make room" in str(raised.value)) == is_full


def test_a_limit_on_what_may_be_written(cache, sources, forked):
    def limited():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        return made(sources)

    answer = forked(limited).ended()
    assert answer["raised"] == "NativeError"
    assert leftovers(cache) == []
    assert not made(sources).cached
