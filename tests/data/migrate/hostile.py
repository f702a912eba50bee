# ruff: noqa
"""A script that must not be run."""

import os
import sys

import mindspore as ms

with open("msctx_was_run.txt", "w") as file:
    file.write("the script was run")
os.environ["MSCTX_WAS_RUN"] = "1"
sys.exit(3)
while True:
    pass
ms.set_context(deterministic="ON", device_id=__import__("os").system("touch msctx_was_run.txt"))
