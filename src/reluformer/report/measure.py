"""Measurement of the memories of a model: sums over rows during the pass, means at the end."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from reluformer.memory import Attention, KeyValueMemory
from reluformer.report.records import HeadReport, LengthReport, MemoryReport, SiteReport
from reluformer.report.rows import TOP_SHARES, blocks, measure_rows
from reluformer.report.watch import Place, Seen, watch

MEASURES = ("mass", "entropy", "effective_keys", "zeros", *TOP_SHARES)
BY_LENGTH = ("mass", "entropy", "effective_keys")
SPANS = 40  # number of spans of lengths, each twice the one before: they reach further than any tensor


def memory_report(
    model: nn.Module, batch: Mapping[str, Any], *, query_mask: Tensor | None = None, block: int = 128
) -> MemoryReport:
    """Report on every memory of a model that a batch reaches, from one forward pass in eval mode.

    Weights are computed at most ``block`` rows at a time, so that the memory needed grows with the length, not with its
    square. Queries that are padding are left out. An :class:`~reluformer.memory.Attention` knows them from its
    ``query_mask`` or else from the ``attention_mask`` of the batch, if it has the same shape (for a decoder beside an
    encoder, by their names: ``decoder_attention_mask``, or ``labels`` of -100). A
    :class:`~reluformer.memory.KeyValueMemory` follows the attention before it. A memory that is called more than once
    is measured over all its calls. Slots of an attention that are a memory of their own are a site of their own; only
    the variance and the anisotropy of the output there are those of the whole attention.

    Args:
        model: Model that holds the memories, anywhere in it.
        batch: Inputs of the model, by name.
        query_mask: Positions that are not padding, ``(B, N)``, where neither the model nor the batch says so.
        block: Most rows of weights, per head, to hold at a time.
    """
    if isinstance(block, bool) or not isinstance(block, int) or block < 1:
        raise ValueError(f"block must be an int >= 1, got {block!r}")
    sites: dict[Place, _Site] = {}

    def see(seen: Seen) -> None:
        if seen.place not in sites:
            sites[seen.place] = _Site(seen)
        sites[seen.place].add(seen, block)

    watch(model, batch, see, query_mask)
    return MemoryReport([site.report() for site in sites.values()])


class _Site:
    """Measures of one memory, over all its calls."""

    def __init__(self, seen: Seen) -> None:
        self.place = seen.place
        self.kind = "attention" if isinstance(seen.memory, Attention) and not seen.slots else "key-value"
        self.activation = (seen.memory if seen.lookup is None else seen.lookup).settings.activation
        self.rows = _Rows(seen.memory.heads if isinstance(seen.memory, Attention) else 1, seen.x.device)
        self.stream, self.output = _Vectors(seen.stream), _Vectors(seen.out)

    def add(self, seen: Seen, block: int) -> None:
        mask = seen.query_mask
        if mask is None:
            mask = torch.ones(seen.x.shape[:-1], dtype=torch.bool, device=seen.x.device)
        x = seen.x[mask]  # (P, width): padding left out
        self.stream.add(seen.stream[mask])
        self.output.add(seen.out[mask])
        if isinstance(seen.memory, KeyValueMemory):
            for row in range(0, len(x), block):
                weights = seen.memory.weights(x[row : row + block])[None, None]  # (1, 1, r, slots)
                self.rows.add(weights.to(torch.promote_types(weights.dtype, torch.float32)))
            return
        assert seen.lookup is not None
        for weights, visible, sequences, rows in blocks(seen.lookup, block):
            self.rows.add(weights, visible, mask[sequences, rows])

    def report(self) -> SiteReport:
        stream, output = self.stream.variance, self.output.variance
        return SiteReport(
            name=self.place.name,
            site=self.place.site,
            layer=self.place.layer,
            kind=self.kind,
            activation=self.activation,
            heads=self.rows.reports(),
            variance_ratio=output / stream if output is not None and stream else None,
            anisotropy=self.output.anisotropy,
        )


class _Rows:
    """Sums over the rows of a memory, by length and head: counted rows, live rows, and every measure of live rows."""

    def __init__(self, heads: int, device: torch.device) -> None:
        self.sums = torch.zeros(SPANS, heads, 2 + len(MEASURES), dtype=torch.float64, device=device)
        self.ends = 2 ** torch.arange(1, SPANS, device=device)

    def add(self, weights: Tensor, visible: Tensor | None = None, counted: Tensor | None = None) -> None:
        """Add the rows of ``weights (b, H, r, M)``; those in ``counted (b, r)`` are not padding."""
        if visible is None:
            visible = torch.ones_like(weights, dtype=torch.bool)
        shape, heads = weights.shape[:-1], self.sums.shape[1]
        measures = measure_rows(weights, visible)
        counts = torch.ones(shape, device=weights.device) if counted is None else counted[:, None, :].expand(shape)
        live = (weights > 0).any(-1) & counts.bool()
        values = [counts, live, *(measures[name].where(live, 0.0) for name in MEASURES)]
        span = torch.bucketize(visible.sum(-1), self.ends).expand(shape)  # 1 and 2 keys are 0, 3 and 4 are 1, ...
        place = span * heads + torch.arange(heads, device=weights.device)[:, None]  # (b, H, r)
        stacked = torch.stack([x.double() for x in values], dim=-1)  # (b, H, r, 2 + measures)
        self.sums.view(SPANS * heads, -1).index_add_(0, place.flatten(), stacked.flatten(0, 2))

    def reports(self) -> list[HeadReport]:
        """One report per head."""
        return [_head_report(self.sums[:, h].cpu()) for h in range(self.sums.shape[1])]


def _head_report(sums: Tensor) -> HeadReport:
    """Report from the sums of one head, ``(SPANS, 2 + measures)``."""
    rows, live, *totals = sums.sum(0).tolist()
    means = {name: total / live if live else None for name, total in zip(MEASURES, totals, strict=True)}
    by_length = []
    for i, (_, alive, *parts) in enumerate(sums.tolist()):
        if alive:
            of = {name: part / alive for name, part in zip(MEASURES, parts, strict=True) if name in BY_LENGTH}
            by_length.append(LengthReport(fewest=2**i + 1 if i else 1, most=2 ** (i + 1), rows=int(alive), **of))
    return HeadReport(
        rows=int(rows), live=int(live), dead=1 - live / rows if rows else None, by_length=by_length, **means
    )


class _Vectors:
    """Variance of the entries of vectors, and the mean cosine between two of them, from sums alone."""

    def __init__(self, like: Tensor) -> None:
        self.entries = self.vectors = 0
        self.total, self.squares = like.new_zeros(2, dtype=torch.float64)
        self.directions = like.new_zeros(like.shape[-1], dtype=torch.float64)

    def add(self, x: Tensor) -> None:
        """Add the vectors ``x (P, width)``."""
        x = x.double()
        self.entries += x.numel()
        self.total = self.total + x.sum()
        self.squares = self.squares + x.square().sum()
        lengths = x.norm(dim=-1, keepdim=True)
        units = x / lengths.where(lengths > 0, 1.0)
        self.vectors += int((lengths > 0).sum())
        self.directions = self.directions + units.sum(0)

    @property
    def variance(self) -> float | None:
        """Mean square less squared mean over all entries."""
        if not self.entries:
            return None
        return max(float(self.squares / self.entries - (self.total / self.entries) ** 2), 0.0)

    @property
    def anisotropy(self) -> float | None:
        """``(|sum u|^2 - P) / (P (P - 1))`` of the P unit vectors u: the mean over all pairs, without the pairs."""
        if self.vectors < 2:
            return None
        return float((self.directions.square().sum() - self.vectors) / (self.vectors * (self.vectors - 1)))
