"""Memory: the cap in bytes that each device gets and whose cap it is, and how the options of pools meet in one setting."""

import json

import pytest
from samples import planned

import msctx
from msctx import devices
from msctx.native import memory
from msctx.options import DEVICES

GB = 2**30


def test_an_inner_scope_takes_back_what_the_outer_one_has_of_the_allocator():
    found = planned({"memory_optimize_level": "O1"}, {"memory_optimize_level": "O0"}, on="cuda")
    assert found.assignments == {"torch.accelerator.allocator_settings": None, "models.recompute": False}


@pytest.mark.parametrize(("cap", "size", "words"), [("8GB", 8 * GB, "8 GiB"), ("100TB", 102400 * GB, "100 TiB")])
def test_free_memory_is_the_cap_where_it_is_less(monkeypatch, cap, size, words):
    monkeypatch.setattr(devices, "here", lambda: ("cpu",))
    monkeypatch.setattr(memory, "free_bytes", lambda: 3 * GB)
    (row,) = msctx.explain({"max_device_memory": cap}).rows
    assert (row.status, row.reason) == ("honoured", f"3 GiB: least of {words} requested, 3 GiB free")
    with msctx.context(max_device_memory=cap) as ctx:
        assert ctx.plan.rows[0].reason == row.reason
        printed = [ctx, ctx.plan, ctx.plan.rows[0], msctx.state()["native.memory_caps"], msctx.memory_stats()["caps"]]
        assert msctx.get_context("max_device_memory") == size
    assert [words in str(one) and str(size) not in str(one) for one in printed] == [True] * 5


@pytest.mark.parametrize(
    ("given", "shown"),
    [("4GB", "4 GiB"), ("1.5GiB", "1.5 GiB"), (GB + 1, "1 GiB (1073741825 bytes)"), ("5000B", "4.883 KiB")],
)
def test_a_size_prints_in_words_that_mean_it_exactly(given, shown):
    size = msctx.explain(max_device_memory=given).rows[0].value
    assert f"{size}" == repr(size) == shown
    assert json.dumps(size) == json.dumps(size + 0)


@pytest.mark.parametrize(("target", "applies"), [(None, False), ("GPU", False), ("CPU", True)])
def test_beside_an_accelerator_the_host_is_capped_where_it_is_the_target(target, applies):
    found = planned({"max_device_memory": "4GB"} | ({"device_target": target} if target else {}), on=DEVICES)
    assert any(r.option == "max_device_memory" and r.device == "cpu" for r in found.rows) is applies
