"""Quantisation to eight bits: a matrix as integers from -127 to 127 and one scale for each of its rows.

A row is an output channel of a linear layer, or a token of the embeddings. A scale per row costs next to nothing, and
no row suffers from the largest number of another.
"""

import warnings
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

LARGEST = 127  # symmetric: -128 is never used

Linear = Callable[[Tensor], Tensor]


def quantise_rows(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """The nearest ``integers (N, M) * scale (N, 1)``, int8 and float32; quantising their product returns the same."""
    matrix = matrix.detach().float()
    scale = matrix.abs().amax(1, keepdim=True) / LARGEST
    scale = torch.where(scale > 0, scale, 1.0)  # a row of zeros
    return (matrix / scale).round().to(torch.int8), scale


def dequantise_rows(integers: Tensor, scale: Tensor) -> Tensor:
    """The matrix that integers and scales stand for, in float32."""
    return integers.float() * scale.float()


def relative_error(matrix: Tensor, other: Tensor) -> float:
    """Norm of the difference between two matrices, as a share of the norm of the first."""
    norm = matrix.float().norm()
    return float((matrix.float() - other.float()).norm() / norm) if norm > 0 else 0.0


def can_multiply_integers() -> bool:
    """Whether PyTorch can multiply int8 matrices on this CPU."""
    return torch.backends.quantized.engine != "none" and hasattr(torch.ops.quantized, "linear_dynamic")


def multiplies_bf16() -> bool:
    """Whether this CPU has instructions that multiply bfloat16."""
    return _has("avx512_bf16") or _has("amx_bf16")


def _has(instructions: str) -> bool:
    about: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    return bool(about.get(instructions))


def integer_linear(weight: Tensor, bias: Tensor | None, relu: bool = False) -> Linear:
    """A linear layer in int8, inputs included: these are quantised in every call, with one scale for all rows.

    Args:
        weight: ``(out, in)``, quantised here.
        bias: ``(out,)`` or None.
        relu: Whether to apply ReLU to the outputs, which costs nothing here.
    """
    integers, scale = quantise_rows(weight)
    zeros = torch.zeros(len(scale), dtype=torch.long)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch deprecates quantised tensors; this one lives until the next line
        tensor = torch._make_per_channel_quantized_tensor(integers, scale[:, 0].double(), zeros, 0)
        packed = torch.ops.quantized.linear_prepack(tensor, None if bias is None else bias.detach().float())
    multiply = torch.ops.quantized.linear_relu_dynamic if relu else torch.ops.quantized.linear_dynamic
    # Without VNNI, products are summed in pairs in 16 bits, which inputs of 7 bits cannot overflow.
    narrow = not _has("avx512_vnni")
    return lambda x: multiply(x, packed, narrow)


def float_linear(weight: Tensor, bias: Tensor | None, dtype: torch.dtype, relu: bool = False) -> Linear:
    """A linear layer that multiplies in ``dtype``, from and to float32; arguments as in :func:`integer_linear`."""
    weight, bias = weight.detach().to(dtype), None if bias is None else bias.detach().to(dtype)

    def multiply(x: Tensor) -> Tensor:
        out = F.linear(x.to(dtype), weight, bias)
        return (out.relu_() if relu else out).float()

    return multiply
