"""Loads what sets environment variables when it is first loaded, so that no single test does."""

import sklearn.datasets  # noqa: F401 (OpenMP's variables)
import torch._inductor.config  # noqa: F401 (the cache folder of inductor)
