"""Steps: what ends one, and that nothing is registered while nobody counts."""

import threading
from pathlib import Path

import pytest
import torch
from torch.optim import optimizer as torch_optimizer

import msctx
from msctx.observers import steps


def optimizer() -> torch.optim.Optimizer:
    parameter = torch.nn.Parameter(torch.zeros(2))
    parameter.grad = torch.ones(2)
    return torch.optim.SGD([parameter], lr=0.1)


def test_nothing_is_registered_while_nobody_counts() -> None:
    before = dict(torch_optimizer._global_optimizer_post_hooks)
    msctx.step()
    optimizer().step()
    assert steps.current() == 0
    with steps.counting(), steps.counting():
        assert len(torch_optimizer._global_optimizer_post_hooks) == len(before) + 1
        optimizer().step()
        assert steps.current() == 1
    assert dict(torch_optimizer._global_optimizer_post_hooks) == before
    assert steps.current() == 0


def test_listeners_get_the_index_of_the_step_that_ended() -> None:
    outer, inner, sgd = [], [], optimizer()
    with steps.counting(outer.append):
        sgd.step()
        with steps.counting(inner.append):
            sgd.step()
        sgd.step()
    sgd.step()
    assert (outer, inner) == ([0, 1, 2], [1])


def test_one_iteration_is_one_step_however_many_optimizers_it_has() -> None:
    first, second = optimizer(), optimizer()
    with steps.counting():
        for iteration in range(3):
            first.step()
            second.step()
            assert steps.current() == iteration + 1


def test_another_optimizer_takes_the_lead() -> None:
    first, second = optimizer(), optimizer()
    with steps.counting():
        first.step()
        second.step()
        second.step()
        second.step()
        assert steps.current() == 3, "a later phase of training: the first call may have been part of the first iteration"
        del second
        first.step()
        assert steps.current() == 4


def test_the_program_ends_steps_itself() -> None:
    ended: list[int] = []
    sgd = optimizer()
    with steps.counting(ended.append):
        for _ in range(3):
            sgd.step()
            msctx.step()
        assert steps.current() == 3
        sgd.step()
        assert steps.current() == 3
    with steps.counting(ended.append):
        for _ in range(2):
            msctx.step()
    assert ended == [0, 1, 2, 0, 1]


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


def test_the_count_is_the_same_in_every_thread() -> None:
    seen: list[int] = []
    with steps.counting():
        thread = threading.Thread(target=lambda: (optimizer().step(), seen.append(steps.current())))
        thread.start()
        thread.join()
        assert (seen, steps.current()) == ([1], 1)


DUMP = {"enable_dump": True}
OVERFLOW = {"enable_dump": False, "enable_dump_debug": True}


def folders(path: Path) -> set[str]:
    """The steps of which there are files."""
    return {found.name for found in (path / "rank_0" / "Net" / "0").glob("*")}


def test_the_count_goes_on_where_one_observer_takes_the_place_of_another(tmp_path: Path) -> None:
    inside, dumps = [], {**DUMP, "dump_path": str(tmp_path)}
    with msctx.context(session=dumps):
        for _ in range(2):
            torch.ones(1).exp()
            msctx.step()
        with msctx.context(session={**OVERFLOW, "dump_path": str(tmp_path / "overflow")}):
            with pytest.warns(msctx.MsctxWarning, match=r"overflow in step 2: aten::pow"):
                torch.full((2,), 1e30).square()
            optimizer().step()  # ends no step, since the program does
            msctx.step()
            inside.append(steps.current())
        torch.ones(1).exp()
        inside.append(steps.current())
    assert (inside, steps.current()) == ([3, 3], 0)
    assert folders(tmp_path) == {"0", "1", "3"}


def test_an_observer_goes_on_with_its_count_after_a_scope_without_it(tmp_path: Path) -> None:
    overflows = {"enable_dump_debug": True, "dump_path": str(tmp_path)}
    with msctx.context(session=overflows):
        msctx.step()
        with msctx.context(session={"enable_dump_debug": False}):
            msctx.step()
            assert steps.current() == 0
        msctx.step()
        with pytest.warns(msctx.MsctxWarning, match=r"overflow in step 2: aten::pow"):
            torch.full((2,), 1e30).square()
    with msctx.context(session=overflows):
        assert steps.current() == 0, "another context begins anew"
