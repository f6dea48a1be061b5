"""The FFN as a memory of learned keys and values that every position looks into."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reluformer.memory.activations import FUSED, NORMALISED, require, weigh
from reluformer.memory.norms import output_norm
from reluformer.memory.scale import Gamma
from reluformer.memory.settings import MemorySettings
from reluformer.ops.statistics import TINY

PARTS_OF_ATTENTION = (
    "query_key_norm", "centred", "constant_channel", "sentence_bias", "slot_activation", "token_shift", "output_gate",
)  # fmt: skip


class KeyValueMemory(nn.Module):
    """``norm(activation(x keys^T + b) / (gamma * (slots / 2) ** alpha) values + c)``.

    With ReLU, ``gamma="none"`` and ``alpha=0`` this is the FFN of a Transformer, ``nn.Linear``, ReLU, ``nn.Linear``;
    with softmax it is the paper's key-value memory, which ``norm="layer"`` makes perform as well as ReLU.
    """

    def __init__(self, width: int, settings: MemorySettings, dropout: float = 0.0) -> None:
        super().__init__()
        if settings.slots < 1:
            raise ValueError(f"slots must be at least 1 in a key-value memory, got {settings.slots}")
        for name in PARTS_OF_ATTENTION:
            if (value := getattr(settings, name)) != (usual := getattr(MemorySettings, name)):
                what = f"{name} must be {usual} in a key-value memory"
                raise ValueError(f"{what}: it is a part of attention, got {value!r}")
        require(settings.activation)
        self.settings = settings
        biased = settings.bias is not None
        self.keys = nn.Linear(width, settings.slots, bias=biased)
        self.values = nn.Linear(settings.slots, width, bias=biased)
        self.gamma = Gamma(settings, 1)
        self.norm = output_norm(settings, width)
        self.dropout = dropout
        if settings.bias is not None:
            nn.init.constant_(self.keys.bias, settings.bias)
            self.keys.start_bias = settings.bias  # type: ignore[assignment]  # for models that initialise weights again

    def forward(self, x: Tensor) -> Tensor:
        """Look up ``x (..., width)``."""
        out: Tensor = self.values(F.dropout(self.weights(x), self.dropout, self.training))
        return out if self.norm is None else self.norm(out)

    def weights(self, x: Tensor) -> Tensor:
        """Weights over the slots, ``(..., slots)``."""
        settings = self.settings
        scores: Tensor = self.keys(x)
        dtype = scores.dtype
        if dtype == torch.float16 and FUSED.get(settings.activation, 1) > 1:
            scores = scores.float()  # float16 has no range for their powers, which are divided only later
        if settings.activation in NORMALISED and settings.temperature != 1:
            scores = scores / settings.temperature
        weights = weigh(scores, settings.activation, float(settings.slots))
        if settings.norm == "mass":
            mass = weights.sum(-1, keepdim=True, dtype=torch.promote_types(weights.dtype, torch.float32))
            return (weights / mass.clamp_min(TINY)).to(dtype)  # in float16 TINY would be 0, and a dead row 0 / 0
        gamma = self.gamma()
        divisor = (settings.slots / 2) ** settings.alpha
        if gamma is not None:
            return weights.div(gamma.mul(divisor).to(weights.dtype)).to(dtype)
        return (weights if divisor == 1 else weights / divisor).to(dtype)

    @torch.no_grad()
    def calibrate_on(self, x: Tensor, query_mask: Tensor | None = None) -> None:
        """Multiply gamma by the mean mass of the rows of ``x (..., width)`` that ``query_mask (...)`` selects."""
        mass = self.weights(x).float().sum(-1).reshape(1, 1, -1)
        self.gamma.take_in(mass, None if query_mask is None else query_mask.reshape(1, -1))
