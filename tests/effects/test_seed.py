"""seed, seed_scope, strict: the context's own options mean the same on every device."""

import pytest

import msctx
from msctx import plan
from msctx.effects import Facts
from msctx.options import DEVICES, Settings, make_layer


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("options", "written"),
    [
        ({"seed": 0}, [("rng.seed", 0)]),
        ({"seed": 2**32 - 1}, [("rng.seed", 2**32 - 1)]),
        ({"seed_scope": True}, [("rng.saved", True)]),
        ({"seed_scope": False}, []),
        ({"seed": 7, "seed_scope": True}, [("rng.saved", True), ("rng.seed", 7)]),
        ({"seed_scope": True, "seed": 7}, [("rng.saved", True), ("rng.seed", 7)]),
        ({"seed": 7, "seed_scope": False}, [("rng.seed", 7)]),
        ({"strict": True}, []),
        ({"strict": False}, []),
    ],
)
def test_what_is_written_in_which_order(device: str, options: dict[str, object], written: list[tuple[str, object]]) -> None:
    """The generators are saved before they are seeded, however the options are written down."""
    found = msctx.explain(options, device=device)
    assert list(found.assignments.items()) == written
    assert {row.status for row in found.rows} == {"honoured"}


def test_a_machine_with_several_devices_seeds_once() -> None:
    found = plan.make(Settings([make_layer({"seed": 7}, "test")]), Facts(devices=DEVICES))
    assert found.assignments == {"rng.seed": 7}
    assert [row.device for row in found.rows] == list(DEVICES)


def test_an_inner_scope_may_stop_saving() -> None:
    layers = [make_layer({"seed": 1, "seed_scope": True}, "outer"), make_layer({"seed": 2, "seed_scope": False}, "inner")]
    assert plan.make(Settings(layers), Facts()).assignments == {"rng.seed": 2}


@pytest.mark.parametrize("value", [True, False])
def test_strict_is_told_by_the_plan(value: bool) -> None:
    assert msctx.explain({"strict": value}, device="cpu").strict is value
    assert msctx.explain({"seed": 0}, device="cpu").strict is False
