"""The convolutions of published networks, for images of 224 x 224.

ResNet-50 (He et al., arXiv 1512.03385), ResNeXt (arXiv 1611.05431), VGG-16 (arXiv 1409.1556), ConvNeXt (arXiv 2201.03545),
RepLKNet (arXiv 2203.06717), MobileNet (arXiv 1704.04861), AlexNet (Krizhevsky et al., 2012).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import conv2d

Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
FORMATS = {"channels_first": torch.contiguous_format, "channels_last": torch.channels_last}


@dataclass(frozen=True)
class Layer:
    name: str
    c: int
    k: int
    size: int
    window: int
    stride: int = 1
    groups: int = 1
    pad: int | None = None

    @property
    def padding(self) -> int:
        return self.window // 2 if self.pad is None else self.pad

    @property
    def out(self) -> int:
        return (self.size + 2 * self.padding - self.window) // self.stride + 1

    @property
    def multiply_adds(self) -> int:
        """Of an image in each direction, zeros of the padding included."""
        return self.out**2 * self.window**2 * self.k * self.c // self.groups


WINDOW_3 = (
    Layer("resnet l1", 64, 64, 56, 3),
    Layer("resnet l2", 128, 128, 28, 3),
    Layer("resnet l3", 256, 256, 14, 3),
    Layer("resnet l4", 512, 512, 7, 3),
    Layer("vgg 3_2", 256, 256, 56, 3),
    Layer("vgg 4_2", 512, 512, 28, 3),
    Layer("vgg 5", 512, 512, 14, 3),
)
WINDOW_1 = (
    Layer("resnet l1 c", 64, 256, 56, 1),
    Layer("resnet l1 a", 256, 64, 56, 1),
    Layer("resnet l2 a", 512, 128, 28, 1),
    Layer("resnet l3 a", 1024, 256, 14, 1),
    Layer("resnet l4 c", 512, 2048, 7, 1),
)
DEPTHWISE_LARGE = (
    Layer("replknet s1", 128, 128, 56, 31, 1, 128),
    Layer("replknet s2", 256, 256, 28, 29, 1, 256),
    Layer("replknet s3", 512, 512, 14, 27, 1, 512),
)
DEPTHWISE_7 = (
    Layer("convnext 1", 96, 96, 56, 7, 1, 96),
    Layer("convnext 2", 192, 192, 28, 7, 1, 192),
    Layer("convnext 3", 384, 384, 14, 7, 1, 384),
    Layer("convnext 4", 768, 768, 7, 7, 1, 768),
)
STRIDED = (
    Layer("resnet conv1", 3, 64, 224, 7, 2),
    Layer("alexnet 1", 3, 64, 224, 11, 4, pad=2),
    Layer("resnet l2 ds", 256, 512, 56, 1, 2),
)
DENSE = (Layer("dense 11x11", 64, 64, 56, 11), Layer("dense 13x13", 64, 64, 56, 13))
DEPTHWISE_3 = (Layer("mobilenet 1", 128, 128, 56, 3, 1, 128), Layer("mobilenet 2", 256, 256, 28, 3, 1, 256))
OTHERS = (
    Layer("resnext", 128, 128, 56, 3, 1, 32),
    Layer("vgg 1_1", 3, 64, 224, 3),
    Layer("alexnet 2", 64, 192, 27, 5),
)
OF_EACH_KIND = (
    *(*WINDOW_3[:6], *WINDOW_1[::2], DEPTHWISE_LARGE[2], *DEPTHWISE_7[::2]),
    *(*STRIDED, *DENSE[:1], *DEPTHWISE_3[:1], *OTHERS),
)
"""What ``normal`` and ``performance`` are judged by."""


def call(layer: Layer, direction: str) -> Callable[..., torch.Tensor]:
    """What takes the input, the weight and the gradient of the output, and gives the result of one direction."""

    def run(x: torch.Tensor, w: torch.Tensor, g: torch.Tensor) -> Any:
        if direction == "fprop":
            return conv2d(x, w, None, layer.stride, layer.padding, 1, layer.groups)
        mask = [direction == "dgrad", direction == "wgrad", False]
        s, p = [layer.stride] * 2, [layer.padding] * 2
        found = torch.ops.aten.convolution_backward(g, x, w, None, s, p, [1, 1], False, [0, 0], layer.groups, mask)
        return found[0] if direction == "dgrad" else found[1]

    return run


def tensors(
    layer: Layer, batch: int, seed: int, memory_format: str = "channels_first", data: str = "normal", device: Any = "cpu"
) -> Tensors:
    """Input, weight and the gradient of the output, float32, normally distributed; ``denormal``: the input times 1e-39."""
    generator = torch.Generator(device).manual_seed(seed)
    x = torch.randn(batch, layer.c, layer.size, layer.size, generator=generator, device=device)
    w = torch.randn(layer.k, layer.c // layer.groups, layer.window, layer.window, generator=generator, device=device)
    if data == "denormal":
        x = x * 1e-39
    g = torch.randn(batch, layer.k, layer.out, layer.out, generator=generator, device=device)
    kind = FORMATS[memory_format]
    return x.contiguous(memory_format=kind), w.contiguous(memory_format=kind), g.contiguous(memory_format=kind)
