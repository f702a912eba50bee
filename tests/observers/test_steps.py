"""Steps: what ends one, and that nothing is registered while nobody counts."""

from pathlib import Path

import pytest
import torch

import msctx
from msctx.observers import steps


def optimizer() -> torch.optim.Optimizer:
    parameter = torch.nn.Parameter(torch.zeros(2))
    parameter.grad = torch.ones(2)
    return torch.optim.SGD([parameter], lr=0.1)


def test_listeners_get_the_index_of_the_step_that_ended() -> None:
    outer, inner, sgd = [], [], optimizer()
    with steps.counting(outer.append):
        sgd.step()
        with steps.counting(inner.append):
            sgd.step()
        sgd.step()
    sgd.step()
    assert (outer, inner) == ([0, 1, 2], [1])


CALLS = {
    "one iteration of two optimizers is one step": ("ab" * 3, 3),
    "another optimizer takes the lead": ("abbb", 3),
    "the lead is gone": ("abbb-a", 4),
    "the program ends steps itself": ("as" * 3 + "a", 3),
    "the program has no optimizer": ("ss", 2),
}
"""Calls of two optimizers, a and b, and of msctx.step(); how many steps they are. After -, b is gone."""


@pytest.mark.parametrize(("calls", "count"), CALLS.values(), ids=CALLS)
def test_what_ends_a_step(calls: str, count: int) -> None:
    ended: list[int] = []
    steppers = {"a": optimizer().step, "b": optimizer().step, "s": msctx.step}
    with steps.counting(ended.append):
        for call in calls:
            steppers.pop("b") if call == "-" else steppers[call]()
        assert steps.current() == count
    assert ended == [*range(count)]


def test_a_step_that_a_scaler_skips_does_not_end() -> None:
    sgd, scaler = optimizer(), torch.amp.GradScaler("cpu")
    parameter = sgd.param_groups[0]["params"][0]
    with steps.counting():
        for factor, expected in ((float("inf"), 0), (1.0, 1)):
            parameter.grad = None
            scaler.scale(parameter.sum() * factor).backward()
            scaler.step(sgd)
            scaler.update()
            assert steps.current() == expected


def test_the_count_goes_on_behind_a_scope_without_the_observer(tmp_path: Path) -> None:
    inside = []
    overflow = {"enable_dump": False, "enable_dump_debug": True, "dump_path": str(tmp_path / "overflow")}
    with msctx.context(session={"enable_dump": True, "dump_path": str(tmp_path)}):
        for _ in range(2):
            torch.ones(1).exp()
            msctx.step()
        with msctx.context(session=overflow):
            with pytest.warns(msctx.MsctxWarning, match=r"overflow in step 0: aten::pow"):
                torch.full((2,), 1e30).square()
            msctx.step()
            inside.append(steps.current())
        torch.ones(1).exp()
        inside.append(steps.current())
    assert (inside, steps.current()) == ([1, 2], 0)
    assert {found.name for found in tmp_path.glob("rank_0/Net/0/*")} == {"0", "1", "2"}
