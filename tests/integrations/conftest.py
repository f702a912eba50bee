"""No library of these tests goes to the network, and none sets environment variables in the middle of a test."""

import os

import pytest
import torch._inductor.config  # the cache folder of inductor
import torch.distributed

os.environ["HF_HUB_OFFLINE"] = "1"


@pytest.fixture
def one_rank():
    """A process group of this process alone; what frameworks tell their processes by the environment goes with it."""
    found = dict(os.environ)
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()
    os.environ.clear()
    os.environ.update(found)
