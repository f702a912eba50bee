"""Which CUDA kernels compute: the general ones also compute what others are made for."""

from contextlib import AbstractContextManager
from unittest import mock

from msctx.native.cuda import depthwise


def window(general: bool) -> AbstractContextManager[object]:
    return mock.patch.object(depthwise, "WINDOWS", () if general else depthwise.WINDOWS)
