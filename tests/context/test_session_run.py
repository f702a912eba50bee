"""Sessions: functions run as the session options say, in every thread, and everything is put back."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from context_helpers import in_thread
from torch import nn

import msctx
from msctx.context.session_run import Session
from msctx.errors import MsctxWarning, OptionError, ScopeError
from msctx.observers import steps


class Net(nn.Module):
    """With a part that is frozen in eval mode, and a note of the mode in which it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self.dropout = nn.Dropout(0.5)
        self.frozen = nn.BatchNorm1d(3).eval()
        self.seen: list[tuple[bool, bool]] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append((self.training, self.frozen.training))
        return self.frozen(self.dropout(self.fc(x)))

    def modes(self) -> list[bool]:
        return [module.training for module in self.modules()]


@pytest.fixture
def net() -> Net:
    return Net()


X = torch.ones(4, 3)


def same(x: Any) -> Any:
    return x


def test_inference_runs_watched_models_in_eval_and_inference_mode(net: Net) -> None:
    before = net.modes()
    with msctx.session(graph_run_mode=0) as session:
        session.watch(net)
        y = session.run(net, X)
        again = session.run(net, X)
        assert net.modes() == before
        assert net(X).requires_grad, "outside run() nothing is changed"
    assert y.is_inference()
    assert not y.requires_grad
    assert torch.equal(y, again), "dropout was on"
    assert net.seen == [(False, False), (False, False), (True, False)]
    assert not torch.is_inference_mode_enabled()


def test_training_runs_them_in_train_mode_with_gradients_whatever_is_around(net: Net) -> None:
    net.eval()
    with msctx.session(graph_run_mode=1) as session, torch.no_grad():
        session.watch(net)
        assert session.run(net, X).requires_grad
        with torch.inference_mode():
            assert session.run(lambda: torch.ones(1, requires_grad=True) * 2).requires_grad
    assert net.seen == [(True, True)]
    assert net.modes() == [False] * 4


def test_a_model_that_is_in_train_mode_keeps_its_frozen_parts(net: Net) -> None:
    with msctx.session(graph_run_mode=1) as session:
        session.watch(net)
        session.run(net, X)
    assert net.seen == [(True, False)]


def test_modes_nest_and_an_error_puts_them_back(net: Net) -> None:
    before = net.modes()

    def train_inside() -> None:
        assert not net.training
        with msctx.session(graph_run_mode=1) as inner:
            inner.watch(net.fc)
            inner.run(lambda: found.append((net.training, net.fc.training, torch.is_grad_enabled())))
        found.append((net.training, net.fc.training, torch.is_grad_enabled()))
        raise ZeroDivisionError

    found: list[Any] = []
    with msctx.session(graph_run_mode=0) as outer:
        outer.watch(net)
        with pytest.raises(ZeroDivisionError):
            outer.run(train_inside)
    assert found == [(True, True, True), (False, False, False)]  # models of contexts around are acted on, too
    assert net.modes() == before


def test_threads_share_eval_mode_and_the_last_puts_it_back(net: Net) -> None:
    before = net.modes()
    both, first_is_done = threading.Barrier(2), threading.Event()

    def first() -> torch.Tensor:
        both.wait(60)
        return net(X)

    def second() -> torch.Tensor:
        both.wait(60)
        assert first_is_done.wait(60)
        return net(X)

    with msctx.session(graph_run_mode=0) as session, ThreadPoolExecutor(2) as pool:
        session.watch(net)
        one, two = pool.submit(session.run, first), pool.submit(session.run, second)
        assert one.result(60).is_inference()
        first_is_done.set()
        assert two.result(60).is_inference()
    assert net.seen == [(False, False)] * 2
    assert net.modes() == before


def test_a_model_cannot_be_in_two_modes_at_once(net: Net) -> None:
    before = net.modes()

    def elsewhere() -> None:
        with msctx.session(graph_run_mode=1) as other:
            other.watch(net)
            other.run(net, X)

    with msctx.session(graph_run_mode=0) as session:
        session.watch(net)
        with pytest.raises(ScopeError, match=r"Net cannot go into train mode: a session of another thread"):
            session.run(in_thread, elsewhere)
    assert net.modes() == before


def test_no_watched_model_is_told() -> None:
    with (
        pytest.warns(MsctxWarning, match=r"graph_run_mode=0 did nothing to any model"),
        msctx.session(graph_run_mode=0) as session,
    ):
        session.run(same, 1)


