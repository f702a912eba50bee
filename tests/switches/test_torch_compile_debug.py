"""Switches of debug_level: what torch logs, checks and keeps; all of it is as it was afterwards."""

import logging

import pytest
import torch
import torch._dynamo.config as dynamo
import torch._functorch.config as functorch
import torch._inductor.config as inductor
from torch._logging._internal import log_registry, log_state

import msctx

pytestmark = pytest.mark.usefixtures("afresh")


def loggers() -> dict[str, tuple[int, bool, bool, tuple[int, ...]]]:
    """Everything torch keeps of its loggers."""
    names = {*log_registry.get_log_qnames(), *log_registry.get_artifact_log_qnames(), *log_registry.get_child_log_qnames()}
    found = {name: logging.getLogger(name) for name in names}
    return {n: (one.level, one.propagate, one.disabled, tuple(map(id, one.handlers))) for n, one in found.items()}


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
