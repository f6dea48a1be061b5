"""The contestants: this operator, the same in plain PyTorch, the fastest softmax, and a FlexAttention work-around."""

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import torch.nn.attention.flex_attention
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from reluformer import relu_attention

Attend = Callable[[Tensor, Tensor, Tensor, bool], tuple[Tensor, ...]]


@dataclass(frozen=True)
class Contestant:
    """A way to compute attention; ``attend(q, k, v, causal)`` returns the outputs that receive gradients."""

    name: str
    attend: Attend
    softmax: bool = False  # ratios are relative to the fastest of these
    statistics: bool = False
    score_matrices: int = 0  # how many score matrices it holds at its peak, in the inputs' dtype
    compiled: bool = False


def contestants(device: torch.device) -> list[Contestant]:
    """Return all contestants that may run on the device."""
    rivals = [SDPBackend.FLASH_ATTENTION]
    if device.type == "cuda":
        rivals += [SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]
    return [
        Contestant("ReLU, this operator", _operator),
        Contestant("ReLU, this operator, statistics", _operator_statistics, statistics=True),
        *(Contestant(f"softmax, SDPA {_NAMES[rival]}", _sdpa(rival), softmax=True) for rival in rivals),
        Contestant("ReLU, FlexAttention", _flex, compiled=True),
        Contestant("ReLU, eager", _eager, score_matrices=4),
        Contestant("ReLU, eager, statistics", _eager_statistics, statistics=True, score_matrices=16),
    ]


_NAMES = {
    SDPBackend.FLASH_ATTENTION: "flash",
    SDPBackend.CUDNN_ATTENTION: "cuDNN",
    SDPBackend.EFFICIENT_ATTENTION: "efficient",
}


def _operator(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, ...]:
    return (relu_attention(q, k, v, causal=causal),)


def _operator_statistics(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, ...]:
    out, stats = relu_attention(q, k, v, causal=causal, return_stats=True)
    return out, stats.mass, stats.entropy


def _eager_statistics(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, ...]:
    out, stats = relu_attention(q, k, v, causal=causal, return_stats=True, backend="reference")
    return out, stats.mass, stats.entropy


def _eager(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, ...]:
    """Compute ReLU attention in as few steps as plain PyTorch needs: all scales apply outside the score matrix."""
    n, d = q.shape[-2:]
    score = (q * d**-0.5) @ k.mT  # (B, H, N, N)
    if causal:
        score = score.masked_fill(~torch.ones(n, n, dtype=torch.bool, device=q.device).tril(), 0.0)
    return ((torch.relu(score) @ v) / _divisor(n, causal, q).to(q.dtype),)


def _divisor(n: int, causal: bool, q: Tensor) -> Tensor:
    count = torch.arange(1, n + 1, device=q.device) if causal else torch.full((n,), n, device=q.device)
    return (count / 2).sqrt()[:, None]  # (N, 1)


def _sdpa(backend: SDPBackend) -> Attend:
    def attend(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, ...]:
        with sdpa_kernel(backend), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # one for each reason why a back end is unfit
            return (functional.scaled_dot_product_attention(q, k, v, is_causal=causal),)

    return attend


def _flex(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, ...]:
    n = q.shape[2]
    blocks = causal_blocks(n, q.device) if causal else None
    return (_compiled_flex()(q, k, v, blocks, _divisor(n, causal, q)),)


def _log_relu(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    # log(relu(s)) itself has the gradient 0 * inf = NaN where s <= 0.
    return torch.where(score > 0, torch.log(score.clamp_min(1e-30)), -float("inf"))


def flex_relu(q: Tensor, k: Tensor, v: Tensor, blocks: object, divisor: Tensor) -> Tensor:
    """Compute ReLU attention with FlexAttention, which has softmax built in.

    Softmax of ``log relu(s)`` is ``relu(s) / sum relu(s)``; the log-sum-exp gives the sum back.
    """
    flex: Any = torch.nn.attention.flex_attention
    if hasattr(flex, "AuxRequest"):
        out, aux = flex.flex_attention(q, k, v, _log_relu, blocks, return_aux=flex.AuxRequest(lse=True))
        log_sum = aux.lse
    else:  # PyTorch before 2.9
        out, log_sum = flex.flex_attention(q, k, v, _log_relu, blocks, return_lse=True)
    scaled: Tensor = out * (log_sum.exp()[..., None] / divisor)
    return scaled.to(q.dtype)


@lru_cache(maxsize=1)
def _compiled_flex() -> Callable[..., Tensor]:
    return torch.compile(flex_relu, dynamic=False, fullgraph=True)


@lru_cache(maxsize=4)
def causal_blocks(n: int, device: torch.device) -> object:
    """Return FlexAttention's mask of the blocks that causal attention visits."""
    return torch.nn.attention.flex_attention.create_block_mask(
        lambda b, h, i, j: i >= j, None, None, n, n, device=str(device)
    )


def obstacle(score_matrices: int, q: Tensor) -> str | None:
    """Return why a contestant with this many score matrices should not even be tried on these inputs, or None."""
    b, h, n, _ = q.shape
    score_bytes = b * h * n * n * q.element_size()
    needed = score_matrices * score_bytes
    most = (8 if q.is_cuda else 1) * 2**30  # on a CPU more would fit, but take minutes
    if score_matrices and (score_bytes > most or needed > 0.6 * _memory(q.device)):
        return f"skipped: its score matrix takes {score_bytes / 2**30:.1f} GiB, several times over"
    return None


def _memory(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
