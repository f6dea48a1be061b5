"""``reluformer bench decode``: one query per sequence against a long cache, which is bound by reading the cache."""

from dataclasses import asdict, dataclass

import torch
from torch.nn import functional

from reluformer import relu_attention
from reluformer.bench.timing import Call, medians, release

COPY = "copy, device to device"
OURS = "ReLU, this operator"
SOFTMAX = "softmax, SDPA"


@dataclass(frozen=True)
class Cache:
    """A batch of key-value caches of one length."""

    sequences: int
    keys: int
    query_heads: int
    key_heads: int
    head_dim: int
    dtype: str

    def __str__(self) -> str:
        kind = "MHA" if self.query_heads == self.key_heads else "GQA"
        return (
            f"{kind}, {self.sequences} sequences x {self.keys} keys, {self.query_heads}/{self.key_heads} heads x "
            f"{self.head_dim}, {self.dtype}"
        )


@dataclass
class Row:
    """Results of one contestant; bytes per second count once each byte that must be read or written."""

    cache: Cache
    name: str
    ms: float | None
    gb_per_s: float | None
    of_copy: float | None
    note: str = ""

    def record(self) -> dict[str, object]:
        """Return the row for a CSV file."""
        measured = {"ms": self.ms, "gb_per_s": self.gb_per_s, "of_copy": self.of_copy, "note": self.note}
        return asdict(self.cache) | {"contestant": self.name} | measured


def measure(cache: Cache, device: torch.device, seconds: float, fewest: int) -> list[Row]:
    """Time this operator, SDPA and a plain copy of as many bytes."""
    dtype = getattr(torch, cache.dtype)
    kv_shape = (cache.sequences, cache.key_heads, cache.keys, cache.head_dim)
    k, v = (torch.randn(kv_shape, device=device, dtype=dtype) for _ in range(2))
    q = torch.randn(cache.sequences, cache.query_heads, 1, cache.head_dim, device=device, dtype=dtype)
    grouped = cache.query_heads != cache.key_heads
    target = torch.empty_like(k)
    calls: dict[str, Call] = {
        OURS: lambda: relu_attention(q, k, v),
        SOFTMAX: lambda: functional.scaled_dot_product_attention(q, k, v, enable_gqa=grouped),
        COPY: lambda: target.copy_(k),  # reads and writes the bytes of k: as many as k and v together
    }
    with torch.inference_mode():
        found = medians(calls, device, seconds, fewest)
    read = k.nbytes + v.nbytes
    moved = {OURS: read + 2 * q.nbytes, SOFTMAX: read + 2 * q.nbytes, COPY: read}
    rate = {name: moved[name] / ms / 1e6 for name, ms in found.items() if isinstance(ms, float)}  # GB/s
    rows = []
    for name, ms in found.items():
        if isinstance(ms, float):
            rows.append(Row(cache, name, ms, rate[name], rate[name] / rate[COPY] if COPY in rate else None))
        else:
            rows.append(Row(cache, name, None, None, None, ms))
    release(device)
    return rows
