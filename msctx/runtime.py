"""MindSpore's ``runtime``: the functions behind which one of its context options stands."""

import sys
from typing import Any

from msctx.setter_functions import build, set_memory

dispatch_threads_num: Any
launch_blocking: Any

build(sys.modules[__name__], "runtime")

__all__ = ["dispatch_threads_num", "launch_blocking", "set_memory"]
