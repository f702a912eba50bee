"""No library of these tests goes to the network, and none sets environment variables in the middle of a test."""

import os

import torch._inductor.config  # noqa: F401 (the cache folder of inductor)

os.environ["HF_HUB_OFFLINE"] = "1"
