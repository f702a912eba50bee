"""Switches of torch.compile: in every thread, and put back exactly."""

from __future__ import annotations

import logging
import os
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo.config as dynamo
import torch._functorch.config as functorch
import torch._inductor.config as inductor
import torch.compiler.config as config
from torch import nn
from torch._logging._internal import log_registry, log_state

import msctx
from msctx.graph import cache
from msctx.switches import SWITCHES
from msctx.torch_config_overrides import override


def found() -> tuple[object, ...]:
    entry = config._config["force_disable_caches"]
    overrides = [override(config, key) for key in ("force_disable_caches", "job_id", "cache_key_tag")]
    return entry.env_value_force, *overrides, *(os.environ.get(name) for name in cache.VARIABLES), cache.SLOT.on


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


def loggers() -> dict[str, tuple[int, bool, bool, tuple[int, ...]]]:
    """Everything torch keeps of its loggers."""
    names = {*log_registry.get_log_qnames(), *log_registry.get_artifact_log_qnames(), *log_registry.get_child_log_qnames()}
    found = {name: logging.getLogger(name) for name in names}
    return {n: (one.level, one.propagate, one.disabled, tuple(map(id, one.handlers))) for n, one in found.items()}


@pytest.mark.usefixtures("afresh")
def test_all_is_set_and_put_back() -> None:
    before, state = loggers(), (dict(log_state.log_qname_to_level), {*log_state.artifact_names})
    with msctx.context(debug_level=1):
        assert (dynamo.verbose, functorch.debug_assert, inductor.trace.provenance_tracking_level) == (True, True, 1)
        for name in ("torch._dynamo", "torch._functorch.aot_autograd", "torch._functorch._aot_autograd", "torch._inductor"):
            assert logging.getLogger(name).level == logging.DEBUG
        with msctx.context(debug_level=0):
            assert loggers() == before
            assert not dynamo.verbose
        assert dynamo.verbose
    assert (dynamo.verbose, functorch.debug_assert, inductor.trace.provenance_tracking_level) == (False, False, 0)
    assert loggers() == before
    assert (dict(log_state.log_qname_to_level), {*log_state.artifact_names}) == state


@pytest.mark.usefixtures("afresh")
def test_what_is_compiled_is_logged_and_only_then(caplog: pytest.LogCaptureFixture) -> None:
    compiled = torch.compile(lambda x: x.sin() + 1, backend="aot_eager")
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign]
    logger = logging.getLogger("torch._dynamo")
    logger.addHandler(handler)
    try:
        compiled(torch.ones(2))
        assert not [record for record in records if record.levelno == logging.DEBUG]
        with msctx.context(debug_level=1):
            compiled(torch.ones(2))
        assert [record for record in records if record.levelno == logging.DEBUG and "convert_frame" in record.pathname]
        count = len(records)
        compiled(torch.ones(2))
        assert len(records) == count
    finally:
        logger.removeHandler(handler)


def test_a_stance_of_the_program_comes_back() -> None:
    torch.compiler.set_stance("fail_on_recompile")
    try:
        switch = SWITCHES["torch.dynamo.force_eager"]
        state = switch.take()
        switch.set(True)
        switch.put_back(state)
        assert torch._dynamo.eval_frame._stance.stance == "fail_on_recompile"
        switch.set(False)
        assert torch._dynamo.eval_frame._stance.stance == "fail_on_recompile", "false leaves the program's own"
        switch.put_back(state)
    finally:
        torch.compiler.set_stance("default")


def test_what_stands_on_the_class_of_modules_comes_back() -> None:
    switch, own = SWITCHES["graph.modules"], property(lambda module: None)
    nn.Module._compiled_call_impl = own  # type: ignore[assignment, method-assign]
    try:
        state = switch.take()
        switch.set(True)
        switch.put_back(state)
        assert vars(nn.Module)["_compiled_call_impl"] is own
    finally:
        nn.Module._compiled_call_impl = None


@pytest.mark.full
def test_pynative_mode_does_not_load_dynamo(run_forked: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = run_forked("""
        import sys, torch, msctx
        with msctx.context(mode="PYNATIVE_MODE"):
            assert "torch._dynamo" not in sys.modules
            f, ran = None, []
            def backend(graph, inputs):
                ran.append(1)
                return graph.forward
            f = torch.compile(torch.sin, backend=backend)
            f(torch.ones(1))
            assert not ran, "eager"
        f(torch.ones(1))
        assert ran
        """)
    assert done.returncode == 0, done.stderr


# --- code that is compiled under other settings is other code to Dynamo ----------------------------------------------------

APART = SWITCHES["torch.dynamo.apart"]


def test_code_is_compiled_once_for_each_content() -> None:
    compiled = 0

    def backend(graph: Any, inputs: Any) -> Any:
        nonlocal compiled
        compiled += 1
        return graph.forward

    f, x = torch.compile(lambda x: x + 1, backend=backend), torch.ones(2)
    outside = APART.take()
    f(x)
    for word, expected in (("a", 2), ("b", 3), ("a", 3)):
        APART.set({word: True})
        f(x)
        assert (APART.read(), compiled) == ({word: True}, expected)
    APART.put_back(outside)
    f(x)
    assert (APART.read(), compiled) == (None, 3)


def test_the_autocast_that_stands_for_settings_comes_back() -> None:
    found = torch.is_autocast_enabled("mtia"), torch.get_autocast_dtype("mtia"), torch.is_autocast_enabled("cpu")
    state = APART.take()
    APART.set({"a": True})
    inner = APART.take()
    APART.set(None)
    APART.put_back(inner)
    assert APART.read() == {"a": True}
    assert torch.is_autocast_enabled("mtia")
    APART.put_back(state)
    assert (torch.is_autocast_enabled("mtia"), torch.get_autocast_dtype("mtia"), torch.is_autocast_enabled("cpu")) == found
