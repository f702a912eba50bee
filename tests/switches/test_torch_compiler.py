"""Where torch keeps what it compiles, and whether: in every thread, and put back exactly."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import torch.compiler.config as config

import msctx
from msctx.graph import cache
from msctx.torch_config import override


def found() -> tuple[object, ...]:
    entry = config._config["force_disable_caches"]
    overrides = [override(config, key) for key in ("force_disable_caches", "job_id", "cache_key_tag")]
    return entry.env_value_force, *overrides, *(os.environ.get(name) for name in cache.VARIABLES), cache.current


def in_a_thread() -> bool:
    seen: list[bool] = []
    thread = threading.Thread(target=lambda: seen.append(config.force_disable_caches))
    thread.start()
    thread.join()
    return seen[0]


def test_scopes_inside_each_other_are_put_back_exactly(tmp_path: Path) -> None:
    before = found()
    with msctx.context(enable_compile_cache=True, compile_cache_path=str(tmp_path / "a")):
        first = found()
        assert os.environ["TORCHINDUCTOR_CACHE_DIR"].startswith(f"{tmp_path}/a/rank_0/")
        assert config.job_id == "msctx"
        with msctx.context(enable_compile_cache=False):
            assert config.force_disable_caches
            assert in_a_thread()
            assert not os.environ["TORCHINDUCTOR_CACHE_DIR"].startswith(str(tmp_path))
            with msctx.context(compile_cache_path=str(tmp_path / "b"), enable_compile_cache=True):
                assert not in_a_thread()
                assert os.environ["TORCHINDUCTOR_CACHE_DIR"].startswith(f"{tmp_path}/b/rank_0/")
            assert config.force_disable_caches
        assert found() == first
    assert found() == before


def test_a_precision_inside_and_around_takes_nothing_away(tmp_path: Path) -> None:
    before, off = found(), {"enable_compile_cache": False}
    for outer, inner in ((off, {"precision_mode": "force_fp16"}), ({"precision_mode": "force_fp16"}, off)):
        with msctx.context(**outer), msctx.context(**inner):
            assert config.force_disable_caches
            assert "msctx-precision" in config.cache_key_tag
        assert found() == before


def test_what_a_program_sets_does_not_overrule_an_option(tmp_path: Path) -> None:
    with config.patch(force_disable_caches=True):
        with msctx.context(enable_compile_cache=True, compile_cache_path=str(tmp_path)):
            assert not config.force_disable_caches
        assert config.force_disable_caches


def test_nothing_is_loaded_for_it(passes: Callable[..., str], tmp_path: Path) -> None:
    passes(
        f"""
        import sys, msctx
        heavy = ("torch._inductor", "torch._dynamo", "torch._functorch.config")
        there = [name for name in heavy if name in sys.modules]
        for on in (True, False):
            with msctx.context(enable_compile_cache=on, compile_cache_path={str(tmp_path)!r}):
                pass
        assert [name for name in heavy if name in sys.modules] == there
        with msctx.context(enable_compile_cache=True, compile_cache_path={str(tmp_path)!r}):
            import torch._functorch.config as config
            assert config._config["enable_autograd_cache"].env_value_force is True
        assert config._config["enable_autograd_cache"].env_value_force is not True
        """
    )
