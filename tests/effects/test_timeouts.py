"""How long a process waits, on each device."""

import pytest
from plans import check, planned


@pytest.mark.parametrize(("device", "status"), [("cpu", "approximated"), ("cuda", "approximated"), ("ascend", "honoured")])
def test_how_long_a_collective_waits(device: str, status: str) -> None:
    found = planned({"hccl_timeout": 600}, on=(device,))
    assert {row.status for row in found.rows} == {status}
    own = {"ascend": {"env.HCCL_EXEC_TIMEOUT": "600", "torch.distributed.timeout": 630}}
    assert found.assignments == {"torch.distributed.timeout": 600} | own.get(device, {})


def test_without_a_limit_the_groups_have_none_either() -> None:
    found = planned({"hccl_timeout": 0}, on=("ascend",)).assignments
    assert (found["env.HCCL_EXEC_TIMEOUT"], found["torch.distributed.timeout"]) == ("0", 0)


@pytest.mark.parametrize("name", ["op_wait_timeout", "stream_sync_timeout", "event_sync_timeout"])
def test_a_cpu_has_no_streams(name: str) -> None:
    (row,) = planned({name: 600}, on=("cpu",)).rows
    assert (row.status, "hccl_timeout" in row.reason) == ("refused", True)


def test_how_long_cuda_is_waited_for() -> None:
    check(
        ("cuda", {name: value}, {name: expected})
        for name, value, expected in (
            ("op_wait_timeout", 60, ("refused", {}, "op_timeout")),
            ("stream_sync_timeout", 900, ("approximated", {"torch.cuda.stream_sync_timeout": 900}, "torch.cuda.Stream")),
            ("event_sync_timeout", 900, ("approximated", {"torch.cuda.event_sync_timeout": 900}, "torch.cuda.Event")),
            ("event_sync_timeout", -1, ("honoured", {"torch.cuda.event_sync_timeout": None}, "")),
        )
    )


def test_how_long_an_npu_is_waited_for() -> None:
    event = "torch.npu.event_sync_timeout"
    check(
        ("ascend", {name: value}, {name: expected})
        for name, value, expected in (
            ("op_wait_timeout", 60, ("honoured", {"env.HCCL_EVENT_TIMEOUT": "60"}, "first process group of HCCL")),
            ("stream_sync_timeout", 900, ("honoured", {"env.ACL_STREAM_TIMEOUT": "900"}, "ACL_DEVICE_SYNC_TIMEOUT")),
            ("stream_sync_timeout", -1, ("honoured", {"env.ACL_STREAM_TIMEOUT": "-1"}, "ACL_DEVICE_SYNC_TIMEOUT")),
            ("event_sync_timeout", 900, ("approximated", {event: 900}, "torch.npu.Event")),
            ("event_sync_timeout", -1, ("honoured", {event: None}, "")),
        )
    )
