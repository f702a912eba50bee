"""Data on which matrix products are tested, as a user's program may have it. Plain torch, since other processes import it, too."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor, nn

Pair = tuple[Tensor, Tensor]
KINDS = (
    *("normal", "uniform", "by element", "by row", "by column", "diagonal", "outliers", "cancelling", "denormal"),
    "trained",
)


def spread(*shape: int) -> Tensor:
    """Log-uniform over 2^±20."""
    return 2.0 ** (40 * torch.rand(shape) - 20)


@cache
def trained() -> Pair:
    """Hidden values and the next weight of a small network that has learnt to tell ten random prototypes apart."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        prototypes = torch.randn(10, 64)
        model = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 10))
        for _ in range(300):
            labels = torch.randint(10, (64,))
            loss = nn.functional.cross_entropy(model(prototypes[labels] + torch.randn(64, 64)), labels)
            gradients = torch.autograd.grad(loss, parameters := list(model.parameters()))
            with torch.no_grad():
                torch._foreach_sub_(parameters, gradients, alpha=0.1)
        assert loss < 0.1
        hidden = model[:2](prototypes[torch.arange(200) % 10] + torch.randn(200, 64))
        return hidden.detach(), model.get_parameter("2.weight").detach().t()


def factors(kind: str, rows: int, depth: int, columns: int) -> Pair:
    """Both factors of a kind; those of a trained network have sizes of their own."""
    a, b = torch.randn(rows, depth), torch.randn(depth, columns)
    match kind:
        case "uniform":
            return torch.rand(rows, depth), torch.rand(depth, columns)
        case "by element":
            return a * spread(rows, depth), b * spread(depth, columns)
        case "by row":
            return a * spread(rows, 1), b * spread(depth, 1)
        case "by column":
            return a * spread(1, depth), b * spread(1, columns)
        case "diagonal":
            return torch.diag(torch.logspace(-6, 3, max(rows, depth)))[:rows, :depth].clone(), b
        case "outliers":  # one in each row and column
            return a.scatter(1, torch.randint(depth, (rows, 1)), 1e4), b.scatter(0, torch.randint(depth, (1, columns)), 1e4)
        case "cancelling":  # halves that add up to almost nothing
            half = (depth + 1) // 2
            again = torch.cat([a[:, :half], -a[:, :half] * (1 + 1e-6 * torch.randn(rows, half))], 1)
            return again[:, :depth], torch.cat([b[:half], b[:half]])[:depth]
        case "denormal":
            return a * 1e-40, b
        case "trained":
            return trained()
    return a, b
