"""A fingerprint of a model's weights: equal exactly when every bit of every tensor is."""

from __future__ import annotations

import hashlib
from typing import Any


def weights_sha256(model: Any) -> str:
    """SHA-256 over the names, dtypes, shapes and bytes of the tensors of ``model.state_dict()``, in its order."""
    import torch

    digest = hashlib.sha256()
    for name, value in model.state_dict().items():
        plain = value.detach().cpu().contiguous()
        digest.update(f"{name}:{plain.dtype}:{tuple(plain.shape)}".encode())
        digest.update(plain.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
