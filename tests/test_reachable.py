"""Objects that gc.freeze() has hidden from the collector's lists: who looks for them there finds them otherwise."""

from __future__ import annotations

import gc
import sys
from typing import Any

import pytest

from msctx import reachable


class Kind:
    """What is looked for."""


def test_nothing_is_gone_through_where_nothing_is_frozen() -> None:
    here = Kind()
    assert not gc.get_freeze_count()
    assert [*reachable.frozen(Kind)] == []
    assert here


def test_what_variables_containers_and_functions_hold_is_found(run_python: Any) -> None:
    done = run_python("""
        import gc, weakref
        from msctx import reachable

        class Kind: pass
        class Own(Kind): pass
        class Slots:
            __slots__ = ("held",)

        def main():
            local, slots, deep = Own(), Slots(), {"a": [(Kind(),)]}
            slots.held = Kind()
            closed = (lambda held: lambda: held)(Kind())
            gc.freeze()
            assert not any(isinstance(found, Kind) for found in gc.get_objects())
            found = [*reachable.frozen(Kind)]
            assert len(found) == len({*found}) == 4, found
            assert {*found} == {local, slots.held, deep["a"][0][0], closed()}
            seen = weakref.ref(local)
            del local, found
            assert seen() is None, "nothing of the search is left"

        main()
    """)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="exec() puts it into a copy of its own there")
def test_what_exec_has_put_in_stays(run_python: Any) -> None:
    done = run_python("""
        import gc
        from msctx import reachable

        def main(given):
            exec("made = 1")
            gc.freeze()
            reachable.frozen(type("Kind", (), {}))
            assert eval("made, given") == (1, 2)

        main(2)
    """)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("where", ["call", "return"])
@pytest.mark.parametrize("set_", ["settrace", "setprofile"])
def test_variables_of_a_function_that_is_traced_stay(run_python: Any, set_: str, where: str) -> None:
    """After a trace function of Python's has returned, a variable that is not in the copy is deleted. Here and in another thread."""
    done = run_python(f"""
        import gc, sys, threading
        from msctx import reachable

        searching, done = threading.Event(), threading.Event()
        searches = lambda: reachable.frozen(type("Kind", (), {{}}))

        def elsewhere():
            searching.set()
            done.wait()

        def traced(frame, event, argument):
            if frame.f_code is inner.__code__ and event == "{where}":
                search()
            return traced

        def inner(given):
            return lambda: given

        def main():
            sys.{set_}(traced)
            held = inner(2)
            sys.{set_}(None)
            ended.append(held())

        gc.freeze()
        ended, search = [], searches
        main()
        search, thread = elsewhere, threading.Thread(target=main)
        thread.start()
        searching.wait()
        searches()
        done.set()
        thread.join()
        assert ended == [2, 2], ended
    """)
    assert done.returncode == 0, done.stderr


@pytest.mark.full
def test_a_scaler_and_a_data_parallel_model(tmp_path: Any, run_python: Any) -> None:
    done = run_python(f"""
        import gc, torch, torch.distributed as dist
        from torch import nn
        import msctx
        from msctx.integrations.wrappers import data_parallel_around
        from msctx.native import precision_switch

        dist.init_process_group("gloo", init_method="file://{tmp_path}/store", rank=0, world_size=1)
        model, other = nn.Linear(2, 2), nn.Linear(2, 2)
        around = nn.parallel.DistributedDataParallel(model)
        gc.freeze()
        assert [*data_parallel_around(model)] == [around]
        assert [*data_parallel_around(other)] == []
        gc.unfreeze()
        assert [*data_parallel_around(model)] == [around]
        dist.destroy_process_group()

        assert "without a GradScaler" in precision_switch._unscaled()
        scaler = torch.amp.GradScaler("cpu")
        gc.freeze()
        assert precision_switch._unscaled() == ""
        assert [*precision_switch._frozen] == [scaler]
        del scaler
        assert "without a GradScaler" in precision_switch._unscaled()
    """)
    assert done.returncode == 0, done.stderr
