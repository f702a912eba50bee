"""Another library that overrides aten::convolution, before and after ours; and when our library is loaded at all."""

from collections.abc import Callable

import pytest

Passes = Callable[..., str]
OTHER = """
import warnings, torch, msctx
from torch.nn import functional as fn
from msctx.native import core

calls = []
def theirs(x, w, b, stride, padding, dilation, transposed, output_padding, groups):
    calls.append("forward")
    return torch.full((x.shape[0], w.shape[0], x.shape[2] - w.shape[2] + 1, x.shape[3] - w.shape[3] + 1), 7.0)

def registered():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that a kernel is overridden
        library = torch.library.Library("aten", "IMPL")
        library.impl("convolution", theirs, "CPU")
    return library

x, w = torch.randn(1, 2, 6, 6), torch.randn(3, 2, 3, 3)
right = fn.conv2d(x.double(), w.double()).float()
def ours():
    return torch.allclose(fn.conv2d(x, w), right, atol=1e-4)
def is_theirs():
    return bool((fn.conv2d(x, w) == 7).all())
"""


def test_one_registered_before_ours_is_still_called_without_a_policy(passes: Passes) -> None:
    passes(
        OTHER
        + """
library = registered()
assert is_theirs() and len(calls) == 1
with msctx.context(conv_fprop_algo="gemm", fallback="error") as ctx:
    assert ours()
assert len(calls) == 1 and [r.ran for r in ctx.choices()] == ["gemm"]
assert is_theirs() and len(calls) == 2, "theirs again after the block"
with msctx.context(conv_fprop_algo="winograd", fallback="silent") as ctx:  # what falls back goes theirs
    fn.conv2d(x, torch.randn(3, 2, 2, 2))
assert len(calls) == 3 and [r.ran for r in ctx.choices()] == ["torch"]
with msctx.context(conv_wgrad_algo="algo_1"):  # nothing is requested forward
    assert is_theirs()
assert len(calls) == 4
"""
    )


@pytest.mark.full
def test_one_registered_after_ours_refuses_the_context(passes: Passes) -> None:
    passes(
        OTHER
        + """
with msctx.context(conv_fprop_algo="gemm"):
    assert ours()
library = registered()
assert is_theirs()
before = msctx.state()
try:
    with msctx.context(conv_fprop_algo="gemm", strict=True):
        raise SystemExit("entered")
except msctx.StrictError as error:
    assert "refused" in str(error) and "another library" in str(error) and "aten::convolution" in str(error), error
with warnings.catch_warnings(record=True) as found:
    warnings.simplefilter("always")
    with msctx.context(conv_fprop_algo="gemm") as ctx:
        assert is_theirs()
(warning,) = found
assert warning.category is msctx.MsctxWarning and "another library" in str(warning.message), warning
assert not ctx.choices() and msctx.state() == before
library._destroy()
with msctx.context(conv_fprop_algo="gemm", strict=True) as ctx:
    assert ours()
assert [r.ran for r in ctx.choices()] == ["gemm"]
"""
    )


# --- when the library is there at all ---------------------------------------------------------------------------------


def test_the_library_is_not_loaded_until_an_algorithm_is_asked_for(passes: Passes) -> None:
    passes(
        """
        import warnings, torch, msctx
        from msctx.native import core
        warnings.simplefilter("ignore")
        x, w = torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3, requires_grad=True)
        for options in (
            {},
            {"deterministic": "ON"},
            {"runtime_num_threads": 1, "seed": 0},
            {"thread_invariant": False},
            {"deterministic": "ON", "fallback": "error"},
            {"conv_workspace_limit": "1MB"},
        ):
            with msctx.context(**options) as ctx:
                torch.nn.functional.conv2d(x, w).sum().backward()
                ctx.watch(torch.nn.Conv2d(3, 4, 3))
            assert not ctx.choices() and not msctx.choices(), options
        plan = msctx.explain({"conv_fprop_algo": "gemm", "thread_invariant": True})
        assert {row.status for row in plan.rows if row.device == "cpu"} <= {"honoured", "approximated"}
        assert msctx.memory_stats()["current_bytes"] == msctx.empty_cache() == 0
        assert core.loaded() is None and "msctx" not in open("/proc/self/maps").read()
        """
    )


def test_once_loaded_nothing_changes_without_a_policy(passes: Passes) -> None:
    """Values, gradients and strides of torch's own path, bit for bit, and nothing is counted."""
    passes(
        """
        import sys
        sys.path.insert(0, "tests/native")
        from convs import PROBLEMS, bits
        from msctx.native import core
        import msctx, torch
        torch.set_num_threads(1)
        def all_of_them():
            found = []
            for problem in PROBLEMS:
                for dtype in (torch.float32, torch.float64, torch.bfloat16):
                    results = problem.compute(problem.tensors(dtype))
                    found.append((bits(results), [t.stride() for t in results if t is not None]))
            return found
        before = all_of_them()
        core.load()
        assert all_of_them() == before
        with msctx.context(conv_fprop_algo="fft", conv_dgrad_algo="winograd", conv_wgrad_algo="algo_3", fallback="silent"):
            inside = all_of_them()
        assert inside != before
        assert all_of_them() == before
        with msctx.context(deterministic="ON") as ctx:
            all_of_them()
        assert not ctx.choices()
        """
    )


def test_without_a_compiler_and_a_cache_everything_else_works_and_errors_come_at_entry(
    passes: Passes, tmp_path: object
) -> None:
    passes(
        """
        import warnings, torch, msctx
        before = msctx.state()
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            with msctx.context(conv_fprop_algo="gemm", deterministic="ON", runtime_num_threads=1) as ctx:
                assert torch.are_deterministic_algorithms_enabled() and torch.get_num_threads() == 1
                assert torch.conv2d(torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3)).shape == (2, 4, 6, 6)
        (warning,) = found
        assert warning.category is msctx.MsctxWarning and "compiler" in str(warning.message), warning.message
        assert not ctx.choices() and not msctx.choices()
        for options in (
            {"op_timeout": 5},
            {"session": {"enable_dump": True}, "dump_path": "dumps"},
            {"enable_exception_dump": 1},
            {"deterministic": "ON", "deterministic_except": "gather"},
        ):
            with warnings.catch_warnings(record=True) as found:
                warnings.simplefilter("always")
                with msctx.context(**options):
                    torch.ones(2) + 1
            assert any("no C++ compiler" in str(one.message) for one in found), options
        for enter in (msctx.context, msctx.set_context):
            for requested in ({"conv_fprop_algo": "gemm"}, {"conv_algo_rules": {"all": "gemm"}}):
                for more in ({"fallback": "error"}, {"strict": True}):
                    try:
                        with enter(**requested, **more) or msctx.context():
                            raise SystemExit("entered")
                    except msctx.StrictError as error:
                        first, row, *_ = str(error).splitlines()
                        assert "strict" in more or first.startswith('fallback="error", and these options would have no effect')
                        assert row.strip().startswith(next(iter(requested))) and "no C++ compiler" in row, error
                    assert msctx.state() == before
        with msctx.context(thread_invariant=False, fallback="error"):
            pass
        """,
        env={"PATH": "", "MSCTX_CACHE_DIR": str(tmp_path), "CXX": ""},
    )
