"""MindSpore's ``device_context``: ``msctx.device_context.gpu.op_tuning.conv_fprop_algo("winograd")`` and the like.

The functions are made from the names that the options declare (``Option.also``), so each reaches exactly one option.
"""

import sys
from typing import Any

from msctx.setter_functions import build

cpu: Any
gpu: Any
ascend: Any

build(sys.modules[__name__], "device_context")