@pytest.mark.parametrize("by_program", [False, True])
def test_a_function_runs_as_often_as_asked_and_each_time_is_a_step(by_program: bool) -> None:
    weight = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    ended: list[int] = []

    def train() -> float:
        optimizer.zero_grad()
        (-weight.sum()).backward()
        optimizer.step()
        if by_program:
            msctx.step()
        return weight.item()

    with steps.counting(ended.append), msctx.session(iterations_per_loop=3) as session:
        assert session.run(train) == 3
        assert session.run(train) == 6
        session.set_iteration_per_loop(3)
        with pytest.raises(OptionError, match=r"set_iteration_per_loop: 2 is not iterations_per_loop=3"):
            session.set_iteration_per_loop(2)
    assert ended == [0, 1, 2, 3, 4, 5]


def test_the_innermost_number_counts_and_an_error_ends_the_loop() -> None:
    called: list[int] = []

    def fail() -> None:
        called.append(1)
        if len(called) == 2:
            raise ZeroDivisionError

    with msctx.session(iterations_per_loop=3) as session:
        with pytest.raises(ZeroDivisionError):
            session.run(fail)
        assert len(called) == 2
        with msctx.context(iterations_per_loop=1):
            session.run(called.append, 1)
        assert len(called) == 3
        in_thread(lambda: session.run(called.append, 1))
        assert len(called) == 6


@pytest.mark.parametrize("most", [1, 2, 3])
def test_at_most_so_many_threads_run_at_a_time(most: int) -> None:
    lock, inside, seen = threading.Lock(), [0], [0]
    all_are_here = threading.Barrier(most)

    def work() -> None:
        with lock:
            inside[0] += 1
            seen[0] = max(seen[0], inside[0])
        all_are_here.wait(60)  # so many do run together
        with lock:
            inside[0] -= 1

    options = {"graph_max_parallel_model_num": most, **({"graph_run_mode": 0} if most > 1 else {})}
    with msctx.session(**options) as session, ThreadPoolExecutor(2 * most) as pool:
        session.watch(nn.Linear(1, 1))
        for done in [pool.submit(session.run, work) for _ in range(4 * most)]:
            done.result(60)
    assert seen == [most]


def test_a_run_inside_a_run_needs_no_other_place_and_one_that_raises_gives_its_back() -> None:
    with msctx.session(graph_max_parallel_model_num=1) as session:
        assert session.run(session.run, same, 5) == 5
        with pytest.raises(ZeroDivisionError):
            session.run(lambda: 1 / 0)
        assert in_thread(lambda: session.run(same, 6)) == 6


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    for name in ("STEP_NOW", "TOTAL_STEP", "LOSS_NOW", "TARGET_LOSS"):
        monkeypatch.delenv(name, raising=False)

    def put(**values: object) -> None:
        for name, value in values.items():
            monkeypatch.setenv(name, str(value))

    return put


def product() -> torch.dtype:
    return (torch.ones(2, 2) @ torch.ones(2, 2)).dtype


@pytest.mark.parametrize(("speed", "low"), [("fast", torch.float16), ("fast1", torch.bfloat16)])
def test_the_first_steps_compute_in_low_precision(variables: Callable[..., None], speed: str, low: torch.dtype) -> None:
    found = []
    with msctx.session(experimental_accelerate_train_mode=f"{speed}|step|0.9") as session:
        for step in range(10):
            variables(STEP_NOW=step, TOTAL_STEP=10)
            found.append(session.run(product))
            assert product() is torch.float32, "outside run() nothing is lowered"
        variables(STEP_NOW=0)
        found.append(session.run(product))  # there is one switch
    assert found == [low] * 9 + [torch.float32] * 2
    assert not torch.is_autocast_enabled("cpu")


def test_the_loss_ends_low_precision_once_for_all(variables: Callable[..., None]) -> None:
    found = []
    with msctx.session(experimental_accelerate_train_mode="fast1|loss|1.5") as session:
        for loss in ("inf", 4, 3.1, 3.0, 9):
            variables(LOSS_NOW=loss, TARGET_LOSS=2)
            found.append(session.run(product))
    assert found == [torch.bfloat16] * 3 + [torch.float32] * 2


