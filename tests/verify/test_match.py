"""Operators of two runs side by side."""

from __future__ import annotations

from msctx.verify.match import first_difference, is_seeded
from msctx.verify.rows import Ran, Tensor


def ran(order: float, operator: str, takes: int = 0, gives: int = 0, module: str = "", thread: int = 1) -> Ran:
    tensors = [[Tensor("self", "float32", "2", digest)] for digest in (takes, gives)]
    return Ran(order, thread, operator, "", module, "forward", "", -1, "", *tensors)


def test_what_passes_a_difference_on_is_no_culprit() -> None:
    one = [ran(1, "a", 0, 1), ran(2, "b", 1, 2), ran(3, "c", 2, 3)]
    other = [ran(1, "a", 0, 1), ran(2, "b", 1, 9), ran(3, "c", 9, 8)]
    assert first_difference(one, one) is None
    found = first_difference(one, other)
    assert found is not None
    assert (found.kind, found.rows, found.outputs) == ("operator", (one[1], other[1]), [0])


def test_what_hides_a_difference_of_its_inputs_is_passed_over() -> None:
    one, other = [ran(1, "sign", 1, 5), ran(2, "b", 5, 6)], [ran(1, "sign", 2, 5), ran(2, "b", 5, 7)]
    found = first_difference(one, other)
    assert found is not None
    assert found.rows[0] == one[1]


def test_threads_may_take_turns_in_any_way() -> None:
    one = [ran(1, "a", 1, 11, thread=1), ran(2, "a", 2, 12, thread=2), ran(3, "a", 3, 13, thread=1)]
    other = [ran(1, "a", 2, 12, thread=8), ran(2, "a", 1, 11, thread=7), ran(3, "a", 3, 13, thread=8)]
    assert first_difference(one, other) is None
    other[1] = ran(2, "a", 1, 99, thread=7)
    found = first_difference(one, other)
    assert found is not None
    assert (found.kind, found.rows) == ("operator", (one[0], other[1]))


def test_one_more_operator_is_where_the_runs_part() -> None:
    one = [ran(1, "a", 0, 1), ran(2, "b", 1, 2)]
    other = [ran(1, "a", 0, 1), ran(2, "x", 1, 7), ran(3, "b", 7, 8)]
    for pair, rows in (((one, other), (None, other[1])), ((other, one), (other[1], None))):
        found = first_difference(*pair)
        assert found is not None
        assert (found.kind, found.rows) == ("parted", rows)


def test_one_more_of_the_same_is_where_the_runs_part() -> None:
    one = [ran(1, "relu", 0, 1), ran(2, "b", 1, 2)]
    other = [ran(1, "relu", 0, 1), ran(2, "relu", 1, 1), ran(3, "b", 1, 2)]
    found = first_difference(one, other)
    assert found is not None
    assert (found.kind, found.rows) == ("parted", (None, other[1]))


def test_random_operators_are_known_and_what_they_overwrite_does_not_count() -> None:
    assert is_seeded(ran(1, "aten::uniform_"))
    assert not is_seeded(ran(1, "aten::relu"))
    found = first_difference([ran(1, "aten::uniform_", 5, 1)], [ran(1, "aten::uniform_", 6, 2)])
    assert found is not None
    assert found.kind == "random"
