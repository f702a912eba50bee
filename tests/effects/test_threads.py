"""runtime_num_threads, inter_op_parallel_num: the host's threads, on each device."""

import pytest

import msctx
from msctx import plan
from msctx.effects import Facts
from msctx.options import DEVICES, Settings, make_layer

SWITCHES = {"runtime_num_threads": "torch.num_threads", "inter_op_parallel_num": "torch.num_interop_threads"}


@pytest.mark.parametrize("name", SWITCHES)
@pytest.mark.parametrize(("device", "status"), [("cpu", "honoured"), ("cuda", "approximated"), ("ascend", "approximated")])
def test_a_number_of_threads(name: str, device: str, status: str) -> None:
    found = msctx.explain({name: 3}, device=device)
    assert found.assignments == {SWITCHES[name]: 3}
    (row,) = found.rows
    assert row.status == status
    assert ("host's" in row.reason) is (status == "approximated")
    assert ("stays" in row.reason) is (name == "inter_op_parallel_num"), "torch takes that one once in a process"


@pytest.mark.parametrize("name", SWITCHES)
@pytest.mark.parametrize("device", DEVICES)
def test_zero_leaves_torchs_number(name: str, device: str) -> None:
    found = msctx.explain({name: 0}, device=device)
    assert found.assignments == {}
    assert [row.status for row in found.rows] == ["honoured"]
    assert "torch's own number is kept" in found.rows[0].reason


@pytest.mark.parametrize("name", SWITCHES)
def test_a_machine_with_several_devices_is_written_once(name: str) -> None:
    found = plan.make(Settings([make_layer({name: 3}, "test")]), Facts(devices=DEVICES))
    assert found.assignments == {SWITCHES[name]: 3}


def test_the_two_are_independent() -> None:
    found = msctx.explain({"runtime_num_threads": 2, "inter_op_parallel_num": 5}, device="cpu")
    assert found.assignments == {"torch.num_threads": 2, "torch.num_interop_threads": 5}


def test_the_host_has_one_number_of_threads() -> None:
    options = {"runtime_num_threads": 1, "device_context.cpu.op_tuning.threads_num": 8}
    found = plan.make(Settings([make_layer(options, "test")]), Facts(devices=("cpu", "cuda")))
    assert found.assignments == {"torch.num_threads": 8}
    (lost,) = [r for r in found.rows if r.device == "cuda"]
    assert lost.reason == "these are the host's threads, and device_context.cpu.op_tuning.threads_num=8 sets them"


def test_denormals_are_the_hosts_matter() -> None:
    (row,) = msctx.explain({"flush_denormal": True}, device="cpu").rows
    assert (row.status, dict(row.assignments)) == ("approximated", {"torch.flush_denormal": True})
    assert "keep theirs" in row.reason
    assert {msctx.explain({"flush_denormal": True}, device=d).rows[0].status for d in ("cuda", "ascend")} == {"inert"}
