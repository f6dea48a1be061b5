"""``reluformer bench memory``: memory of forward and backward beyond inputs, outputs and gradients, by length."""

from dataclasses import dataclass

import torch
from torch import Tensor

from reluformer import relu_attention
from reluformer.bench.peak import peak_extra_bytes
from reluformer.bench.timing import medians, reason, release


@dataclass
class Row:
    """Results of forward and backward at one length."""

    length: int
    heads: int
    head_dim: int
    dtype: str
    statistics: bool
    ms: float | None = None
    extra_mib: float | None = None
    note: str = ""

    @property
    def bytes_per_token(self) -> float | None:
        """Extra memory over length, which is constant if memory is linear."""
        return None if self.extra_mib is None else self.extra_mib * 2**20 / self.length

    def record(self) -> dict[str, object]:
        """Return the row for a CSV file."""
        return {
            "length": self.length,
            "heads": self.heads,
            "head_dim": self.head_dim,
            "dtype": self.dtype,
            "statistics": self.statistics,
            "both_ms": self.ms,
            "extra_mib": self.extra_mib,
            "extra_bytes_per_token": self.bytes_per_token,
            "note": self.note,
        }


def measure(length: int, heads: int, head_dim: int, dtype: str, statistics: bool, device: torch.device) -> Row:
    """Measure a causal forward and backward of one sequence; with statistics, gradients flow through these, too."""
    row = Row(length, heads, head_dim, dtype, statistics)
    shape = (1, heads, length, head_dim)
    try:
        q, k, v = (torch.randn(shape, device=device, dtype=getattr(torch, dtype), requires_grad=True) for _ in range(3))

        def forward() -> list[Tensor]:
            if not statistics:
                return [relu_attention(q, k, v, causal=True)]
            out, stats = relu_attention(q, k, v, causal=True, return_stats=True)
            return [out, stats.mass, stats.entropy]

        slopes = [torch.randn_like(x) for x in forward()]

        def both() -> tuple[object, ...]:
            outputs = forward()
            return outputs, torch.autograd.grad(outputs, (q, k, v), slopes)

        both()
        row.extra_mib = peak_extra_bytes(both, device) / 2**20
        found = medians({"both": both}, device, seconds=0.2, fewest=1, most=10)["both"]
        row.ms, row.note = (found, "") if isinstance(found, float) else (None, found)
    except Exception as error:
        row.note = reason(error)
    release(device)
    return row
