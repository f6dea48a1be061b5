"""The dumb way: every weight in a Python loop, every measure from its definition."""

import math
from types import SimpleNamespace

import pytest
import torch

from reluformer.memory import Attention, KeyValueMemory
from reluformer.memory.activations import NORMALISED

SHARES = {"top_0_2_percent": (2, 1000), "top_1_percent": (1, 100), "top_10_percent": (1, 10)}


def activate(scores: list[float], activation: str, count: int) -> list[float]:
    """Weights of the visible scores of one row, before any scale."""
    if not scores:
        return []
    if activation == "softmax":
        largest = max(scores)
        powers = [math.exp(s - largest) for s in scores]
        return [p / sum(powers) for p in powers]
    if activation in NORMALISED:
        import entmax

        return getattr(entmax, activation)(torch.tensor(scores, dtype=torch.float64), dim=-1).tolist()
    return [
        {
            "relu": lambda s: max(s, 0.0),
            "relu_squared": lambda s: max(s, 0.0) ** 2,
            "relu_fourth": lambda s: max(s, 0.0) ** 4,
            "relu_eighth": lambda s: max(s, 0.0) ** 8,
            "relu6": lambda s: min(max(s, 0.0), 6.0),
            "gelu": lambda s: s * 0.5 * (1 + math.erf(s / math.sqrt(2))),
            "softplus": lambda s: math.log1p(math.exp(s)),
            "identity": lambda s: s,
            "sigmoid": lambda s: 1 / (1 + math.exp(-(s - math.log(count)))),
            "plain_sigmoid": lambda s: 1 / (1 + math.exp(-s)),
        }[activation](s)
        for s in scores
    ]


@torch.no_grad()
def attention_rows(
    module: Attention, x, context=None, key_mask=None, attn_mask=None, query_mask=None
) -> list[list[list[float]]]:
    """For each head the rows that count, each as the weights of the keys that it may see."""
    settings, d = module.settings, module.head_dim
    source = x if context is None else context
    q, k = module.query(x), module.key(source)  # (B, N, H * D), (B, M, Hk * D)
    group = module.heads // module.key_heads
    gates = None if module.forget is None else module.forget(x).double()  # (B, H, N)
    heads = []
    for h in range(module.heads):
        rows = []
        for b in range(x.shape[0]):
            keys = k[b, :, (h // group) * d : (h // group + 1) * d].double()
            keys = [(j, keys[j]) for j in range(len(keys))]
            for i in range(x.shape[1]):
                if query_mask is not None and not query_mask[b, i]:
                    continue
                seen = [] if module.slots is None else [slot.double() for slot in module.slots.keys[h // group]]
                faded = [0.0] * len(seen)
                for j, key in keys:
                    if key_mask is not None and not key_mask[b, j]:
                        continue
                    if attn_mask is not None and not attn_mask[b % len(attn_mask), h % attn_mask.shape[1], i, j]:
                        continue
                    if module.causal and attn_mask is None and j > i + len(keys) - x.shape[1]:
                        continue
                    seen.append(key)
                    faded.append(0.0 if gates is None else float(gates[b, h, j + 1 : i + 1].sum()))
                bias = 0.0 if module.bias is None else float(module.bias[h])
                query = q[b, i, h * d : (h + 1) * d].double()
                scores = [float(query @ key) / math.sqrt(d) / settings.temperature + bias for key in seen]
                gamma = 1.0 if module.gamma() is None else float(module.gamma()[h])
                divisor = gamma * (len(seen) / 2) ** settings.alpha
                if settings.activation in NORMALISED:
                    scores = [s + f for s, f in zip(scores, faded, strict=True)]
                    faded = [0.0] * len(scores)
                weights = activate(scores, settings.activation, len(seen))
                rows.append([w * math.exp(f) / divisor for w, f in zip(weights, faded, strict=True)])
        heads.append(rows)
    return heads


@torch.no_grad()
def memory_rows(module: KeyValueMemory, x) -> list[list[float]]:
    """The weights of every row of ``x (P, width)``."""
    settings = module.settings
    gamma = 1.0 if module.gamma() is None else float(module.gamma())
    divisor = gamma * (settings.slots / 2) ** settings.alpha
    rows = (module.keys(x).double() / settings.temperature).tolist()
    return [[w / divisor for w in activate(row, settings.activation, settings.slots)] for row in rows]


def measure(row: list[float]) -> SimpleNamespace | None:
    """What one row did; None for a dead one."""
    positive = [max(w, 0.0) for w in row]
    total = sum(positive)
    if not total > 0:
        return None
    found = SimpleNamespace(
        mass=sum(row),
        entropy=-sum(w / total * math.log(w / total) for w in positive if w > 0),
        effective_keys=total**2 / sum(w * w for w in positive),
        zeros=sum(w == 0 for w in row) / len(row),
    )
    for name, (share, of) in SHARES.items():
        k = max(1, math.ceil(share * len(row) / of - 1e-9))
        setattr(found, name, sum(sorted(positive, reverse=True)[:k]) / total)
    return found


def mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def check_head(head, rows: list[list[float]], **tolerance: float) -> None:
    """A head's report against the rows of its weights."""
    found = [measure(row) for row in rows]
    live = [x for x in found if x is not None]
    assert (head.rows, head.live) == (len(rows), len(live))
    assert head.dead == (pytest.approx(1 - len(live) / len(rows)) if rows else None)
    for name in ("mass", "entropy", "effective_keys", "zeros", *SHARES):
        expected = mean([getattr(x, name) for x in live])
        assert getattr(head, name) == (None if expected is None else pytest.approx(expected, **tolerance)), name
    lengths = {1: 2} | {2**i + 1: 2 ** (i + 1) for i in range(1, 12)}
    for first, last in lengths.items():
        inside = [x for x, row in zip(found, rows, strict=True) if x is not None and first <= len(row) <= last]
        parts = [x for x in head.by_length if x.fewest == first]
        assert len(parts) == bool(inside)
        for part in parts:
            assert (part.most, part.rows) == (last, len(inside))
            for name in ("mass", "entropy", "effective_keys"):
                expected = mean([getattr(x, name) for x in inside])
                assert getattr(part, name) == pytest.approx(expected, **tolerance), name


def variance(vectors: torch.Tensor) -> float:
    return float(vectors.double().var(correction=0))


def anisotropy(vectors: torch.Tensor) -> float | None:
    """Mean cosine over all pairs of different vectors, one by one."""
    vectors = [v.double() for v in vectors if v.any()]
    cosines = [float(a @ b / (a.norm() * b.norm())) for i, a in enumerate(vectors) for b in vectors[:i]]
    return mean(cosines)
