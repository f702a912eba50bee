"""Models for the comparisons beside this file: each function returns a module and an input for it."""

import torch
from torch import nn


def convnet(images: int = 8) -> tuple[nn.Module, torch.Tensor]:
    """Four stages of two 3x3 convolutions with normalisation, on images of 64 x 64."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    channels = 3
    for width in (32, 64, 128, 256):
        for stride in (2 if channels > 3 else 1, 1):
            layers += [nn.Conv2d(channels, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
            channels = width
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))
    return model, torch.randn(images, 3, 64, 64)
