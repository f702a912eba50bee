"""Compiled code on disk is distinguished by what is in force in the thread that compiles it, and shared by no other."""

from __future__ import annotations

import pytest
import torch.compiler.config as config
from context_helpers import Elsewhere

import msctx
from msctx.native import precision
from msctx.torch_config import override


def found() -> tuple[object, object]:
    return override(config, precision.TAG), override(config, precision.DISABLED)


def key() -> tuple[str, bool]:
    return config.cache_key_tag, config.force_disable_caches


@pytest.mark.parametrize("leaves_first", [0, 1])
def test_threads_that_ask_for_different_things_share_no_code(leaves_first: int) -> None:
    before = found()
    with Elsewhere() as one, Elsewhere() as other:
        threads, blocks = (one, other), [msctx.context(precision_mode=m) for m in ("force_fp16", "allow_mix_precision_bf16")]
        alone = threads[0].do(lambda: (blocks[0].__enter__(), key())[1])
        assert alone[0]
        assert not alone[1]
        threads[1].do(blocks[1].__enter__)
        tags, disabled = zip(*(thread.do(key) for thread in threads), strict=True)
        assert len(set(tags)) == 2 or all(disabled)
        first, last = leaves_first, 1 - leaves_first
        threads[first].do(blocks[first].__exit__)
        tag, is_disabled = threads[last].do(key)
        assert "msctx-precision" in tag
        assert not is_disabled
        threads[last].do(blocks[last].__exit__)
        assert found() == before
        assert {thread.do(key) for thread in threads} == {key()}


def test_threads_that_ask_for_the_same_share_it() -> None:
    before, block = found(), msctx.context(precision_mode="force_fp16")
    with Elsewhere() as thread, msctx.context(precision_mode="force_fp16"):
        assert thread.do(lambda: (block.__enter__(), key())[1]) == key()
        assert not config.force_disable_caches
        thread.do(block.__exit__)
    assert found() == before
