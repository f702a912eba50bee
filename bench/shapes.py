"""The matmuls of published networks, and of sizes that stand by themselves.

GPT-2 (Radford et al., 2019), BERT (arXiv 1810.04805), ViT (arXiv 2010.11929), the base transformer (arXiv 1706.03762), ConvNeXt
(arXiv 2201.03545).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Shape:
    """rows x depth times depth x columns; *layout*: which factor lies transposed, in BLAS's letters."""

    rows: int
    depth: int
    columns: int
    layout: str = "NT"
    batch: int = 0
    """Of ``bmm``; 0: ``mm``."""

    @property
    def name(self) -> str:
        batch = f"{self.batch} of " if self.batch else ""
        return f"{batch}{self.rows} x {self.depth} x {self.columns}, {self.layout}"

    @property
    def multiply_adds(self) -> int:
        return max(self.batch, 1) * self.rows * self.depth * self.columns


SQUARES = tuple(Shape(n, n, n, "NN") for n in (1024, 2048, 4096))
TRANSFORMERS = tuple(
    Shape(rows, depth, columns)
    for rows in (128, 256, 512)
    for depth, columns in ((768, 768), (768, 2304), (768, 3072), (3072, 768), (1024, 4096), (4096, 1024))
)
KEPT = tuple(
    Shape(rows, depth, columns)
    for rows in (1, 4, 8, 16, 32, 128, 197)
    for depth, columns in ((768, 768), (768, 3072), (3072, 768))
)
_WIDTHS = ((384, 1536), (512, 2048), (768, 3072), (1024, 4096))
_FORWARD = tuple(
    Shape(rows, depth, columns)
    for rows in (1, 16, 128, 512)
    for width, hidden in _WIDTHS
    for depth, columns in ((width, width), (width, hidden), (hidden, width))
)
_GRADIENTS = (
    Shape(512, 3072, 768, "NN"),
    Shape(512, 768, 3072, "NN"),
    Shape(3072, 512, 768, "TN"),
    Shape(768, 512, 3072, "TN"),
)
_CONVNEXT = tuple(Shape(rows, width, 4 * width) for rows, width in ((3136, 96), (784, 192), (196, 384), (49, 768)))
_HEADS = (Shape(8, 768, 1000), Shape(64, 2048, 1000), Shape(128, 768, 30522))
_NARROW = (Shape(4096, 64, 64), Shape(16384, 32, 32), Shape(64, 64, 64), Shape(256, 256, 256), Shape(300, 300, 300))
_ATTENTION = (
    *(Shape(512, 64, 512, "NT", 12), Shape(512, 512, 64, "NN", 12)),
    *(Shape(197, 64, 197, "NT", 96), Shape(197, 197, 64, "NN", 96)),
    *(Shape(128, 64, 128, "NT", 64), Shape(128, 128, 64, "NN", 64)),
)
OF_EACH_KIND = (*_FORWARD, *_GRADIENTS, *_CONVNEXT, *_HEADS, *_NARROW, *_ATTENTION)
"""What ``normal`` and ``performance`` are judged by."""


def tensors(shape: Shape, seed: int, data: str = "normal") -> tuple[torch.Tensor, torch.Tensor]:
    """Both factors, float32, normally distributed; ``denormal``: the left one times 1e-39."""
    generator, batch = torch.Generator().manual_seed(seed), (shape.batch,) if shape.batch else ()

    def factor(rows: int, columns: int, letter: str) -> torch.Tensor:
        if letter == "N":
            return torch.randn(*batch, rows, columns, generator=generator)
        return torch.randn(*batch, columns, rows, generator=generator).mT

    left = factor(shape.rows, shape.depth, shape.layout[0])
    return left * 1e-39 if data == "denormal" else left, factor(shape.depth, shape.columns, shape.layout[1])
