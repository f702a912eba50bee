"""Trains a small ConvNet on scikit-learn's handwritten digits.

It knows nothing of options: whoever calls it, ``msctx run`` or a with-block of your own, decides under which it runs. It names its
model, of which some of them speak; the loss is scaled where that computes in float16, and only there.
"""

from __future__ import annotations

from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import msctx
from msctx.run import weights_sha256


def data(test_share: float = 0.2) -> tuple[TensorDataset, TensorDataset]:
    """Images (N, 1, 8, 8), float32 in 0..1, and labels (N,), int64; the split is always the same one."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target, dtype=torch.int64)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(20))
    test = int(len(images) * test_share)
    training, held_out = order[test:], order[:test]
    return TensorDataset(images[training], labels[training]), TensorDataset(images[held_out], labels[held_out])


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Dropout(0.2), nn.Linear(64 * 2 * 2, 10),
    )  # fmt: skip


@torch.no_grad()
def accuracy(model: nn.Module, dataset: TensorDataset, device: torch.device) -> float:
    model.eval()
    images, labels = dataset.tensors
    return (model(images.to(device)).argmax(1) == labels.to(device)).float().mean().item()


def train(
    epochs: int = 25, batch_size: int = 32, learning_rate: float = 2e-3, device: Any = None, run: Any = None
) -> dict[str, Any]:
    """Train and return ``test_accuracy`` (0..1) and ``weights_sha256``; *run* is the run in progress, if there is one."""
    device = torch.device(device or (run.device if run else "cpu"))
    training, test = data()
    model = network().to(device)
    msctx.current().watch(model)
    optimizer = torch.optim.AdamW(model.parameters(), learning_rate)
    scaler = msctx.current().grad_scaler()
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, learning_rate, epochs * -(-len(training) // batch_size))
    for epoch in run.progress(range(epochs), "digits") if run else range(epochs):
        model.train()
        total = 0.0
        for images, labels in DataLoader(training, batch_size, shuffle=True):
            loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            schedule.step()
            total += loss.item() * len(images)
        if run:
            run.log(epoch=epoch + 1, loss=total / len(training), test_accuracy=accuracy(model, test, device))
    return {"test_accuracy": accuracy(model, test, device), "weights_sha256": weights_sha256(model)}
