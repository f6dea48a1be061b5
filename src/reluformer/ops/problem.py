"""One call of the operator, as the back ends see it: arguments checked, shapes normalised, defaults filled in."""

from typing import NamedTuple

from torch import Tensor

from reluformer.ops.visibility import Band


class Problem(NamedTuple):
    """Everything that a back end needs to know.

    Packed sequences have ``B = 1``, their packed lengths as ``N`` and ``M``, and the boundaries ``cu_q`` and ``cu_k``.
    """

    q: Tensor  # (B, Hq, N, D)
    k: Tensor  # (B, Hk, M, D)
    v: Tensor  # (B, Hk, M, D)
    gamma: Tensor | None  # (Hq,)
    bias: Tensor | None  # (Hq,)
    key_mask: Tensor | None  # (B, M), True = may be seen
    attn_mask: Tensor | None  # (B|1, Hq|1, N, M), boolean, or floating point and added to the score
    visible: Tensor | None  # (B|1, Hq|1, N), float32: number of visible keys, if there is a mask
    cu_q: Tensor | None  # (sequences + 1,), int32
    cu_k: Tensor | None
    faded: Tensor | None  # (B, Hq, M), float64: the sums c of forgetting.py
    max_q: int  # lengths of the longest sequence: N and M unless packed
    max_k: int
    divisor: float  # divides every weight, in addition to gamma
    alpha: float
    power: int
    scale: float
    band: Band
    stats: int  # level: 0 for none, 1 for mass and entropy, 2 for the active keys as well
    stats_batch: int  # number of sequences with statistics, the first ones; B for all

    @property
    def groups(self) -> int:
        """The number of query heads that share a key head."""
        return self.q.shape[1] // self.k.shape[1]

    @property
    def whole(self) -> bool:
        """Whether all sequences are alike, either with statistics or without."""
        return self.stats == 0 or self.stats_batch == self.q.shape[0]

    def split(self) -> "list[tuple[slice, Problem]]":
        """Split the batch into the sequences with statistics and those without, each a problem of its own, on views."""
        first, batch = self.stats_batch, self.q.shape[0]
        return [
            (rows, self._sequences(rows)._replace(stats=stats, stats_batch=rows.stop - rows.start))
            for rows, stats in ((slice(0, first), self.stats), (slice(first, batch), 0))
        ]

    def _sequences(self, rows: slice) -> "Problem":
        def pick(x: Tensor | None) -> Tensor | None:
            return x if x is None or x.shape[0] == 1 else x[rows]  # masks and counts may be shared by all sequences

        return self._replace(
            q=self.q[rows],
            k=self.k[rows],
            v=self.v[rows],
            key_mask=pick(self.key_mask),
            attn_mask=pick(self.attn_mask),
            visible=pick(self.visible),
            faded=pick(self.faded),
        )


class Gradients(NamedTuple):
    """Gradients that a backward pass returns in addition to those of q, k and v; empty where none is needed."""

    gamma: Tensor
    bias: Tensor
    attn_mask: Tensor
    faded: Tensor
