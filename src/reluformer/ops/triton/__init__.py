"""Fused kernels for NVIDIA GPUs. Importing this package imports Triton; nothing else in reluformer does."""

from reluformer.ops.triton.launch_backward import backward
from reluformer.ops.triton.launch_forward import forward

__all__ = ["backward", "forward"]
