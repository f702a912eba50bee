"""deterministic_except: what deterministic mode leaves out, also in backward passes, and nothing else."""

import threading
import time
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import msctx

UNPOOL = "does not have a deterministic implementation"


def unpool(x: torch.Tensor) -> torch.Tensor:
    """It has no deterministic kernel, on a CPU either."""
    pooled, indices = nn.functional.max_pool2d(x, 2, return_indices=True)
    return nn.functional.max_unpool2d(pooled, indices, 2)


class Unpools(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return unpool(x)


@torch.library.custom_op("test_deterministic_except::shows", mutates_args=())
def shows(x: torch.Tensor) -> torch.Tensor:
    return torch.full_like(x, float(torch.are_deterministic_algorithms_enabled()))


@torch.library.custom_op("test_deterministic_except::shows_", mutates_args=("x",))
def shows_(x: torch.Tensor) -> None:
    x.fill_(float(torch.are_deterministic_algorithms_enabled()))


class Shows(torch.autograd.Function):
    """Both passes show whether deterministic mode is on."""

    @staticmethod
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
        return shows(x)

    @staticmethod
    def backward(ctx: object, gradient: torch.Tensor) -> torch.Tensor:
        return torch.full_like(gradient, float(torch.are_deterministic_algorithms_enabled()))


def under(names: str) -> "msctx.Context":
    return msctx.context(deterministic="ON", deterministic_except=names)


@pytest.mark.parametrize("names", ["max_unpool2d", "aten::max_unpool2d", "max_un*", "gather max_unpool2d"])
def test_an_operator_without_a_deterministic_kernel_and_no_other(names: str) -> None:
    x = torch.randn(1, 1, 4, 4, requires_grad=True)
    for names_nothing in (msctx.context(deterministic="ON"), under("gather")):
        with names_nothing, pytest.raises(RuntimeError, match=UNPOOL):
            unpool(x)
    with under(names):
        unpool(x).sum().backward()
        assert torch.are_deterministic_algorithms_enabled()
        assert float(shows(torch.ones(1))) == 1
    with under("shows"):
        assert float(shows(torch.ones(1))) == 0
        with msctx.context(deterministic_except="gather"):
            assert float(shows(torch.ones(1))) == 1
    for name in ("shows_", "shows", "test_deterministic_except::shows_"):  # what is in place goes by both names
        with under(name):
            shows_(x := torch.ones(1))
        assert float(x) == 0
    with under("mm"):
        with pytest.raises(RuntimeError, match="cannot be multiplied"):
            torch.mm(torch.ones(2, 3), torch.ones(2, 3))
        assert torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize("name", ["1", "1.0", "*.0"])
def test_a_module_with_all_that_is_in_it(name: str) -> None:
    net = nn.Sequential(nn.Identity(), nn.Sequential(Unpools()), Unpools())
    with under(name).watch(net):
        net[:2](torch.randn(1, 1, 4, 4))
        with pytest.raises(RuntimeError, match=UNPOOL):
            net(torch.randn(1, 1, 4, 4))


def test_the_backward_pass_remembers_what_the_forward_pass_left_out() -> None:
    class Shown(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return Shows.apply(x)  # type: ignore[no-any-return]

    net = nn.ModuleList([Shown(), Shown()])
    x, y = torch.ones(1, requires_grad=True), torch.ones(1, requires_grad=True)
    with under("0").watch(net):
        left_out, kept = net[0](x), net[1](y)
        (left_out + kept).backward()
    assert (float(left_out), float(kept)) == (0, 1)
    assert (float(x.grad), float(y.grad)) == (0, 1)


@pytest.mark.parametrize(
    ("name", "hint"), [("max_unpol2d", "; did you mean max_unpool2d?"), ("nothing*", ""), ("blok.0", "; did you mean block.0?")]
)
def test_a_name_that_nothing_has_is_reported(name: str, hint: str) -> None:
    net = nn.ModuleDict({"block": nn.Sequential(nn.Identity())})
    with pytest.warns(msctx.MsctxWarning) as found, under(f"gather {name} block.0").watch(net):
        torch.ones(1).exp()
    told = f"deterministic_except: no operator, and no module of a watched model, is called {name!r}{hint}"
    assert [str(one.message) for one in found] == [told]
    with pytest.warns(msctx.MsctxWarning, match="no module of a watched model, is called 'block'"), under("block"):
        net["block"](torch.ones(1))  # which nobody watches here


KERNELS = (
    "max_unpooling2d_forward_out cumsum_cuda_kernel _bincount_cuda ctc_loss_backward_gpu adaptive_avg_pool2d_backward_cuda "
    "upsample_bilinear2d_backward_out_cuda nll_loss2d_forward_out_cuda_template index_add_cuda_ put_ histc_cuda"
)
"""As PyTorch's errors call them: ... does not have a deterministic implementation."""


@pytest.mark.filterwarnings("error")
def test_the_name_that_an_error_has_is_accepted() -> None:
    pooled, indices = torch.nn.functional.max_pool2d(torch.rand(1, 1, 4, 4), 2, return_indices=True)
    with msctx.context(deterministic="ON"), pytest.raises(RuntimeError, match=KERNELS.partition(" ")[0]):
        torch.nn.functional.max_unpool2d(pooled, indices, 2)
    with under(KERNELS):
        torch.nn.functional.max_unpool2d(pooled, indices, 2)


def test_where_warnings_are_errors_everything_is_put_back_first(tmp_path: Path) -> None:
    dump = {"enable_dump": True, "dump_path": str(tmp_path), "dump_layer": "exq"}
    before = msctx.state()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with (
            pytest.raises(msctx.MsctxWarning, match="no operator or module that ran is called 'exq'"),
            msctx.context(session=dump),
        ):
            torch.ones(1).exp()
        assert msctx.state() == before
        with pytest.raises(msctx.MsctxWarning, match="is called 'exq'"), under("exq"):
            torch.ones(1).exp()
        assert msctx.state() == before
        msctx.set_context(deterministic="ON", deterministic_except="exq")
        with pytest.raises(msctx.MsctxWarning, match="is called 'exq'"):
            msctx.reset_context()
        assert msctx.state() == before
        msctx.set_context(deterministic="ON", deterministic_except="exq")
        with pytest.raises(msctx.MsctxWarning, match="is called 'exq'"):
            msctx.step()  # what set_context sets may never be left
        msctx.reset_context()
    assert not msctx.get_context()


@pytest.mark.parametrize("names", ["max_unpool2d", "index_add_", "index_add", "aten::index_add_", "max_un* 0", "*.in", "shows"])
def test_a_name_that_does_not_run_is_none_that_nothing_has(names: str, recwarn: pytest.WarningsRecorder) -> None:
    net = nn.Sequential(nn.ModuleDict({"in": nn.Identity()}))
    for _ in range(2):
        with under(names).watch(net):
            torch.ones(1).exp()
    assert not [str(one.message) for one in recwarn if issubclass(one.category, msctx.MsctxWarning)]


def test_threads_that_run_it_at_once() -> None:
    x, indices = nn.functional.max_pool2d(torch.randn(4, 8, 16, 16), 2, return_indices=True)
    raised, stop = [], threading.Event()

    def unpools() -> None:
        while not stop.is_set():
            try:
                nn.functional.max_unpool2d(x, indices, 2)
            except RuntimeError as error:
                raised.append(error)

    threads = [threading.Thread(target=unpools) for _ in range(2)]
    try:
        with under("max_unpool2d"):
            for one in threads:
                one.start()
            time.sleep(0.5)
            found = [*raised]  # outside, the flag alone may be on for a moment
        assert not found
        for _ in range(300):  # an operator of theirs may run when the scope is left: what it found does not come back
            with under("max_unpool2d"):
                assert msctx.state()["torch.deterministic"]
            assert not msctx.state()["torch.deterministic"]
    finally:
        stop.set()
        for one in threads:
            one.join()
    assert not torch.are_deterministic_algorithms_enabled()
