"""One call of the operator, as the back ends see it: arguments checked, shapes normal, defaults filled in."""

from typing import NamedTuple

from torch import Tensor

from reluformer.ops.visibility import Band


class Problem(NamedTuple):
    """Everything that a back end needs to know.

    Packed sequences have ``B = 1``, the packed length as ``N`` and ``M``, and boundaries ``cu_q`` and ``cu_k``.
    """

    q: Tensor  # (B, Hq, N, D)
    k: Tensor  # (B, Hk, M, D)
    v: Tensor  # (B, Hk, M, D)
    gamma: Tensor | None  # (Hq,)
    bias: Tensor | None  # (Hq,)
    key_mask: Tensor | None  # (B, M), True = may be seen
    attn_mask: Tensor | None  # (B|1, Hq|1, N, M), boolean, or floating point and added to the score
    visible: Tensor | None  # (B|1, Hq|1, N), float32: how many keys, where a mask makes that irregular, else None
    cu_q: Tensor | None  # (sequences + 1,), int32
    cu_k: Tensor | None
    faded: Tensor | None  # (B, Hq, M), float64: the sums c of forgetting.py
    max_q: int  # the longest sequence: N and M unless packed
    max_k: int
    divisor: float  # divides every weight, beside gamma
    alpha: float
    power: int
    scale: float
    band: Band
    stats: int  # 0 for none, 1 for mass and entropy, 2 for the active keys too

    @property
    def groups(self) -> int:
        """How many query heads share a key head."""
        return self.q.shape[1] // self.k.shape[1]


class Sums(NamedTuple):
    """What a forward pass returns; the statistics are empty tensors when not asked for."""

    out: Tensor  # (B, Hq, N, D)
    mass: Tensor  # (B, Hq, N)
    entropy: Tensor
    active: Tensor


class Gradients(NamedTuple):
    """What a backward pass returns; empty tensors for the optional arguments that were not given."""

    q: Tensor
    k: Tensor
    v: Tensor
    gamma: Tensor
    bias: Tensor
    attn_mask: Tensor
    faded: Tensor
