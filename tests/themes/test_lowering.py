"""What inductor makes of convolutions and products of CUDA tensors: its real lowering, of tensors without data."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from msctx.context import ledger
from msctx.themes.convolution_and_algorithm_policy import INDUCTOR

SAID: dict[str, tuple[dict[str, Any], set[tuple[str, int]]]] = {
    "nothing": ({}, set()),
    "max_autotune": ({"max_autotune": True}, {("forward", 1), ("forward", 3)}),
    "max_autotune_gemm": ({"max_autotune_gemm": True}, {("forward", 1), ("forward", 3)}),
    "conv_1x1_as_mm": ({"conv_1x1_as_mm": True}, {("forward", 1)}),
    "Triton alone": (
        {
            "max_autotune": True,
            "max_autotune_conv_backends": "TRITON",
            "max_autotune_conv_bwd_weight_backends": "TRITON",
            "max_autotune_conv_bwd_input_backends": "TRITON",
        },
        {("forward", 1), ("forward", 3), ("backward", 1), ("backward", 3)},
    ),
}
"""Options of torch.compile, and for which passes and windows inductor then takes something other than a convolution."""


class Taken(Exception):
    """A kernel or a product that is no convolution of torch's."""


BACKWARD = "conv2d_bwd_weight_template", "conv2d_bwd_input_template"


def has_backward() -> bool:
    """Whether inductor knows kernels of its own for gradients: 2.11 has none, 2.14 takes none for NVIDIA's GPUs."""
    return torch.__version__.startswith(("2.12.", "2.13."))


@pytest.fixture
def inductor(monkeypatch, torch_as_found):
    """It believes in a large GPU, and tells of what it takes."""
    from torch._inductor import choices, utils
    from torch._inductor.kernel import conv

    def taken(*_: Any, **__: Any) -> None:
        raise Taken

    one = SimpleNamespace(num_warps=4, num_stages=2, kwargs={})
    monkeypatch.setattr(utils, "is_big_gpu", lambda *_: True)
    monkeypatch.setattr(choices.InductorChoices, "get_conv_configs", lambda *_: lambda *_, **__: [one])
    monkeypatch.setattr(conv, "convert_1x1_conv_to_mm", taken)
    for template in ("conv2d_template", *(BACKWARD if has_backward() else ())):
        monkeypatch.setattr(getattr(conv, template), "maybe_append_choice", taken)


def forward(x: Any, w: Any, g: Any) -> Any:
    return torch.ops.aten.convolution(x, w, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)


def backward(x: Any, w: Any, g: Any) -> Any:
    found = torch.ops.aten.convolution_backward(g, x, w, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True, True, False])
    return found[:2]


def kernels(function: Callable[..., Any], window: int) -> set[str]:
    from torch._inductor.graph import GraphLowering
    from torch._inductor.virtualized import V
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    with FakeTensorMode(shape_env=ShapeEnv()) as mode:
        shapes = (2, 16, 9, 8), (32, 16, window, window), (2, 32, 10 - window, 9 - window)
        tensors = [
            torch.empty(shape, device="cuda", dtype=torch.float16).to(memory_format=torch.channels_last) for shape in shapes
        ]
        graph = GraphLowering(make_fx(function)(*tensors), example_inputs=tensors, shape_env=mode.shape_env)
        with V.set_graph_handler(graph), V.set_fake_mode(mode), V.set_extern_kernel_nodes([]):
            graph.run(*tensors)
    return {name for one in graph.operations if (name := getattr(one, "python_kernel_name", None))}


@pytest.mark.parametrize("said", SAID)
def test_it_is_a_convolution_while_an_algorithm_is_asked_for(inductor, said):
    from torch._inductor import config

    options, taken = SAID[said]
    options = {key: value for key, value in options.items() if hasattr(config, key)}
    calls = {forward: "extern_kernels.convolution", backward: "torch.ops.aten.convolution_backward.default"}
    for function, name in calls.items():
        for window in (1, 3):
            with config.patch(options):
                if (function.__name__, window) in taken and (function is forward or has_backward()):
                    with pytest.raises(Exception, match="Taken"):  # inductor's own error tells of it
                        kernels(function, window)
                else:
                    assert kernels(function, window) == {name}
            hold = ledger.apply(INDUCTOR, ledger.Hold("test"))
            try:
                with config.patch(options):  # as torch.compile does with its own
                    assert kernels(function, window) == {name}
            finally:
                ledger.undo(hold)
