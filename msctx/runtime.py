"""MindSpore's ``runtime``: the functions behind which one of its context options stands."""

import sys
from typing import Any

from msctx.vocabulary import build, launch_blocking, set_memory, setter

dispatch_threads_num: Any

build(sys.modules[__name__], "runtime", setter)

__all__ = ["dispatch_threads_num", "launch_blocking", "set_memory"]
