"""The settings of the accelerators' allocators: laid over the user's own, read where the allocators read them, put back."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import _C

from msctx.switches import SWITCHES, present
from msctx.switches.accelerator import DEFAULTS, join, obstacle, parse
from msctx.switches.base import LateError

SWITCH = SWITCHES["torch.accelerator.allocator_settings"]
NAME = SWITCH.name
pytestmark = pytest.mark.skipif(SWITCH not in present(), reason="this torch has no such settings")

LISTS = "garbage_collection_threshold:0.5, roundup_power2_divisions:[256:1,512:2,1024:4,>:8]"
InEffect = Callable[[], dict[str, float]]


def text() -> str:
    return _C._accelerator_getAllocatorSettings()


@pytest.fixture(scope="module")
def in_effect(tmp_path_factory: pytest.TempPathFactory) -> InEffect:
    """What the allocators see, by a library that asks torch's own (compiled in 2 s)."""
    if (compiler := shutil.which("c++")) is None:
        pytest.skip("no C++ compiler")
    at, library = Path(torch.__file__).parent, tmp_path_factory.mktemp("config") / "config.so"
    source = Path(__file__).with_name("allocator_config.cpp")
    flags = ["-std=c++20", "-shared", "-fPIC", f"-I{at / 'include'}", f"-L{at / 'lib'}"]
    subprocess.run([compiler, *flags, source, "-o", library, "-lc10"], check=True)
    call = ctypes.CDLL(str(library)).in_effect
    found = (ctypes.c_double * 5)()

    def read() -> dict[str, float]:
        call(found)
        return dict(zip(("segment", "expandable", "max_split", "threshold", "divisions"), found, strict=True))

    return read


@pytest.fixture
def user() -> Iterator[Callable[[str], None]]:
    """Sets the settings by hand, from torch's defaults on; puts them back."""
    found, start = text(), join(DEFAULTS)

    def set_text(new: str) -> None:
        _C._accelerator_setAllocatorSettings(start)
        _C._accelerator_setAllocatorSettings(new)

    yield set_text
    set_text(found)


@pytest.mark.parametrize("own", ["", LISTS, "large_segment_size_mb:64"])
@pytest.mark.parametrize(
    "value",
    [
        {"large_segment_size_mb": 1024},
        {"expandable_segments": True},
        {"large_segment_size_mb": 40, "expandable_segments": True},
    ],
)
def test_what_is_asked_is_in_effect_beside_the_users_own_and_put_back(
    own: str, value: dict[str, Any], user: Callable[[str], None], in_effect: InEffect
) -> None:
    user(own)
    before, state = in_effect(), SWITCH.take()
    SWITCH.set(value)
    inside = in_effect()
    requested = {"large_segment_size_mb": "segment", "expandable_segments": "expandable"}
    assert inside == before | {requested[key]: float(new) for key, new in value.items()}
    assert SWITCH.is_satisfied(value)
    assert (SWITCH.read() or {}).items() >= value.items()
    SWITCH.put_back(state)
    assert (text(), in_effect()) == (own, before)


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ("max_split_size_mb:64", "max_split_size_mb too small, must be >= 1024"),
        ("max_non_split_rounding_mb:64", "max_non_split_rounding_mb too small, must be >= 1024"),
    ],
)
def test_what_torch_does_not_take_is_told_and_changes_nothing(
    own: str, said: str, user: Callable[[str], None], in_effect: InEffect, held: Any
) -> None:
    user(own)
    before = in_effect()
    value = {"large_segment_size_mb": 1024}
    with held({NAME: value}) as hold:
        assert list(hold.late) == [NAME]
        assert said in hold.late[NAME]
        assert (text(), in_effect()) == (own, before)
    with pytest.raises(LateError, match="too small"):
        SWITCH.set(value)
    assert (text(), in_effect()) == (own, before)
    user("")  # torch keeps max_non_split_rounding_mb, which is not ours
    _C._accelerator_setAllocatorSettings("max_non_split_rounding_mb:20")


@pytest.mark.parametrize("variable", ["PYTORCH_ALLOC_CONF", pytest.param("PYTORCH_CUDA_ALLOC_CONF", marks=pytest.mark.full)])
def test_the_variables_are_the_users_own(variable: str, passes: Callable[..., str]) -> None:
    code = f"""
        from torch import _C
        from msctx.switches import SWITCHES
        switch = SWITCHES[{NAME!r}]
        state = switch.take()
        assert switch.read() == {{"expandable_segments": True}}
        switch.set({{"large_segment_size_mb": 1024}})
        assert switch.read() == {{"expandable_segments": True, "large_segment_size_mb": 1024}}
        print(_C._accelerator_getAllocatorSettings())
        switch.put_back(state)
        print(_C._accelerator_getAllocatorSettings())
    """
    own = "roundup_power2_divisions:[256:1,>:4],expandable_segments:True"
    assert passes(code, env={variable: own}).splitlines() == [f"{own},large_segment_size_mb:1024", own]


@pytest.mark.parametrize(
    ("settings", "npu", "why"),
    [
        ("expandable_segments:True,max_split_size_mb:64", False, ""),
        ("expandable_segments:True,max_split_size_mb:64", True, "together with max_split_size_mb, which"),
        (
            "expandable_segments:True,garbage_collection_threshold:0.5",
            True,
            "together with garbage_collection_threshold, which",
        ),
        ("expandable_segments:False,max_split_size_mb:64", True, ""),
        ("backend:native,large_segment_size_mb:64", False, ""),
        ("backend:cudaMallocAsync,large_segment_size_mb:64", False, "backend:cudaMallocAsync has no such settings"),
    ],
)
def test_what_would_end_badly_later_is_not_sent(settings: str, npu: bool, why: str) -> None:
    found = obstacle(parse(settings), npu=npu)
    assert (why in found) if why else found == ""
