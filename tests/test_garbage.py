"""For any input: garbage is refused and changes nothing; a dictionary is taken whole or not at all."""

import json
import math
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from properties import State, common, generators, marks
from samples import values

import msctx
from msctx.errors import DeviceError, OptionError, StrictError, SwitchError
from msctx.options import OPTIONS, option_of

pytestmark = marks


SPELLINGS = sorted({spelling for option in OPTIONS.values() for spelling in option.spellings})
plain = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-1, 9),
    st.floats(),
    st.text(max_size=20),
    st.binary(max_size=8),
    st.sampled_from(["ON", "off", "0", "1", "true", "4GB", "-1GB", "0", "", " ", "1e9", "٣GB", "GPU", "a,b", "\0", "\ud800"]),
    st.from_regex(r"\A\d{1,400}(\.\d+)?\s*[KMGTkmgt]?i?[Bb]?\Z"),
    st.just(math.nan),
    st.complex_numbers(),
)
garbage = st.recursive(
    plain,
    lambda inside: st.one_of(
        st.lists(inside, max_size=3),
        st.tuples(inside, inside),
        st.dictionaries(
            st.one_of(st.text(max_size=8), st.integers(), st.none(), st.sampled_from(SPELLINGS)), inside, max_size=3
        ),
        st.frozensets(st.integers(), max_size=3),
    ),
    max_leaves=6,
)


def refuse_or_take(give: Callable[[], Any], exact_state: State) -> None:
    before = exact_state(), generators()
    refused: OptionError | None = None
    try:
        give()
    except OptionError as error:
        refused = error
    if refused is not None:
        assert refused.problems
        assert all(problem.text for problem in refused.problems)
        assert "nothing was changed" in str(refused)
    assert (exact_state(), generators()) == before


@settings(max_examples=100, **common)
@given(spelling=st.sampled_from(SPELLINGS), value=garbage)
def test_garbage_is_refused_and_changes_nothing(exact_state: State, spelling: str, value: Any) -> None:
    refuse_or_take(lambda: msctx.context(**{spelling: value}), exact_state)
    refuse_or_take(lambda: msctx.explain({spelling: value}, device="cuda"), exact_state)


THINGS = {
    "no value": [object(), 1j, {1, 2}, len, math.nan, torch.ones(2), torch.tensor([]), numpy.ones(2), range(3)],
    "too large": [10**4000, -(10**4000), "9" * 5000, "9" * 400 + "GB", "9" * 400 + ".5G", "1" + "0" * 330 + "KB"],
    "like a value": [torch.tensor(1), numpy.int64(1), numpy.True_, numpy.float64(1), numpy.array("ON")],
}


@pytest.mark.parametrize("kind", THINGS)
def test_things_that_are_no_plain_data(exact_state: State, kind: str) -> None:
    for spelling in SPELLINGS:
        for value in THINGS[kind]:
            try:
                msctx.context(**{spelling: value})
            except OptionError:
                continue
            except Exception as error:
                pytest.fail(f"{spelling}: {type(error).__name__}: {error}")
            assert kind != "no value", f"{spelling} took {value!r}"


SAFE = [o for o in OPTIONS.values() if o.name not in ("inter_op_parallel_num", "max_device_memory", "seed")]
"""Options whose values can be put back, and of which none says how many digits of a generator are drawn."""
right = st.sampled_from(SAFE).flatmap(
    lambda option: st.tuples(st.sampled_from(option.spellings), st.sampled_from(values(option)))
)
wrong = st.one_of(
    st.tuples(st.sampled_from(SPELLINGS), garbage),
    st.tuples(st.sampled_from(["gpu_config", "session", "runtime", "device_context", "ascend_config.ge_options"]), garbage),
    st.tuples(st.text(max_size=12), plain),
)
dictionaries = st.lists(st.one_of(right, right, right, wrong), max_size=8).map(dict)


@settings(max_examples=80, **common)
@given(options=dictionaries)
def test_a_dictionary_is_taken_whole_or_not_at_all(exact_state: State, options: dict[str, Any]) -> None:
    before = exact_state(), generators(), msctx.get_context()
    try:
        with msctx.context(**options) as ctx:
            json.dumps(ctx.plan.as_dict())
            assert set(ctx.settings) - {option_of(name).name for name in msctx.get_context()} <= {
                row.option for row in ctx.plan.rows if row.status == "refused"
            }
    except (OptionError, DeviceError, StrictError, SwitchError) as error:
        refused = str(error)
    else:
        refused = ""
    assert not refused or "othing was changed" in refused or "put back" in refused
    assert (exact_state(), generators(), msctx.get_context()) == before
