"""Random keys and values through ms.set_context: only MindSpore's exceptions, and an error changes nothing."""

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import msctx
import msctx.mindspore as ms
from msctx.errors import MsctxError, MsctxWarning
from msctx.mindspore.keys import GROUPS, KEYS

common: dict[str, Any] = {
    "suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
}
KINDS = (TypeError, ValueError, RuntimeError, OSError)
WORDS = """ON OFF on CPU GPU Ascend O0 O1 online offline 1 2 0 oom 4GB 0.5GB 31GB 0GB 4gb 512MB winograd normal force_fp16 bfs
--opt_level=2 --dump_as_text --x"""
LIKELY = st.sampled_from(WORDS.split())
SCALARS = st.one_of(
    LIKELY,
    st.booleans(),
    st.none(),
    st.integers(-2, 5),
    st.integers(),
    st.floats(),
    st.text(max_size=5).filter(lambda text: "/" not in text),
    st.binary(max_size=3),
)
PATHS = {"save_graphs_path", "compile_cache_path", "print_file_path", "env_config_path"}
"""Only wrong values of these: a test should not litter."""
VALUES = st.one_of(
    SCALARS,
    st.lists(SCALARS, max_size=2),
    *(st.dictionaries(st.sampled_from([*keys, "x"]), SCALARS, max_size=3) for keys in GROUPS.values()),
)
KEY = st.one_of(st.sampled_from([*KEYS, "foo", "precision_mode", "seed"]))


@st.composite
def calls(draw: st.DrawFn) -> dict[str, Any]:
    keys = draw(st.lists(KEY, min_size=1, max_size=4, unique=True))
    return {key: draw(st.integers() if key in PATHS else VALUES) for key in keys}


def as_it_is() -> Any:
    return msctx.get_context(origin=True), {key: ms.context.get_value(key) for key in KEYS if not KEYS[key].hidden}


@settings(max_examples=300, **common)
@given(earlier=calls(), call=calls(), typed=st.booleans())
def test_an_error_is_mindspores_and_changes_nothing(
    one_example: Callable[[], AbstractContextManager[None]], earlier: dict[str, Any], call: dict[str, Any], typed: bool
) -> None:
    with one_example(), warnings.catch_warnings():
        warnings.simplefilter("ignore", MsctxWarning)
        try:
            for options in (earlier, call):
                before, raised = as_it_is(), None
                try:
                    (ms.set_context if typed else ms.set_context.__wrapped__)(**options)
                except MsctxError as error:
                    raised = error
                assert raised is None or (isinstance(raised, KINDS) and as_it_is() == before)
        finally:
            msctx.reset_context()


@settings(max_examples=200, **common)
@given(name=st.one_of(KEY, st.text(), st.integers()))
def test_get_context_raises_nothing_else(name: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MsctxWarning)
        with suppress(ValueError if isinstance(name, str) else TypeError):
            ms.get_context(name)
    msctx.reset_context()
