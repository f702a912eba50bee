"""What stands around a model where a framework shows the model inside alone."""

from __future__ import annotations

import gc
from collections.abc import Iterator

from torch import distributed, nn


def data_parallel_around(model: nn.Module) -> Iterator[nn.Module]:
    """The DistributedDataParallel into which a framework has put *model*."""
    if distributed.is_available() and distributed.is_initialized():
        for found in gc.get_objects():
            if issubclass(type(found), nn.parallel.DistributedDataParallel) and found.module is model:
                yield found
