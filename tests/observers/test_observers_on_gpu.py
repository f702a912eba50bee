"""Observers on a GPU: what is read of CUDA tensors is what is in them, and reports name the same operators as on a CPU."""

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from dumped_programs import overflows
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


def test_a_digest_does_not_depend_on_the_device(tmp_path: Path) -> None:
    found = []
    for device in ("cpu", "cuda"):
        net, x = of_integers(device), (torch.arange(8 * 40) % 5 - 2.0).view(8, 40).to(device)
        session = {"enable_dump": True, "dump_path": str(tmp_path / device), "dump_data": "stats", "dump_mode": "all"}
        with msctx.context(session=session, dump_format="msprobe").watch(net):
            net(x).sum().backward()
        dumped = json.loads((tmp_path / device / "step0" / "rank0" / "dump.json").read_text())["data"]
        found.append(dumped["Aten.addmm.0.forward"]["output"])
    for one in found[1]:
        assert one["shape"] == [8, 30]
    assert [{k: v for k, v in one.items() if k != "data_name"} for one in found[0]] == [
        {k: v for k, v in one.items() if k != "data_name"} for one in found[1]
    ]


def test_the_first_overflow_of_a_forward_pass(tmp_path: Path) -> None:
    net = of_integers("cuda")
    with torch.no_grad():
        net[2].weight.fill_(3e38)
    (report, *_) = overflows(lambda: net(torch.ones(2, 40, device="cuda")).relu().sum(), tmp_path, net=net)
    assert "aten::addmm in module 2, forward" in report, report
    assert [*tmp_path.iterdir()]


def test_an_overflow_of_float16_in_a_backward_pass(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(8, 8, bias=False)).to("cuda", torch.float16)
    with torch.no_grad():
        net[0].weight.fill_(1.0)

    def run() -> None:
        net(torch.ones(4, 8, device="cuda", dtype=torch.float16)).float().mul(1e6).sum().backward()

    (report, *_) = overflows(run, tmp_path, net=net)
    assert "aten::_to_copy" in report, report
    assert "backward pass" in report, report


@pytest.mark.filterwarnings("ignore:aten..")
def test_inputs_of_an_operator_that_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    net = nn.Sequential(nn.Linear(4, 3), nn.Linear(5, 2)).cuda()
    with (
        pytest.raises(RuntimeError, match="cannot be multiplied"),
        msctx.context(session={"enable_exception_dump": 1}).watch(net),
    ):
        net(torch.ones(1, 4, device="cuda"))
    (file,) = tmp_path.rglob("addmm.*.pt")
    found = torch.load(file)
    assert torch.equal(found["arguments"]["mat2"], net[1].weight.t().cpu())
    assert {one["device"] for one in found["inputs"]} == {"cuda:0"}


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


def test_a_context_that_observes_nothing_leaves_a_capture_alone() -> None:
    x = torch.randn(16, 16, device="cuda")
    (x @ x).relu()
    with msctx.context(matmul_allow_tf32=False):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = (x @ x).relu()
    graph.replay()
    assert y.isfinite().all()


ADDS_ATOMICALLY = """
import torch

def train(steps: int = 3) -> None:
    torch.manual_seed(0)
    net = torch.nn.Linear(64, 64).cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    index = torch.randint(0, 4, (200000,), device="cuda")
    for _ in range(steps):
        made = net(torch.randn(200000, 64, device="cuda"))
        torch.zeros(4, 64, device="cuda").index_add(0, index, made).square().mean().backward()
        optimizer.step()
"""


def test_which_operator_is_not_deterministic(tmp_path: Path) -> None:
    """index_add with float32 adds atomically; the run that is repeated differs there, and nowhere before."""
    entry = tmp_path / "entry.py"
    entry.write_text(ADDS_ATOMICALLY)
    command = [sys.executable, "-m", "msctx", "verify", f"{entry}:train", "--json"]
    found = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert found.returncode == 1, found.stderr[-2000:]
    assert "index_add" in found.stdout


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


def test_a_print_of_a_cuda_tensor(tmp_path: Path) -> None:
    with msctx.context(print_file_path=str(tmp_path / "printed")):
        msctx.Print()("x", torch.arange(3.0, device="cuda"))
    (found,) = tmp_path.iterdir()
    assert "2." in str(msctx.parse_print(str(found)))
