"""Compiled code on disk is told apart by what is in force in the thread that compiles it, and shared by no other."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch.compiler.config as config

import msctx
from msctx.native import cache_tag
from msctx.torch_config import override


def found() -> tuple[object, object]:
    return override(config, cache_tag.TAG), override(config, cache_tag.DISABLED)


class Thread:
    """Runs steps one by one in a thread that stays."""

    def __init__(self) -> None:
        self.step: Callable[[], object] | None = None
        self.turn, self.done = threading.Semaphore(0), threading.Semaphore(0)
        self.thread = threading.Thread(target=self._work)
        self.thread.start()

    def _work(self) -> None:
        while self.turn.acquire() and self.step is not None:
            self.result = self.step()
            self.done.release()

    def __call__(self, step: Callable[[], object]) -> object:
        self.step = step
        self.turn.release()
        assert self.done.acquire(timeout=60)
        return self.result

    def close(self) -> None:
        self.step = None
        self.turn.release()
        self.thread.join()


def key() -> tuple[str, bool]:
    return config.cache_key_tag, config.force_disable_caches


@pytest.mark.parametrize("leaves_first", [0, 1])
def test_threads_that_ask_for_different_things_share_no_code(leaves_first: int) -> None:
    before, threads = found(), (Thread(), Thread())
    try:
        modes = ("force_fp16", "allow_mix_precision_bf16")
        blocks = [msctx.context(precision_mode=mode) for mode in modes]
        alone = threads[0](lambda: (blocks[0].__enter__(), key())[1])
        assert alone[0]
        assert not alone[1]
        threads[1](blocks[1].__enter__)
        tags, disabled = zip(*(thread(key) for thread in threads), strict=True)
        assert len(set(tags)) == 2 or all(disabled)
        first, last = leaves_first, 1 - leaves_first
        threads[first](lambda: blocks[first].__exit__(None, None, None))
        tag, is_disabled = threads[last](key)
        assert "msctx-precision" in tag
        assert not is_disabled
        threads[last](lambda: blocks[last].__exit__(None, None, None))
        assert found() == before
        assert {thread(key) for thread in threads} == {key()}
    finally:
        for thread in threads:
            thread.close()


def test_threads_that_ask_for_the_same_share_it() -> None:
    before, thread, block = found(), Thread(), msctx.context(precision_mode="force_fp16")
    try:
        with msctx.context(precision_mode="force_fp16"):
            assert thread(lambda: (block.__enter__(), key())[1]) == key()
            assert not config.force_disable_caches
            thread(lambda: block.__exit__(None, None, None))
    finally:
        thread.close()
    assert found() == before
