"""Networks of the published shapes with random weights and without dropout: for whole-model figures.

In plain torch: VGG-16 (arXiv 1409.1556), MobileNetV2 (arXiv 1801.04381). From the package transformers: ResNet-50 (He et al., arXiv
1512.03385), EfficientNet-B0 (arXiv 1905.11946), RegNetY-3.2GF (arXiv 2003.13678), ConvNeXt-T (arXiv 2201.03545), ViT-B/16 (arXiv
2010.11929), BERT-base (arXiv 1810.04805), GPT-2 small (Radford et al., 2019), the last two with a score for each word.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn


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


class Inverted(nn.Module):
    """The block of MobileNetV2: *wide* channels inside, its input added if it has the shape of the output."""

    def __init__(self, c: int, wide: int, k: int, stride: int) -> None:
        super().__init__()
        expand = (nn.Conv2d(c, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU6()) if wide > c else ()
        depthwise = (nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False), nn.BatchNorm2d(wide), nn.ReLU6())
        self.body = nn.Sequential(*expand, *depthwise, nn.Conv2d(wide, k, 1, bias=False), nn.BatchNorm2d(k))
        self.is_residual = stride == 1 and c == k

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.body(x)
        return x + found if self.is_residual else found


def mobilenet_v2() -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU6()]
    c, stages = 32, ((16, 1, 1), (24, 2, 2), (32, 3, 2), (64, 4, 2), (96, 3, 1), (160, 3, 2), (320, 1, 1))
    for k, blocks, stride in stages:
        for i in range(blocks):
            layers.append(Inverted(c, c if k == 16 else 6 * c, k, 1 if i else stride))
            c = k
    layers += [nn.Conv2d(c, 1280, 1, bias=False), nn.BatchNorm2d(1280), nn.ReLU6()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, 1000))


class Scores(nn.Module):
    """A network of the package transformers, without what it returns beside its scores."""

    def __init__(self, kind: str, task: str = "ImageClassification", **how: Any) -> None:
        import transformers

        super().__init__()
        classes = {"num_labels": 1000} if task == "ImageClassification" else {}
        self.model = getattr(transformers, f"{kind}For{task}")(getattr(transformers, f"{kind}Config")(**how, **classes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.model(x).logits
        return scores


class GPT2(nn.Module):
    """Without a cache. The forward pass of transformers looks for packed sentences, which no exporter takes."""

    def __init__(self) -> None:
        import transformers

        super().__init__()
        self.model = transformers.GPT2LMHeadModel(transformers.GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        body = self.model.transformer
        h = body.wte(x) + body.wpe.weight[: x.shape[1]]
        for block in body.h:
            h = block(h)
        scores: torch.Tensor = self.model.lm_head(body.ln_f(h))
        return scores


def efficientnet_b0() -> nn.Module:
    b0 = {"width_coefficient": 1.0, "depth_coefficient": 1.0, "hidden_dim": 1280, "dropout_rate": 0.0, "drop_connect_rate": 0.0}
    network = Scores("EfficientNet", **b0)
    network.model.efficientnet.pooler = nn.AdaptiveAvgPool2d(1)  # OpenVINO takes none with a window beyond the image
    return network


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "ResNet-50": partial(Scores, "ResNet"),
    "VGG-16": vgg16,
    "MobileNetV2": mobilenet_v2,
    "EfficientNet-B0": efficientnet_b0,
    "RegNetY-3.2GF": partial(Scores, "RegNet", hidden_sizes=[72, 216, 576, 1512], depths=[2, 5, 13, 1], groups_width=24),
    "ConvNeXt-T": partial(Scores, "ConvNext", layer_scale_init_value=0.1),
    "ViT-B/16": partial(Scores, "ViT"),
    "BERT-base": partial(Scores, "Bert", "MaskedLM", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0),
    "GPT-2": GPT2,
}
WORDS = {"BERT-base": 30522, "GPT-2": 50257}
"""How many words those know that take words."""


def inputs(name: str, batch: int) -> torch.Tensor:
    """Images of 224 x 224, or 128 words."""
    return torch.randint(WORDS[name], (batch, 128)) if name in WORDS else torch.randn(batch, 3, 224, 224)


def made(name: str) -> nn.Module:
    """A network whose batch norms know such inputs: else what it infers would vanish from layer to layer."""
    network = NETWORKS[name]().train()
    norms = [each for each in network.modules() if isinstance(each, nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = 1.0  # in a step of training, too: its result does not depend on it
    if norms:
        with torch.no_grad():
            network(inputs(name, 4))
    return network
