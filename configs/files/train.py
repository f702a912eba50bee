"""A small training to start from: replace the model and the data with yours. `msctx run` calls main() under the options."""

import torch
from torch import nn

import msctx


def main(run, steps=50, learning_rate=0.01):
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)
    ).to(run.device)
    msctx.current().watch(model)  # for options that name modules, and those about memory
    scaler = msctx.current().grad_scaler()  # scales the loss where options compute in float16, and only there
    optimizer = torch.optim.AdamW(model.parameters(), learning_rate)
    for step in run.progress(range(steps)):
        images = torch.randn(8, 3, 32, 32, device=run.device)
        labels = (images.mean((1, 2, 3)) > 0).long()
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if step % 10 == 9:
            run.log(step=step + 1, loss=loss.item())
    return {"loss": loss.item()}  # result.json has it
