"""quant_dumpable: what goes into a quantisation stays a tensor under torch.compile, and nothing else changes."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import msctx
from msctx.graph.inductor_passes import Marking, quantized_input


def f(x: torch.Tensor) -> torch.Tensor:
    return torch.fake_quantize_per_tensor_affine(x.sin() + 1, 0.1, 0, -128, 127).sum() + x.cos().sum()


def test_the_input_alone_is_marked_after_the_passes_of_the_program() -> None:
    seen: list[int] = []
    graph = torch.fx.symbolic_trace(f)
    Marking(lambda: lambda graph: seen.append(len(graph.nodes)))(graph.graph)
    graph.recompile()
    targets = [node.target for node in graph.graph.nodes]
    assert seen == [len(targets) - 1]
    assert targets.count(quantized_input()) == 1
    assert targets[targets.index(quantized_input()) + 1] is torch.fake_quantize_per_tensor_affine
    x = torch.randn(3, 3, requires_grad=True)
    (expected,) = torch.autograd.grad(f(x), x)
    (found,) = torch.autograd.grad(graph(x), x)
    assert torch.equal(graph(x), f(x))
    assert torch.equal(found, expected)


def test_the_operator_is_sound() -> None:
    torch.library.opcheck(quantized_input(), (torch.randn(3, 2, requires_grad=True),))


def test_caches_know_it_unless_they_do_not_know_a_pass_of_the_program() -> None:
    class Known:
        def uuid(self) -> str:
            return "one"

    alone = Marking(lambda: None).uuid()
    assert alone[0] == "Marking"
    assert Marking(lambda: [Known()]).uuid() == (*alone, "one")
    assert Marking(lambda: print).uuid() is None


@pytest.mark.full
def test_a_dump_has_it_only_where_asked(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    from torch._inductor import config

    request.addfinalizer(torch._dynamo.reset)
    compiled: Any = torch.compile(f)
    x = torch.randn(3, 3)
    expected = compiled(x)
    for value in ("0", "1", "0"):
        folder = tmp_path / f"{value}{len([*tmp_path.iterdir()])}"
        folder.mkdir()
        options = {"session.enable_dump": True, "dump_path": str(folder), "quant_dumpable": value}
        with msctx.context(**options):
            assert torch.equal(compiled(x), expected)
        marked = [path for path in folder.rglob("*.npy") if path.name.startswith("quantized_input")]
        assert len(marked) == (value == "1")
    assert config.pre_grad_custom_pass is None


@pytest.mark.full
def test_code_from_the_cache_finds_the_operator_in_a_later_process(tmp_path: Path) -> None:
    program = (
        "import torch, msctx\n"
        "f = lambda x: torch.fake_quantize_per_tensor_affine(x.sin() * 2, 0.1, 0, -128, 127).tan()\n"
        f"requested = dict(enable_dump=True, dump_path={str(tmp_path / 'dump')!r}, dump_mode='input', quant_dumpable='1')\n"
        "with msctx.context(session=requested):\n"
        "    print(torch.compile(f)(torch.ones(4)).sum().item())\n"
    )
    env = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    runs = [
        subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=False) for _ in range(2)
    ]
    assert [run.returncode for run in runs] == [0, 0], runs[1].stderr
    assert runs[0].stdout == runs[1].stdout
