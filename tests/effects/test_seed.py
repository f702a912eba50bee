"""seed, seed_by_rank, seed_scope, strict: the context's own options mean the same on every device."""

import pytest
from plans import planned

from msctx.options import DEVICES


@pytest.mark.parametrize(
    ("options", "written"),
    [
        ({"seed": 2**32 - 1}, [("rng.seed", 2**32 - 1)]),
        ({"seed_scope": True}, [("rng.saved", True)]),
        ({"seed_scope": False}, []),
        ({"seed": 7, "seed_scope": True}, [("rng.saved", True), ("rng.seed", 7)]),
        ({"seed_scope": True, "seed": 7}, [("rng.saved", True), ("rng.seed", 7)]),
        ({"seed": 7, "seed_scope": False}, [("rng.seed", 7)]),
        ({"seed": 7, "seed_by_rank": True}, [("rng.seed", {"seed": 7, "by_rank": True})]),
        ({"seed_by_rank": False, "seed": 7}, [("rng.seed", 7)]),
        ({"strict": True}, []),
        ({"strict": False}, []),
    ],
)
def test_what_is_written_in_which_order(options: dict[str, object], written: list[tuple[str, object]]) -> None:
    """The generators are saved before they are seeded, however the options are written down; once, on however many devices."""
    for devices in (*DEVICES, DEVICES):
        found = planned(options, on=devices)
        assert list(found.assignments.items()) == written
        assert {row.status for row in found.rows} == {"honoured"}
        assert found.strict is options.get("strict", False)


@pytest.mark.parametrize("scope", [{}, {"seed_scope": False}, {"seed_scope": True}])
def test_the_plan_says_that_generators_go_on(scope: dict[str, bool]) -> None:
    row = next(row for row in planned({"seed": 7} | scope).rows if row.option == "seed")
    assert ("go on after the block" in row.reason) is not scope.get("seed_scope", False)


def test_an_inner_scope_may_stop_saving() -> None:
    found = planned({"seed": 1, "seed_scope": True}, {"seed": 2, "seed_scope": False})
    assert found.assignments == {"rng.seed": 2}


@pytest.mark.parametrize(("rank", "said"), [(3, "this is rank 3"), (0, "this is rank 0"), (None, "this one counts as rank 0")])
def test_the_plan_names_the_rank(rank: int | None, said: str) -> None:
    row = next(r for r in planned({"seed": 7, "seed_by_rank": True}, rank=rank).rows if r.option == "seed_by_rank")
    assert row.reason.endswith(said)


def test_without_a_seed_there_is_nothing_to_derive_from() -> None:
    (row,) = planned({"seed_by_rank": True}).rows
    assert (row.status, dict(row.assignments)) == ("inert", {})
    assert "seed" in row.reason
    assert planned({"seed": 1}, {"seed_by_rank": True}).assignments == {"rng.seed": {"seed": 1, "by_rank": True}}
