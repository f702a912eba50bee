"""Which CUDA kernels compute: the general ones also compute what others are made for."""

from contextlib import AbstractContextManager
from unittest import mock

from msctx.native.cuda import depthwise_launches


def window(general: bool) -> AbstractContextManager[object]:
    return mock.patch.object(depthwise_launches, "WINDOWS", () if general else depthwise_launches.WINDOWS)
