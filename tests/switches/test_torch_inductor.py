"""inductor's flags: in every thread, before and after inductor is loaded."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from msctx.switches import torch_inductor

VARIABLES = dict(torch_inductor._FLAGS)


@pytest.mark.parametrize("loaded", [False, True])
@pytest.mark.parametrize("key", VARIABLES)
def test_a_flag_in_every_thread(key: str, loaded: bool, passes: Callable[..., str]) -> None:
    """In a fresh process; to load inductor is a second's work, so it is not loaded for the switch alone."""
    passes(f"""
        import os, sys, threading, torch
        from msctx.switches import SWITCHES
        switch = SWITCHES["torch.inductor.{key}"]
        assert "torch._inductor.config" not in sys.modules
        if {loaded}:
            import torch._inductor.config
            torch._inductor.config.{key} = False  # this thread's own
        state = switch.take()
        switch.set(True)
        import torch._inductor.config as config
        seen = []
        def look(): seen.append(config.{key})
        look()
        thread = threading.Thread(target=look); thread.start(); thread.join()
        assert seen == [True, True], seen
        switch.put_back(state)
        look()
        thread = threading.Thread(target=look); thread.start(); thread.join()
        assert seen[2:] == [False, False], seen
        assert "{VARIABLES[key]}" not in os.environ
    """)


def test_the_keys_and_variables_are_inductors(passes: Callable[..., str]) -> None:
    """Each variable decides its key when inductor is loaded, and no other."""
    out = passes(
        f"""
        import torch._inductor.config as config
        print({{key: getattr(config, key) for key in {list(VARIABLES)}}})
        """,
        env={"TORCHINDUCTOR_FREEZING": "1"},
    )
    assert out.strip() == "{'deterministic': False, 'freezing': True, 'cpp_wrapper': False}"
