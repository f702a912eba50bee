"""inductor's flags: in every thread, before and after inductor is loaded."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from msctx.switches import torch_inductor

VARIABLES = {key: variable for key, (variable, _) in torch_inductor._FLAGS.items()}
DEFAULTS = {key: default == "1" for key, (_, default) in torch_inductor._FLAGS.items()}


@pytest.mark.parametrize("loaded", [False, True])
@pytest.mark.parametrize("key", VARIABLES)
def test_a_flag_in_every_thread(key: str, loaded: bool, passes: Callable[..., str]) -> None:
    """In a fresh process; to load inductor is a second's work, so it is not loaded for the switch alone."""
    passes(f"""
        import os, sys, threading, torch
        from msctx.switches import SWITCHES
        switch, default = SWITCHES["torch.inductor.{key}"], {DEFAULTS[key]}
        assert "torch._inductor.config" not in sys.modules
        assert switch.read() == default
        if {loaded}:
            import torch._inductor.config
            torch._inductor.config.{key} = default  # this thread's own
        state = switch.take()
        switch.set(not default)
        import torch._inductor.config as config
        seen = []
        def look(): seen.append(config.{key})
        look()
        thread = threading.Thread(target=look); thread.start(); thread.join()
        assert seen == [not default] * 2, seen
        switch.put_back(state)
        look()
        thread = threading.Thread(target=look); thread.start(); thread.join()
        assert seen[2:] == [default] * 2, seen
        assert "{VARIABLES[key]}" not in os.environ
    """)


def test_the_keys_and_variables_are_inductors(passes: Callable[..., str]) -> None:
    """Each variable decides its key when inductor is loaded, and no other; an absent one means its default."""
    out = passes(
        f"""
        import torch._inductor.config as config
        print({{key: getattr(config, key) for key in {list(VARIABLES)}}})
        """,
        env={"TORCHINDUCTOR_FREEZING": "1"},
    )
    assert eval(out) == DEFAULTS | {"freezing": True}
