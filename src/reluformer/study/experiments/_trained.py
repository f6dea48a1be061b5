"""The lemma in trained models: variance of a value sum, relative to the scores and values that the model has."""

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from reluformer.memory import KeyValueMemory
from reluformer.report.rows import block
from reluformer.report.watch import Seen, watch
from reluformer.study.bench import Bench
from reluformer.study.scoring import validation_batch
from reluformer.translation.loading import load_model


def trained_variance(folder: Path, bench: Bench, site: str) -> dict[str, Any]:
    """Return the measured variance and the one that the lemma expects, averaged over the layers of a site.

    The lemma is about standard normal scores and values. If these have other second moments, ``s`` and ``v``, the
    variance is ``s v n / 2`` for ReLU and about ``v exp(s) / n`` for softmax. The measured variance is divided by
    ``v``, with ReLU also by ``s``, and gamma is taken out.
    """
    model, _ = load_model(folder, precision="fp32")
    batch = validation_batch(bench.corpus, 0, bench.scale.examples, model.device)
    found: list[dict[str, float]] = []

    def see(seen: Seen) -> None:
        if seen.place.site == site:
            found.append(_ffn(seen) if isinstance(seen.memory, KeyValueMemory) else _attention(seen))

    watch(model, batch, see)
    result = {name: sum(x[name] for x in found) / len(found) for name in found[0]}
    return result | {"ratio": result["variance"] / result["expected"]}


def _ffn(seen: Seen) -> dict[str, float]:
    memory: Any = seen.memory
    x = seen.x if seen.query_mask is None else seen.x[seen.query_mask]
    values = memory.values.weight.T  # (slots, width)
    scores, weights = memory.keys(x), memory.weights(x)  # (P, slots)
    count = torch.full(scores.shape[:1], float(memory.settings.slots))
    return _compare(memory.settings, weights @ values, scores, values, count)


def _attention(seen: Seen) -> dict[str, float]:
    call = seen.lookup
    assert call is not None
    weights, visible, _, _ = block(call)  # (B, H, N, M)
    q = call.q
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (call.k, call.v))
    if call.gamma is not None:
        weights = weights * call.gamma[:, None, None]
    visible = visible.expand_as(weights)
    rows = visible.any(-1) if seen.query_mask is None else seen.query_mask[:, None, :].expand(weights.shape[:3])
    scores = (q @ k.mT / q.shape[-1] ** 0.5)[visible & rows[..., None]]
    keys = visible.any(-2)  # (B, H, M)
    return _compare(call.settings, (weights @ v)[rows], scores, v[keys], visible.sum(-1)[rows])


def _compare(settings: Any, out: Tensor, scores: Tensor, values: Tensor, count: Tensor) -> dict[str, float]:
    """Compare value sums ``(P, D)`` with the lemma, given scores, values and the slots of each row ``(P,)``."""
    size, n = float(values.square().mean()), float(count.float().mean())
    if settings.activation == "softmax":
        spread = float(scores.var())  # softmax does not see a shift of all scores
        expected = min(math.exp(min(spread, 50.0)) / n, 1.0)  # it cannot exceed that of a single slot
        return {"variance": float(out.var()) / size, "expected": expected, "n": n}
    spread = float(scores.square().mean())
    return {"variance": float(out.var()) / size / spread, "expected": (n / 2) ** (1 - 2 * settings.alpha), "n": n}
