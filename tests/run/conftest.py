"""Loads what sets environment variables when it is first loaded, so that no single test does."""

import torch._inductor.config  # noqa: F401 (the cache folder of inductor)
