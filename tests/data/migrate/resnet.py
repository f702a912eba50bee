# ruff: noqa
"""Train ResNet on ImageNet (in the manner of MindSpore's model zoo; never run)."""

import argparse
import os

import mindspore.nn as nn
from mindspore import context, set_seed
from mindspore.communication.management import get_rank, init
from mindspore.context import ParallelMode

from src.config import config

DEVICE_MEMORY = 30
SAVE_GRAPHS = False

set_seed(1)

parser = argparse.ArgumentParser(description="Image classification")
parser.add_argument("--device_target", type=str, default="Ascend", choices=("Ascend", "GPU", "CPU"))
parser.add_argument("--run_distribute", type=bool, default=False)
args = parser.parse_args()


def set_parameter():
    context.set_context(
        mode=context.GRAPH_MODE,
        device_target=args.device_target,
        save_graphs=SAVE_GRAPHS,
        max_device_memory=f"{DEVICE_MEMORY}GB",
    )
    if args.device_target == "GPU":
        context.set_context(enable_graph_kernel=True)
    if args.run_distribute:
        device_id = int(os.getenv("DEVICE_ID"))
        context.set_context(device_id=device_id, enable_auto_mixed_precision=True)
        context.set_auto_parallel_context(
            device_num=config.device_num, parallel_mode=ParallelMode.DATA_PARALLEL, gradients_mean=True
        )
        init()


def train_net():
    set_parameter()
    context.set_context(enable_dump=True, save_graphs=2)


if __name__ == "__main__":
    context.set_context(deterministic="ON")
    train_net()
