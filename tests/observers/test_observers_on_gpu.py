"""Observers on a GPU: what is read of CUDA tensors is what is in them, and reports name the same operators as on a CPU."""

import csv
import json
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

import msctx

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
    pytest.mark.usefixtures("torch_as_found"),
]


def of_integers(device: str, dtype: torch.dtype = torch.float32) -> nn.Module:
    """Its numbers are small integers, so that the order of a sum does not matter."""
    net = nn.Sequential(nn.Linear(40, 30), nn.ReLU(), nn.Linear(30, 7))
    with torch.no_grad():
        for number, parameter in enumerate(net.parameters()):
            parameter.copy_((torch.arange(parameter.numel()).view_as(parameter) * (number + 3)) % 7 - 3)
    return net.to(device, dtype)


def statistics(path: Path, device: str, dtype: torch.dtype) -> list[list[str]]:
    net, x = of_integers(device, dtype), (torch.arange(8 * 40) % 5 - 2).view(8, 40).to(device, dtype)
    session = {"enable_dump": True, "dump_path": str(path), "dump_data": "stats", "dump_mode": "all"}
    with msctx.context(session=session).watch(net):
        net(x).sum().backward()
    head, *rows = csv.reader((path / "rank_0" / "Net" / "0" / "0" / "statistic.csv").open())
    of_run = {"Op Name", "Task ID", "Stream ID", "Timestamp"}
    return [[value for name, value in zip(head, row, strict=True) if name not in of_run] for row in rows]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_statistics_are_those_of_a_cpu(dtype: torch.dtype, tmp_path: Path) -> None:
    here, there = statistics(tmp_path / "cpu", "cpu", dtype), statistics(tmp_path / "cuda", "cuda", dtype)
    forward = [row for row in here if row[0] in ("addmm", "relu")]
    assert len(forward) > 8
    assert [row for row in there if row[0] in ("addmm", "relu")] == forward
    assert {row[0] for row in there} >= {"mm", "threshold_backward", "sum"}


def recorded(folder: Path) -> str:
    path = folder / "env.json"
    path.write_text(json.dumps({"rdr": {"enable": True, "mode": 2, "path": str(folder / "out")}}))
    return str(path)


def test_the_recorder_waits_for_nothing_and_a_graph_is_captured_under_it(tmp_path: Path) -> None:
    x, w = torch.randn(2, 8, 9, 9, device="cuda"), torch.randn(4, 8, 3, 3, device="cuda")
    functional.conv2d(x, w)
    torch.cuda.synchronize()
    with msctx.context(env_config_path=recorded(tmp_path), conv_fprop_algo="implicit_gemm"):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = functional.conv2d(x, w).relu()
        torch.cuda.set_sync_debug_mode("error")
        try:
            functional.conv2d(x, w)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    graph.replay()
    assert (y >= 0).all()
    (found,) = [json.loads(path.read_text()) for path in tmp_path.glob("out/rank_0/rdr/KERNEL.graph_exec_order.*.json")]
    last = found["operators"][-1]
    assert (last["operator"], last["algorithm"]) == ("aten::convolution", "implicit_gemm")


def test_waits_end_in_time() -> None:
    event, stream = torch.cuda.Event(), torch.cuda.Stream()
    with msctx.context(event_sync_timeout=50, stream_sync_timeout=50):
        with torch.cuda.stream(stream):
            torch.cuda._sleep(4_000_000_000)
            event.record()
        with pytest.raises(RuntimeError, match="event_sync_timeout=50"):
            event.synchronize()
        with pytest.raises(RuntimeError, match="stream_sync_timeout=50"):
            stream.synchronize()
    stream.synchronize()
    assert event.query()
