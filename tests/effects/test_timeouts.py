"""How long a process waits, on each device."""

import pytest
from plans import planned


@pytest.mark.parametrize(("device", "status"), [("cpu", "honoured"), ("cuda", "approximated"), ("ascend", "not_built")])
def test_how_long_a_collective_waits(device: str, status: str) -> None:
    found = planned({"hccl_timeout": 600}, on=(device,))
    assert {row.status for row in found.rows} == {status}
    written = {} if device == "ascend" else {"torch.distributed.timeout": 600, "observers.last_steps": 600}
    assert found.assignments == written


@pytest.mark.parametrize("name", ["op_wait_timeout", "stream_sync_timeout", "event_sync_timeout"])
def test_a_cpu_has_no_streams(name: str) -> None:
    found = planned({name: 600}, on=("cpu", "cuda", "ascend"))
    assert [row.status for row in found.rows] == ["refused", "not_built", "not_built"]
    assert "hccl_timeout" in found.rows[0].reason