def test_float16_needs_a_scaler_from_the_start(variables: Callable[..., None]) -> None:
    for speed, needs_one in (("fast", True), ("fast1", False)):
        with msctx.session(experimental_accelerate_train_mode=f"{speed}|step") as session:
            assert session.grad_scaler().is_enabled() is needs_one
            variables(STEP_NOW=0, TOTAL_STEP=1)
            session.run(product)


def test_variables_that_are_missing_or_no_numbers_are_errors(variables: Callable[..., None]) -> None:
    with msctx.session(experimental_accelerate_train_mode="fast1|step") as session:
        with pytest.raises(OptionError, match=r"environment  STEP_NOW: is not set"):
            session.run(product)
        variables(STEP_NOW=1, TOTAL_STEP="ten")
        with pytest.raises(OptionError, match=r"TOTAL_STEP: is 'ten', which is no number"):
            session.run(product)
        variables(STEP_NOW="nan", TOTAL_STEP=10)
        with pytest.raises(OptionError, match=r"STEP_NOW: is 'nan', which is no number"):
            session.run(product)
        variables(STEP_NOW=1)
        assert session.run(product) is torch.bfloat16


def where(session: Session) -> tuple[Any, str]:
    (row,) = [r for r in session.plan.rows if r.option in ("device_id", "session_device_id") and not r.winner]
    return row.value, row.origin


@pytest.fixture
def no_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ASCEND_DEVICE_ID", raising=False)
    monkeypatch.delenv("DEVICE_ID", raising=False)


@pytest.mark.usefixtures("no_ids")
def test_options_name_the_device_then_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    assert msctx.session().plan.rows == ()
    monkeypatch.setenv("DEVICE_ID", "2")
    assert where(msctx.session()) == (2, "environment DEVICE_ID")
    monkeypatch.setenv("ASCEND_DEVICE_ID", "3")
    assert where(msctx.session(iterations_per_loop=2)) == (3, "environment ASCEND_DEVICE_ID")
    assert where(msctx.session(device_id=1))[0] == 1
    assert where(msctx.session(session_device_id=1))[0] == 1
    with pytest.raises(OptionError, match="device_id: means session_device_id here"):
        msctx.session(device_id=0, session_device_id=0)
    with pytest.warns(MsctxWarning, match="one CPU device"), msctx.context(device_id=4):
        assert where(msctx.session())[0] == 4
    with msctx.session() as session:
        assert session.device == torch.device("cpu")
        assert session.run(torch.ones, 1).device == session.device


@pytest.mark.usefixtures("no_ids")
@pytest.mark.parametrize("text", ["-1", "one", "1.5", "²"])
def test_a_variable_that_names_no_device_is_an_error(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("DEVICE_ID", text)
    with pytest.raises(OptionError, match=r"DEVICE_ID: .* is not the number of a device"):
        msctx.session()
    assert where(msctx.session(device_id=0))[0] == 0


def test_run_needs_an_open_session() -> None:
    session = msctx.session(iterations_per_loop=2)
    with pytest.raises(ScopeError, match=r"the session at .*test_session_run.py:\d+ is not open: call run\(\) inside"):
        session.run(same, 1)
    with session:
        assert session.run(same, x=1) == 1
    with session:
        assert session.run(same, 2) == 2


def test_a_decorated_function_is_run(net: Net) -> None:
    session = msctx.session(graph_run_mode=0, iterations_per_loop=2)
    session.watch(net)

    @session
    def infer(x: torch.Tensor) -> torch.Tensor:
        """What it does."""
        y: torch.Tensor = net(x)
        return y

    assert infer(X).is_inference()
    assert (len(net.seen), infer.__doc__) == (2, "What it does.")
    with pytest.raises(TypeError, match="decorates functions"):
        session(Net)


@pytest.mark.parametrize("options", [{"iterations_per_loop": 2}, {"graph_run_mode": 1}, {"graph_max_parallel_model_num": 1}])
def test_options_of_run_that_no_session_ran_are_told(options: dict[str, Any], recwarn: pytest.WarningsRecorder) -> None:
    with msctx.context(**options):
        pass
    told = [str(warning.message) for warning in recwarn]
    wanted = [f"{name}={value} did nothing: it acts on functions that a session runs" for name, value in options.items()]
    assert [text.partition(", msctx")[0] for text in told] == (wanted if options == {"iterations_per_loop": 2} else [])
