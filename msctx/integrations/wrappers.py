"""What stands around a model where a framework shows the model inside alone."""

from __future__ import annotations

import gc
from collections.abc import Iterator

from torch import distributed, nn

from msctx import reachable


def data_parallel_around(model: nn.Module) -> Iterator[nn.Module]:
    """The DistributedDataParallel into which a framework has put *model*."""
    if distributed.is_available() and distributed.is_initialized():
        kind = nn.parallel.DistributedDataParallel
        found = [one for one in gc.get_objects() if issubclass(type(one), kind)]
        yield from (one for one in dict.fromkeys([*found, *reachable.frozen(kind)]) if one.module is model)
