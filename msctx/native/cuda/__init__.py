"""Kernels for NVIDIA GPUs: which there are, how they are compiled, how a problem becomes launches, and the driver that runs them.

Nothing here imports torch.
"""
