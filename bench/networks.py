"""Networks of the published shapes with random weights, in plain torch: for whole-model figures.

ResNet-50 (He et al., arXiv 1512.03385), VGG-16 (arXiv 1409.1556), ConvNeXt-T (arXiv 2201.03545), and the encoder of the base
transformer (Vaswani et al., arXiv 1706.03762). EfficientNet-B0 (arXiv 1905.11946) and RegNetY-3.2GF (arXiv 2003.13678) are those of
the package transformers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class Bottleneck(nn.Module):
    def __init__(self, c: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(c, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()),
            *(nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()),
            *(nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width)),
        )
        same = stride == 1 and c == 4 * width
        self.skip = (
            nn.Identity() if same else nn.Sequential(nn.Conv2d(c, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width))
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.skip(x))


def resnet50() -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    c = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for i in range(blocks):
            layers.append(Bottleneck(c, width, 2 if i == 0 and width > 64 else 1))
            c = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(c, 1000))


def vgg16() -> nn.Module:
    layers: list[nn.Module] = []
    c = 3
    for width, depth in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(depth):
            layers += [nn.Conv2d(c, width, 3, 1, 1), nn.ReLU()]
            c = width
        layers.append(nn.MaxPool2d(2))
    head = (nn.Linear(512 * 7 * 7, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 1000))
    return nn.Sequential(*layers, nn.Flatten(), *head)


class ChannelNorm(nn.LayerNorm):
    """LayerNorm over the channels of an image."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ConvNextBlock(nn.Module):
    def __init__(self, c: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(c, c, 7, 1, 3, groups=c)
        self.pointwise = nn.Sequential(nn.LayerNorm(c, eps=1e-6), nn.Linear(c, 4 * c), nn.GELU(), nn.Linear(4 * c, c))
        self.scale = nn.Parameter(torch.full((c,), 0.1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + (self.scale * self.pointwise(self.depthwise(x).permute(0, 2, 3, 1))).permute(0, 3, 1, 2)


def convnext() -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, 96, 4, 4), ChannelNorm(96, eps=1e-6)]
    c = 96
    for width, blocks in ((96, 3), (192, 3), (384, 9), (768, 3)):
        if width != c:
            layers += [ChannelNorm(c, eps=1e-6), nn.Conv2d(c, width, 2, 2)]
            c = width
        layers += [ConvNextBlock(c) for _ in range(blocks)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(c, eps=1e-6), nn.Linear(c, 1000))


def encoder(dropout: float) -> nn.Module:
    """Six layers of 512 features and 8 heads."""
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(512, 8, 2048, dropout=dropout, batch_first=True), 6)


class Features(nn.Module):
    """A backbone of transformers: images to the map that it ends with. Its batch norms know such images."""

    def __init__(self, name: str, **how: Any) -> None:
        import transformers

        super().__init__()
        self.backbone = getattr(transformers, f"{name}Model")(getattr(transformers, f"{name}Config")(**how)).train()
        for norm in (each for each in self.backbone.modules() if isinstance(each, nn.BatchNorm2d)):
            norm.momentum = None  # the mean of all
        with torch.no_grad():
            self.backbone(torch.randn(4, 3, 224, 224))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.backbone(x).last_hidden_state
        return found.mean((2, 3))


def efficientnet_b0() -> nn.Module:
    return Features("EfficientNet", width_coefficient=1.0, depth_coefficient=1.0, hidden_dim=1280, image_size=224)


def regnet_y() -> nn.Module:
    return Features("RegNet", hidden_sizes=[72, 216, 576, 1512], depths=[2, 5, 13, 1], groups_width=24)


NETWORKS: dict[str, Any] = {each.__name__: each for each in (resnet50, vgg16, convnext, efficientnet_b0, regnet_y)}
